"""The programs, each with the work it does as other libraries do it on the same data."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

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
from flinkray.datastream.state import ArrayStateDescriptor, ValueStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows

from .runners import LocalRunner, Runner, Taken, time_of
from .sources import MarkingSink, Marks, Table, Values

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
"""Each of these is a multiple of a number of keys, or divides one."""


def keyed_by(keys: int, factor: int, rows: int) -> Any:
    """Return *rows* keys from 0 to *keys*, each as often as any other."""
    return np.arange(rows) * factor % keys


class Data:
    """Sources of the same records as Python values and as columns, with ten times as many rows of
    columns.

    All sources note the time of their first record in *marks*.
    """

    def __init__(self, rows: int, times: int, marks: Marks) -> None:
        """Make *times* as many records as *rows* says.
        Tables in memory, for pyarrow, are made once, and read *times* times.
        """
        self.marks = marks
        self.times = times
        blocks = -(-rows // BLOCK_RECORDS)
        self.rows = blocks * BLOCK_RECORDS * times
        pairs = [(value * 7919 % KEYS, value) for value in range(BLOCK_RECORDS)]
        self.numbers = Values(range(BLOCK_RECORDS), blocks * times, marks)
        self.pairs = Values(pairs, blocks * times, marks)
        self.stamped = Values(pairs, blocks * times, marks, timed=True)

        self._batches = -(-rows * 10 // BATCH_ROWS)
        batches = self._batches * times
        self.many = batches * BATCH_ROWS
        keys, values = keyed_by(KEYS, 7919, BATCH_ROWS), np.arange(BATCH_ROWS)
        names = pa.array([f"key-{key}" for key in range(KEYS)])
        numbers = pa.record_batch({"k": keys, "v": values})
        texts = pa.record_batch({"k": names.take(pa.array(keys)), "v": values})
        self._numbers = numbers
        self.columns, self.texts = (Table(pairs, batches, marks) for pairs in (numbers, texts))
        self.stamped_columns, self.stamped_texts = (
            Table(pairs, batches, marks, timed=True) for pairs in (numbers, texts)
        )

        # Two streams of half the rows each; in a window, a key comes once in each.
        self._halves = -(-rows * 5 // JOIN_BATCH_ROWS)
        halves = self._halves * times
        self.joined = 2 * halves * JOIN_BATCH_ROWS
        values = np.arange(JOIN_BATCH_ROWS)
        sides = [
            {"k": keyed_by(JOIN_KEYS, factor, JOIN_BATCH_ROWS), name: values}
            for factor, name in ((7919, "v"), (6841, "x"))
        ]
        self._sides = [pa.record_batch(side) for side in sides]
        self.left, self.right = (Table(s, halves, marks, timed=True) for s in self._sides)
        few = -(-rows // (2 * JOIN_BATCH_ROWS)) * times
        self.joined_values = 2 * few * JOIN_BATCH_ROWS
        records = [list(zip(side["k"].tolist(), values.tolist(), strict=True)) for side in sides]
        self.values_of = [Values(side, few, marks, timed=True) for side in records]

    def table(self) -> pa.Table:
        """Return the rows without times that pyarrow reads *times* times."""
        return Table(self._numbers, self._batches).table()

    def stamped_table(self) -> pa.Table:
        """Return the rows with times that pyarrow reads *times* times."""
        return Table(self._numbers, self._batches, timed=True).table()

    def tables_to_join(self) -> list[pa.Table]:
        """Return the rows of both sides that pyarrow joins *times* times."""
        return [Table(side, self._halves, timed=True).table() for side in self._sides]


# --- programs -------------------------------------------------------------------------------------


def doubled(data: Data, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(data.numbers).map(lambda x: x * 2)


def first_field(value: Any) -> Any:
    return value[0]


def python_sum(data: Data, env: StreamExecutionEnvironment) -> Any:
    return env.from_source(data.pairs).key_by(first_field).process(RunningSum())


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


def loop(data: Data) -> Taken:
    return time_of(partial(dictionary, data.pairs))


class LookedUp:
    """A state handle that looks up the current key in a dictionary."""

    def __init__(self) -> None:
        self.key: Any = None
        self._totals: dict[Any, Any] = {}

    def value(self) -> Any:
        return self._totals.get(self.key)

    def update(self, value: Any) -> None:
        self._totals[self.key] = value


def calls_of_the_generator(data: Data) -> Taken:
    """Call the generator of the keyed sum, and its key selector, for each record."""
    function = RunningSum()
    handle: Any = LookedUp()
    function.total = handle
    process, key_of = function.process_element, first_field

    def call() -> None:
        for number in range(data.pairs.batches):
            results: list[Any] = []
            for value in data.pairs.batch(number).values:
                handle.key = key_of(value)
                for result in process(value, None):
                    results.append(result)

    return time_of(call)


def loop_twice(data: Data) -> Taken:
    """Run the loop in two processes at the same time: what this machine gives to two slots at
    most."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(2, context) as pool:
        both_there = manager.Barrier(2)
        first, second = pool.map(_dictionary_beside, [data.pairs] * 2, [both_there] * 2)
    return Taken(first.processor + second.processor, max(first.clock, second.clock))


def _dictionary_beside(pairs: Values, both_there: Any) -> Taken:
    both_there.wait()
    return time_of(partial(dictionary, pairs))


def repeated(data: Data, work: Callable[[], object]) -> Taken:
    """Do the work as often as the data are larger than its tables."""

    def repeat() -> None:
        for _ in range(data.times):
            work()

    return time_of(repeat)


def group_by(data: Data) -> Taken:
    table = data.table()
    return repeated(data, lambda: table.group_by("k", use_threads=False).aggregate([("v", "sum")]))


def group_by_window(data: Data) -> Taken:
    table = data.stamped_table()

    def grouped() -> None:
        windows = table.append_column("w", pc.divide(table["t"], WINDOW))
        groups = windows.group_by(["k", "w"], use_threads=False)
        groups.aggregate([("v", "sum"), ("v", "count")])

    return repeated(data, grouped)


def arrow_join(data: Data) -> Taken:
    tables = data.tables_to_join()

    def join() -> None:
        first, second = (t.append_column("w", pc.divide(t["t"], WINDOW)) for t in tables)
        first.join(second.drop_columns("t"), ["k", "w"], join_type="inner", use_threads=False)

    return repeated(data, join)


MAP = "map, Python function"
KEYED = "keyed sum, ValueState"
LOOP = "  a loop with a dictionary"
CALLS = "  a loop that calls the generator, with a dictionary"
LOOP_TWICE = "  the loop in two processes at once"
GROUPS = "keyed sum, group function"
BATCHES = "keyed sum, batch function, columns"
WINDOWED = "tumbling window, Python aggregate"
SUM = "keyed running sum, columns"
SUM_TEXTS = "keyed running sum, columns, text keys"
FINAL_SUM = "keyed final sum (batch mode), columns"
GROUPED = "  pyarrow group-by, sum"
WINDOWS = "tumbling window, columns"
WINDOWS_TEXTS = "tumbling window, columns, text keys"
GROUPED_WINDOWS = "  pyarrow group-by, key and window"

JOIN = "two-stream join in windows, columns"
ARROW_JOIN = "  pyarrow join, key and window"
JOIN_ROWS = "two-stream join in windows, Python function"
IN_SLOTS_TOO = (
    (KEYED, 1.5),
    (WINDOWED, 1.5),
    (SUM, None),
    (SUM_TEXTS, 1.0),
    (WINDOWS, 1.2),
    (WINDOWS_TEXTS, 1.0),
    (JOIN, 1.4),
)
"""Programs that are compared with themselves in one process, by the clock, and the least ratio of
two slots to one process. None: there is no goal."""


GROWING = (KEYED, SUM, WINDOWS, JOIN)
"""Programs whose processor time per record is compared with more and more subtasks."""


class Program(NamedTuple):
    """One way to do some work."""

    records: Callable[[Any], int]
    """Returns how many records the work reads."""
    run: Callable[[Any], Taken]


def in_one_process(program: str) -> str:
    """Return the name of the program's run in one process, in a benchmark of two slots."""
    return f"{program}, one process"


def programs(runner: Runner) -> dict[str, Program]:
    """Return all programs, and the same work done by others, by name."""

    def program(
        build: Callable[..., Any],
        on: Callable[[Data], Any] = lambda data: data,
        runner: Runner = runner,
        mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING,
    ) -> Callable[[Data], Taken]:
        def execute(data: Data) -> Taken:
            data.marks.clear()
            env = runner.environment().set_runtime_mode(mode)
            build(on(data), env).sink_to(MarkingSink(data.marks))
            return Taken(runner.execute(env).processor, data.marks.seconds())

        return execute

    few, many, joined = attrgetter("rows"), attrgetter("many"), attrgetter("joined")
    columns, texts = attrgetter("columns"), attrgetter("texts")
    stamped_columns, stamped_texts = attrgetter("stamped_columns"), attrgetter("stamped_texts")
    batch = RuntimeExecutionMode.BATCH
    chosen = {
        MAP: Program(few, program(doubled)),
        KEYED: Program(few, program(python_sum)),
        GROUPS: Program(few, program(group_sum)),
        BATCHES: Program(many, program(batch_sum)),
        LOOP: Program(few, loop),
        CALLS: Program(few, calls_of_the_generator),
        WINDOWED: Program(few, program(python_window)),
        SUM: Program(many, program(columns_sum, columns)),
        SUM_TEXTS: Program(many, program(columns_sum, texts)),
        FINAL_SUM: Program(many, program(columns_sum, columns, mode=batch)),
        GROUPED: Program(many, group_by),
        WINDOWS: Program(many, program(columns_window, stamped_columns)),
        WINDOWS_TEXTS: Program(many, program(columns_window, stamped_texts)),
        GROUPED_WINDOWS: Program(many, group_by_window),
        JOIN_ROWS: Program(attrgetter("joined_values"), program(python_join)),
        JOIN: Program(joined, program(columns_join)),
        ARROW_JOIN: Program(joined, arrow_join),
    }
    if isinstance(runner, LocalRunner):
        # What dividing records by key costs; in slots the two subtasks run side by side.
        two = LocalRunner(2)
        chosen |= {
            in_subtasks(KEYED, 2): Program(few, program(python_sum, runner=two)),
            in_subtasks(SUM, 2): Program(many, program(columns_sum, columns, two)),
            in_subtasks(WINDOWS, 2): Program(many, program(columns_window, stamped_columns, two)),
        }
    return chosen


def in_subtasks(program: str, number: int) -> str:
    """Return the name of the program's run with so many subtasks."""
    return f"{program}, {number} subtask{'s' if number > 1 else ''}"


def beside_one_process(cluster: Runner) -> dict[str, Program]:
    """Return programs in two slots and in one process, the loop in one and in two processes, and
    pyarrow's group-by."""
    in_slots, in_process = programs(cluster), programs(LocalRunner())
    chosen = {
        LOOP: in_slots[LOOP],
        LOOP_TWICE: Program(lambda data: 2 * data.rows, loop_twice),
        GROUPED: in_slots[GROUPED],
    }
    for name, _ in IN_SLOTS_TOO:
        chosen |= {name: in_slots[name], in_one_process(name): in_process[name]}
    return chosen
