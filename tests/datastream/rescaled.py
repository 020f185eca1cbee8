"""A program with keyed and operator state that checks itself when it is restored with another
parallelism."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flinkray.core.key_group_ranges import owner_of
from flinkray.datastream import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flinkray.state.key_group_assignment import key_group_of
from flinkray.streaming.operators.operator import OperatorStateCapture, StreamOperator
from flinkray.streaming.records.elements import Block

MAX_PARALLELISM = 13
KEYS = 42
COUNTERS = 5
"""Of each subtask, when it begins anew."""
AT_THE_END = 2**60
"""Of event time."""

Total = tuple[int, int, int, bool]
"""Key, number of records, their sum, and whether all of them came to the subtask that owns the
key."""


class Totals(KeyedProcessFunction[int, int, Total]):
    """Told at the end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        parallelism = runtime_context.get_number_of_parallel_subtasks()
        subtask = runtime_context.get_index_of_this_subtask()

        def is_own(key: int) -> bool:
            group = key_group_of(key, MAX_PARALLELISM)
            return owner_of(group, MAX_PARALLELISM, parallelism) == subtask

        self._is_own = is_own
        self._total = runtime_context.get_state(
            ValueStateDescriptor("total", Types.PICKLED_BYTE_ARRAY())
        )

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        count, total, is_placed = self._total.value() or (0, 0, True)
        is_placed = is_placed and self._is_own(ctx.get_current_key())
        self._total.update((count + 1, total + value, is_placed))
        ctx.timer_service().register_event_time_timer(AT_THE_END)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Total]:
        count, total, is_placed = self._total.value() or (0, 0, True)
        yield ctx.get_current_key(), count, total, is_placed


class Counters(StreamOperator):
    """Each subtask has some counters, which are divided; knows those of all; and has a table that
    is the same everywhere.  What it is restored with is written down."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        super().open()
        state, context = self.operator_state, self.context
        self._counters = state.list_state(ListStateDescriptor("counters", Types.LONG()))
        self._all = state.union_list_state(ListStateDescriptor("all", Types.LONG()))
        self._table = state.broadcast_state(
            MapStateDescriptor("table", Types.STRING(), Types.LONG())
        )
        counters = list(self._counters.get())
        restored = {
            "counters": counters,
            "all": sorted(self._all.get()),
            "table": dict(self._table.items()),
        }
        self._folder.mkdir(exist_ok=True)
        (self._folder / str(context.subtask_index)).write_text(json.dumps(restored))
        is_new = context.restored_checkpoint_id == 0
        self._counts: list[int] = [0] * COUNTERS if is_new else counters or [0]
        self._table.put("limit", 7)

    def process_block(self, block: Block) -> None:
        for value in block.values:
            self._counts[value % len(self._counts)] += 1

    def process_watermark(self, timestamp: int) -> None:
        """Nothing follows."""

    def process_status(self, idle: bool) -> None:
        """Nothing follows."""

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        self._counters.update(self._counts)
        self._all.update([sum(self._counts)])
        return super().capture(checkpoint_id, since)


def counted_and_totalled(
    env: StreamExecutionEnvironment, count: int, per_second: float, folder: Path
) -> DataStream:
    """Numbers below *count*: totals by key, and counters in operator state."""
    env.set_max_parallelism(MAX_PARALLELISM)
    source: DataGeneratorSource = DataGeneratorSource(lambda n: n, count, per_second)
    numbers = env.from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    ).uid("numbers")
    numbers.rebalance().end_with("counters", Counters(folder)).uid("counters")
    return numbers.key_by(lambda n: n % KEYS).process(Totals()).uid("totals")


def expected_totals(count: int) -> set[Total]:
    numbers = [range(key, count, KEYS) for key in range(KEYS)]
    return {(key, len(of_key), sum(of_key), True) for key, of_key in enumerate(numbers)}


def restored(folder: Path) -> list[dict[str, Any]]:
    """What each subtask began with."""
    paths = sorted(folder.iterdir(), key=lambda path: int(path.name))
    return [json.loads(path.read_text()) for path in paths]
