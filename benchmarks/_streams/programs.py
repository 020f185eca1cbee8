"""The programs, each with the work it does as other libraries do it on the same data."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.datastream import (
    AggregateFunction,
    KeyedBatchFunction,
    KeyedGroupFunction,
    KeyedProcessFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.arrays import running_sums
from flinkray.datastream.connectors import DiscardingSink
from flinkray.datastream.state import ArrayStateDescriptor, ValueStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows

from .runners import Build, LocalRunner, Runner, Taken, run, time_of
from .sources import Table, Values

KEYS = 1000
JOIN_KEYS = 100_000
WINDOW = 1000
"""Milliseconds."""
TUMBLING = TumblingEventTimeWindows.of(WINDOW)


class RunningSum(KeyedProcessFunction[Any, Any, Any]):
    """The keyed sum as a PyFlink user writes it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        total = (self.total.value() or 0) + value[1]
        self.total.update(total)
        yield value[0], total


class GroupSum(KeyedGroupFunction[Any, Any, Any]):
    """The same, with state looked up once for the records of a key that come together."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_group(self, key: Any, values: list[Any], ctx: Any) -> Any:
        total = self.total.value() or 0
        results = []
        for value in values:
            total += value[1]
            results.append((key, total))
        self.total.update(total)
        return results


class BatchSum(KeyedBatchFunction):
    """The same on columns."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_array_state(ArrayStateDescriptor("total", np.int64))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        totals = running_sums(ctx.slots, batch["v"].to_numpy(), self.total.values)
        return pa.record_batch({"k": batch["k"], "v": totals})


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


BLOCK_RECORDS = 4_000
BATCH_ROWS = 65_000
JOIN_BATCH_ROWS = 100_000
"""All of them are multiples of the numbers of keys, or the other way round."""


def keyed_by(keys: int, factor: int, rows: int) -> Any:
    """Every key as often as any other."""
    return np.arange(rows) * factor % keys


class Data:
    """The same records as Python values and as columns; of the latter ten times as many."""

    def __init__(self, rows: int) -> None:
        blocks = -(-rows // BLOCK_RECORDS)
        self.rows = blocks * BLOCK_RECORDS
        pairs = [(value * 7919 % KEYS, value) for value in range(BLOCK_RECORDS)]
        self.numbers = Values(range(BLOCK_RECORDS), blocks)
        self.pairs = Values(pairs, blocks)
        self.stamped = Values(pairs, blocks, timed=True)

        batches = -(-rows * 10 // BATCH_ROWS)
        self.many = batches * BATCH_ROWS
        keys, values = keyed_by(KEYS, 7919, BATCH_ROWS), np.arange(BATCH_ROWS)
        names = pa.array([f"key-{key}" for key in range(KEYS)])
        numbers = pa.record_batch({"k": keys, "v": values})
        texts = pa.record_batch({"k": names.take(pa.array(keys)), "v": values})
        self.columns, self.texts = (Table(pairs, batches) for pairs in (numbers, texts))
        self.stamped_columns, self.stamped_texts = (
            Table(pairs, batches, timed=True) for pairs in (numbers, texts)
        )
        self.table, self.stamped_table = self.columns.table(), self.stamped_columns.table()

        # Two streams of half the rows each; in a window, a key comes once in each.
        halves = -(-rows * 5 // JOIN_BATCH_ROWS)
        self.joined = 2 * halves * JOIN_BATCH_ROWS
        values = np.arange(JOIN_BATCH_ROWS)
        sides = [
            {"k": keyed_by(JOIN_KEYS, factor, JOIN_BATCH_ROWS), name: values}
            for factor, name in ((7919, "v"), (6841, "x"))
        ]
        self.left, self.right = (Table(pa.record_batch(s), halves, timed=True) for s in sides)
        few = -(-rows // (2 * JOIN_BATCH_ROWS))
        self.joined_values = 2 * few * JOIN_BATCH_ROWS
        records = [list(zip(side["k"].tolist(), values.tolist(), strict=True)) for side in sides]
        self.values_of = [Values(side, few, timed=True) for side in records]


# --- programs -------------------------------------------------------------------------------------


def doubled(data: Data, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(data.numbers).map(lambda x: x * 2)


def python_sum(data: Data, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(data.pairs).key_by(lambda v: v[0]).process(RunningSum())


def group_sum(data: Data, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(data.pairs).key_by(lambda v: v[0]).process_groups(GroupSum())


def batch_sum(data: Data, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(data.columns).key_by("k").process_batches(BatchSum())


def python_window(data: Data, env: StreamExecutionEnvironment) -> Any:
    stream = env.from_source(data.stamped, THIRD)
    return stream.key_by(lambda v: v[0]).window(TUMBLING).aggregate(CountAndSum())


def columns_sum(table: Table, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(table).key_by("k").sum("v")


def columns_window(table: Table, env: StreamExecutionEnvironment) -> Any:
    stream = env.from_source(table, COLUMN).key_by("k").window(TUMBLING)
    return stream.aggregate_columns(n="count", total=("v", "sum"))


def python_join(data: Data, env: StreamExecutionEnvironment) -> Any:
    first, second = (env.from_source(values, THIRD) for values in data.values_of)
    keyed = first.join(second).where(lambda v: v[0]).equal_to(lambda v: v[0])
    return keyed.window(TUMBLING).apply(lambda a, b: (a[0], a[1], b[1]))


def columns_join(data: Data, env: StreamExecutionEnvironment) -> Any:
    first, second = (env.from_source(table, COLUMN) for table in (data.left, data.right))
    return first.join(second).where("k").equal_to("k").window(TUMBLING).columns()


# --- the same by other means ----------------------------------------------------------------------


def dictionary(pairs: Values) -> None:
    totals: dict[int, int] = {}
    for number in range(pairs.batches):
        for key, value in pairs.batch(number).values:
            totals[key] = totals.get(key, 0) + value


def dictionary_twice(data: Data) -> Taken:
    """In two processes at the same time: what this machine gives to two slots at most."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(2, context) as pool:
        both_there = manager.Barrier(2)
        first, second = pool.map(_dictionary_beside, [data.pairs] * 2, [both_there] * 2)
    return Taken(first.processor + second.processor, max(first.clock, second.clock))


def _dictionary_beside(pairs: Values, both_there: Any) -> Taken:
    both_there.wait()
    return time_of(partial(dictionary, pairs))


def group_by(data: Data) -> None:
    data.table.group_by("k", use_threads=False).aggregate([("v", "sum")])


def group_by_window(data: Data) -> None:
    windows = pc.divide(data.stamped_table["t"], WINDOW)
    table = data.stamped_table.append_column("w", windows)
    table.group_by(["k", "w"], use_threads=False).aggregate([("v", "sum"), ("v", "count")])


def arrow_join(data: Data) -> None:
    first, second = (
        table.append_column("w", pc.divide(table["t"], WINDOW))
        for table in (data.left.table(), data.right.table())
    )
    first.join(second.drop_columns("t"), ["k", "w"], join_type="inner", use_threads=False)


MAP = "map, Python function"
KEYED = "keyed sum, ValueState"
LOOP = "  a loop with a dictionary"
LOOP_TWICE = "  the loop in two processes at once"
GROUPS = "keyed sum, group function"
BATCHES = "keyed sum, batch function, columns"
WINDOWED = "tumbling window, Python aggregate"
SUM = "keyed running sum, columns"
FINAL_SUM = "keyed final sum (batch mode), columns"
GROUPED = "  pyarrow group-by, sum"
WINDOWS = "tumbling window, columns"
GROUPED_WINDOWS = "  pyarrow group-by, key and window"

JOIN = "two-stream join in windows, columns"
IN_SLOTS_TOO = (KEYED, SUM, WINDOWS, JOIN)
"""Programs that are held beside themselves in one process, by the clock."""
Measurements = dict[str, tuple[int, Callable[[], Taken]]]
"""Name -> records, and one run."""


def in_one_process(program: str) -> str:
    """What it is called there, in a run of a cluster's."""
    return f"{program}, one process"


def measurements(data: Data, runner: Runner) -> Measurements:
    """By name."""

    def program(build: Callable[..., Any], on: Any = data, **options: Any) -> Callable[[], Taken]:
        def with_sink(env: StreamExecutionEnvironment) -> Any:
            return build(on, env).sink_to(DiscardingSink())

        ends: Build = with_sink
        return partial(run, options.pop("runner", runner), ends, **options)

    def beside(work: Callable[[Data], None]) -> Callable[[], Taken]:
        return partial(time_of, partial(work, data))

    few, many = data.rows, data.many
    chosen: Measurements = {
        MAP: (few, program(doubled)),
        KEYED: (few, program(python_sum)),
        GROUPS: (few, program(group_sum)),
        BATCHES: (many, program(batch_sum)),
        LOOP: (few, partial(time_of, partial(dictionary, data.pairs))),
        WINDOWED: (few, program(python_window)),
        SUM: (many, program(columns_sum, data.columns)),
        f"{SUM}, text keys": (many, program(columns_sum, data.texts)),
        FINAL_SUM: (
            many,
            program(columns_sum, data.columns, mode=RuntimeExecutionMode.BATCH),
        ),
        GROUPED: (many, beside(group_by)),
        WINDOWS: (many, program(columns_window, data.stamped_columns)),
        "tumbling window, columns, text keys": (many, program(columns_window, data.stamped_texts)),
        GROUPED_WINDOWS: (many, beside(group_by_window)),
        "two-stream join in windows, Python function": (data.joined_values, program(python_join)),
        JOIN: (data.joined, program(columns_join)),
        "  pyarrow join, key and window": (data.joined, beside(arrow_join)),
    }
    if isinstance(runner, LocalRunner):
        # What dividing records by key costs; in slots the two subtasks run side by side.
        two = LocalRunner(2)
        chosen |= {
            f"{KEYED}, 2 subtasks": (few, program(python_sum, runner=two)),
            f"{SUM}, 2 subtasks": (many, program(columns_sum, data.columns, runner=two)),
            f"{WINDOWS}, 2 subtasks": (
                many,
                program(columns_window, data.stamped_columns, runner=two),
            ),
        }
    return chosen


def beside_one_process(data: Data, cluster: Runner) -> Measurements:
    """Some programs in two slots and in one process, and what the machine gives to two processes:
    as :func:`measurements`."""
    in_slots, in_process = measurements(data, cluster), measurements(data, LocalRunner())
    chosen: Measurements = {
        LOOP: in_slots[LOOP],
        LOOP_TWICE: (2 * data.rows, partial(dictionary_twice, data)),
    }
    for name in IN_SLOTS_TOO:
        chosen |= {name: in_slots[name], in_one_process(name): in_process[name]}
    return chosen
