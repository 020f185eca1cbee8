"""The programs, each with the work it does as other libraries do it on the same data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import ArrowSource, CollectionSource, DiscardingSink
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows

from .runners import Build, LocalRunner, Runner, seconds

KEYS = 1000
JOIN_KEYS = 100_000
WINDOW = 1000
"""Milliseconds; 100 records have the same one."""
TUMBLING = TumblingEventTimeWindows.of(WINDOW)


class RunningSum(KeyedProcessFunction[Any, Any, Any]):
    """The keyed sum as a PyFlink user writes it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        total = (self.total.value() or 0) + value[1]
        self.total.update(total)
        yield value[0], total


class CountAndSum(AggregateFunction[Any, Any, Any]):
    """Two numbers per window."""

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value[1]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


THIRD = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[2])
COLUMN = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")


@dataclass
class Data:
    """The same records as Python values and as columns; of the latter ten times as many."""

    rows: int

    def __post_init__(self) -> None:
        self.pairs = [(number * 7919 % KEYS, number) for number in range(self.rows)]
        self.stamped = [(key, number, number // 100) for key, number in self.pairs]
        self.many = self.rows * 10
        numbers = np.arange(self.many)
        self.table = pa.table({"k": numbers * 7919 % KEYS, "v": numbers, "t": numbers // 100})
        names = pa.array([f"key-{key}" for key in range(KEYS)])
        self.texts = self.table.set_column(0, "k", names.take(self.table["k"].combine_chunks()))
        # Two streams of half the rows each; in a window, a key comes about once in each.
        half = np.arange(self.many // 2)
        self.left = pa.table({"k": half * 7919 % JOIN_KEYS, "v": half, "t": half // 100})
        self.right = pa.table({"k": half * 6841 % JOIN_KEYS, "x": half, "t": half // 100})
        self.pairs_of = [
            [tuple(row.values()) for row in table.slice(0, self.rows // 2).to_pylist()]
            for table in (self.left, self.right)
        ]


# --- programs -------------------------------------------------------------------------------------


def doubled(data: Data, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(CollectionSource(range(data.rows))).map(lambda x: x * 2)


def python_sum(data: Data, env: StreamExecutionEnvironment) -> Any:
    return (
        env.from_source(CollectionSource(data.pairs)).key_by(lambda v: v[0]).process(RunningSum())
    )


def python_window(data: Data, env: StreamExecutionEnvironment) -> Any:
    stream = env.from_source(CollectionSource(data.stamped), THIRD)
    return stream.key_by(lambda v: v[0]).window(TUMBLING).aggregate(CountAndSum())


def columns_sum(table: pa.Table, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(ArrowSource(table)).key_by("k").sum("v")


def columns_window(table: pa.Table, env: StreamExecutionEnvironment) -> Any:
    stream = env.from_source(ArrowSource(table), COLUMN).key_by("k").window(TUMBLING)
    return stream.aggregate_columns(n="count", total=("v", "sum"))


def python_join(data: Data, env: StreamExecutionEnvironment) -> Any:
    first, second = (env.from_source(CollectionSource(values), THIRD) for values in data.pairs_of)
    keyed = first.join(second).where(lambda v: v[0]).equal_to(lambda v: v[0])
    return keyed.window(TUMBLING).apply(lambda a, b: (a[0], a[1], b[1]))


def columns_join(data: Data, env: StreamExecutionEnvironment) -> Any:
    first, second = (
        env.from_source(ArrowSource(table), COLUMN) for table in (data.left, data.right)
    )
    return first.join(second).where("k").equal_to("k").window(TUMBLING).columns()


# --- the same by other means ----------------------------------------------------------------------


def dictionary(data: Data) -> None:
    totals: dict[int, int] = {}
    for key, value in data.pairs:
        totals[key] = totals.get(key, 0) + value


def group_by(data: Data, threads: bool) -> None:
    data.table.group_by("k", use_threads=threads).aggregate([("v", "sum")])


def group_by_window(data: Data, threads: bool) -> None:
    windows = pc.divide(data.table["t"], WINDOW)
    table = data.table.append_column("w", windows)
    table.group_by(["k", "w"], use_threads=threads).aggregate([("v", "sum"), ("v", "count")])


def arrow_join(data: Data, threads: bool) -> None:
    first, second = (
        table.append_column("w", pc.divide(table["t"], WINDOW)) for table in (data.left, data.right)
    )
    first.join(second.drop_columns("t"), ["k", "w"], join_type="inner", use_threads=threads)


MAP = "map, Python function"
KEYED = "keyed sum, ValueState"
LOOP = "  a loop with a dictionary"
WINDOWED = "tumbling window, Python aggregate"
SUM = "keyed sum, columns"
GROUPED = "  pyarrow group-by, sum"
WINDOWS = "tumbling window, columns"
GROUPED_WINDOWS = "  pyarrow group-by, key and window"


def measurements(data: Data, runner: Runner) -> dict[str, tuple[int, Callable[[], float]]]:
    """Name -> records, and what takes the seconds of one run."""

    def program(build: Callable[..., Any], on: Any = data, **options: Any) -> Callable[[], float]:
        def with_sink(env: StreamExecutionEnvironment) -> Any:
            return build(on, env).sink_to(DiscardingSink())

        ends: Build = with_sink
        return partial(seconds, options.pop("runner", runner), ends, **options)

    def beside(work: Callable[..., None], *arguments: Any) -> Callable[[], float]:
        def taken() -> float:
            begun = runner.clock()
            work(data, *arguments)
            return runner.clock() - begun

        return taken

    few, many = data.rows, data.many
    chosen = {
        MAP: (few, program(doubled)),
        KEYED: (few, program(python_sum)),
        LOOP: (few, beside(dictionary)),
        WINDOWED: (few, program(python_window)),
        SUM: (many, program(columns_sum, data.table)),
        "keyed sum, columns, text keys": (many, program(columns_sum, data.texts)),
        "final keyed sum (batch mode), columns": (
            many,
            program(columns_sum, data.table, mode=RuntimeExecutionMode.BATCH),
        ),
        GROUPED: (many, beside(group_by, runner.cores > 1)),
        WINDOWS: (many, program(columns_window, data.table)),
        "tumbling window, columns, text keys": (many, program(columns_window, data.texts)),
        GROUPED_WINDOWS: (many, beside(group_by_window, runner.cores > 1)),
        "two-stream join in windows, Python function": (few, program(python_join)),
        "two-stream join in windows, columns": (many, program(columns_join)),
        "  pyarrow join, key and window": (many, beside(arrow_join, runner.cores > 1)),
    }
    if isinstance(runner, LocalRunner):
        # What dividing records by key costs; in slots the two subtasks run side by side.
        two = LocalRunner(2)
        chosen |= {
            f"{KEYED}, 2 subtasks": (few, program(python_sum, runner=two)),
            f"{SUM}, 2 subtasks": (many, program(columns_sum, data.table, runner=two)),
            f"{WINDOWS}, 2 subtasks": (many, program(columns_window, data.table, runner=two)),
        }
    return chosen
