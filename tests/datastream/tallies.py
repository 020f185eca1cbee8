"""A program that checks itself: whatever dies, each number counts once, and in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flinkray.checkpoint.storage import find_checkpoints, read_metadata
from flinkray.datastream import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.datastream.functions import MapFunction
from flinkray.datastream.state import ValueStateDescriptor

KEYS = 7
AT_THE_END = 2**60
"""Of event time."""


class Tally(KeyedProcessFunction[int, int, tuple[int, int, int, int]]):
    """Of each key the number of records, their sum, and how many came out of order: those of one
    source's subtask are to come by rising number.  Told at the end."""

    def __init__(self, border: int) -> None:
        self._border = border
        """From which on numbers are of the second subtask."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._tally = runtime_context.get_state(
            ValueStateDescriptor("tally", Types.PICKLED_BYTE_ARRAY())
        )

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        count, total, out_of_order, last = self._tally.value() or (0, 0, 0, (-1, -1))
        of_second = value >= self._border
        if value <= last[of_second]:
            out_of_order += 1
        last = (last[0], value) if of_second else (value, last[1])
        self._tally.update((count + 1, total + value, out_of_order, last))
        ctx.timer_service().register_event_time_timer(AT_THE_END)

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[tuple[int, int, int, int]]:
        tally = self._tally.value()
        assert tally is not None
        count, total, out_of_order, _ = tally
        yield ctx.get_current_key(), count, total, out_of_order


def expected(count: int) -> set[tuple[int, int, int, int]]:
    numbers = [range(key, count, KEYS) for key in range(KEYS)]
    return {(key, len(of_key), sum(of_key), 0) for key, of_key in enumerate(numbers)}


class Witness(MapFunction[int, int]):
    """Writes down with which numbers the attempts of a subtask begin, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_first = True

    def open(self, runtime_context: RuntimeContext) -> None:
        subtask = runtime_context.get_index_of_this_subtask()
        self._path = self._folder / str(subtask)

    def map(self, value: int) -> int:
        if self._is_first:
            self._is_first = False
            with self._path.open("a") as file:
                file.write(f"{value}\n")
        return value


def tallies(
    env: StreamExecutionEnvironment, count: int, per_second: float, witness: Path
) -> DataStream:
    """Numbers below *count*, by key, as they come through the network."""
    source: DataGeneratorSource = DataGeneratorSource(lambda n: n, count, per_second)
    numbers = env.from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    ).uid("numbers")
    return tallied(numbers, count, witness)


def tallied(numbers: DataStream, count: int, witness: Path) -> DataStream:
    """The same of a stream in which the lower half of them is in order, and so is the upper."""
    witness.mkdir(exist_ok=True)
    seen = numbers.map(Witness(witness)).uid("witness")
    return seen.key_by(lambda n: n % KEYS).process(Tally(count // 2)).uid("tally")


def first_numbers(witness: Path) -> list[list[int]]:
    """Of each subtask, the numbers that its attempts began with."""
    return [list(map(int, path.read_text().split())) for path in sorted(witness.iterdir())]


def settings(directory: Path, interval: str = "100 ms", **others: Any) -> dict[str, str]:
    """Checkpoints of a job."""
    return {
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.dir": str(directory),
        **{key.replace("_", "-"): str(value) for key, value in others.items()},
    }


def newest(directory: Path) -> int:
    """Id of the latest complete checkpoint; 0: there is none."""
    found = find_checkpoints(str(directory)) if directory.exists() else []
    return read_metadata(found[-1]).checkpoint_id if found else 0
