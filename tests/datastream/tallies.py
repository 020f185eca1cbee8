"""A program that checks itself: whatever dies, each number counts once, and in order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flinkray.checkpoint.layout import find_checkpoints
from flinkray.checkpoint.metadata_file import read_metadata
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

Result = tuple[int, int, int, int]


class Tally(KeyedProcessFunction[int, int, Any]):
    """Of each key the number of records, their sum, and how many came out of order: those of one
    part of the numbers are to come by rising number.  Told at the end.

    Args:
        of_part: so many numbers, one after the other, are read by one reader.
        echoes: give each number on, too.
        starts: file to write down in, whenever an attempt begins with a key: the time, the key, the
            count that it goes on from, and whether there was a checkpoint, whose count may be 0.
        pause: seconds that it takes for a number at least.
    """

    def __init__(
        self, of_part: int, *, echoes: bool = False, starts: Path | None = None, pause: float = 0.0
    ) -> None:
        self._of_part = of_part
        self._echoes = echoes
        self._starts = starts
        self._pause = pause

    def open(self, runtime_context: RuntimeContext) -> None:
        self._tally = runtime_context.get_state(
            ValueStateDescriptor("tally", Types.PICKLED_BYTE_ARRAY())
        )
        self._seen: set[int] = set()
        self._is_restored = runtime_context.is_restored()

    def process_element(
        self, value: int, ctx: KeyedProcessFunction.Context
    ) -> Iterator[int | Result]:
        last: dict[int, int] = {}
        count, total, out_of_order, last = self._tally.value() or (0, 0, 0, last)
        key = ctx.get_current_key()
        if self._starts is not None and key not in self._seen:
            self._seen.add(key)
            with self._starts.open("a") as file:
                file.write(f"{time.time()} {key} {count} {self._is_restored:d}\n")
        if self._pause:
            time.sleep(self._pause)
        part = value // self._of_part
        if value <= last.get(part, -1):
            out_of_order += 1
        self._tally.update((count + 1, total + value, out_of_order, {**last, part: value}))
        ctx.timer_service().register_event_time_timer(AT_THE_END)
        if self._echoes:
            yield value

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[int | Result]:
        tally = self._tally.value()
        assert tally is not None
        count, total, out_of_order, _ = tally
        yield ctx.get_current_key(), count, total, out_of_order


def expected(count: int) -> set[Result]:
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
    env: StreamExecutionEnvironment,
    count: int,
    per_second: float | None,
    witness: Path,
    pause: float = 0.0,
) -> DataStream:
    """Numbers below *count*, by key, as they come through the network; see :class:`Tally`."""
    source: DataGeneratorSource = DataGeneratorSource(lambda n: n, count, per_second)
    numbers = env.from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    ).uid("numbers")
    return tallied(numbers, count, witness, pause)


def tallied(numbers: DataStream, count: int, witness: Path, pause: float = 0.0) -> DataStream:
    """The same of a stream in which the lower half of them is in order, and so is the upper."""
    witness.mkdir(exist_ok=True)
    seen = numbers.map(Witness(witness)).uid("witness")
    return by_key(seen, Tally(count // 2, pause=pause))


def by_key(numbers: DataStream, tally: Tally) -> DataStream:
    return numbers.key_by(lambda n: n % KEYS).process(tally).uid("tally")


def first_numbers(witness: Path) -> list[list[int]]:
    """Of each subtask, the numbers that its attempts began with."""
    return [list(map(int, path.read_text().split())) for path in sorted(witness.iterdir())]


def differences(results: Iterable[int | Result], count: int) -> str:
    """What is wrong with the results of a tally that echoes; nothing if nothing is."""
    numbers: Counter[int] = Counter()
    sums = []
    for result in results:
        if isinstance(result, int):
            numbers[result] += 1
        else:
            sums.append(result)
    lost = [n for n in range(count) if n not in numbers]
    doubled = [n for n, times in numbers.items() if times > 1]
    wrong = sorted(set(sums) ^ expected(count))
    foreign = [n for n in numbers if not 0 <= n < count]
    found: dict[str, list[Any]] = {
        "foreign": foreign,
        "lost": lost,
        "doubled": doubled,
        "wrong sums": wrong,
    }
    if len(sums) != KEYS:
        found["sums"] = sums
    return ", ".join(f"{len(them)} {what}: {them[:10]}" for what, them in found.items() if them)


def restarted_from(starts: Path) -> list[tuple[float, int, int, bool]]:
    """When attempts began with a key, the key, the count that they went on from, and whether it is
    that of a checkpoint."""
    if not starts.exists():
        return []
    lines = [line.split() for line in starts.read_text().splitlines()]
    return [
        (float(when), int(key), int(count), is_restored == "1")
        for when, key, count, is_restored in lines
    ]


def settings(directory: Path | str, interval: str = "100 ms", **others: Any) -> dict[str, str]:
    """Checkpoints of a job."""
    return {
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.dir": str(directory),
        **{key.replace("_", "-"): str(value) for key, value in others.items()},
    }


def newest(directory: Path | str) -> int:
    """Id of the latest complete checkpoint; 0: there is none."""
    found = find_checkpoints(str(directory))
    return read_metadata(found[-1]).checkpoint_id if found else 0
