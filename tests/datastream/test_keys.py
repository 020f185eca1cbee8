"""Keys of streams: equality, selectors, and keys that functions change."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import math
import zoneinfo
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest

from flinkray.datastream import (
    CoMapFunction,
    DataStream,
    FilterFunction,
    KeyedBatchFunction,
    KeyedCoProcessFunction,
    KeyedGroupFunction,
    KeyedProcessFunction,
    KeyedStream,
    KeySelector,
    Partitioner,
    ProcessJoinFunction,
    ProcessWindowFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
    WindowFunction,
)
from flinkray.datastream.common import Configuration, Row, Time, Types
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.sinks.simple import CallbackSink

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = datetime.datetime(2026, 7, 1, 12, 0, tzinfo=datetime.timezone.utc)
NO_TIMES = pd.NaT, np.datetime64("NaT"), np.timedelta64("NaT", "ns")
NANS = decimal.Decimal("NaN"), decimal.Decimal("sNaN"), math.nan, decimal.Decimal("-NaN")
NANOSECONDS = np.datetime64(1, "ns"), pd.Timestamp(1), pa.scalar(1, pa.timestamp("ns"))
INSTANTS = NOON, NOON.astimezone(BERLIN), pd.Timestamp(NOON)

BY_POSITION = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda value, _: value[1]
)


class CountOfKey(KeyedProcessFunction[Any, Any, Any]):
    """Puts out how many records of the key have come."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield count


def environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


def counts(keys: list[Any], selector: Callable[[Any], Any] = lambda value: value) -> list[int]:
    """How often each distinct key has come, in ascending order.  Eight subtasks send them, none of
    which knows what another has seen."""
    places = environment(8).from_collection(range(len(keys)))
    stream = places.rebalance().map(lambda place: place)
    counted = stream.key_by(lambda place: selector(keys[place])).process(CountOfKey())
    reached = Counter(counted.execute_and_collect())
    # n keys have come at least once, m of them at least twice, and so on
    times = [reached[count] - reached[count + 1] for count in range(1, len(keys) + 1)]
    return [count for count, many in enumerate(times, 1) for _ in range(many)]


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any
    y: Any


@attrs.frozen
class Place:
    name: Any


class Customer(pydantic.BaseModel, frozen=True):
    name: str


class Measure(pydantic.BaseModel, frozen=True):
    value: float


class Version:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)


def text(part: int) -> str:
    """Equal texts, of which some are the same object and some are not."""
    return "x" * 10 if part % 2 else "".join(["x"] * 10)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(lambda n: Version(text(n), text(n)), id="a class with equality of its own"),
        pytest.param(lambda n: Version(*[text(0)] * 2), id="the same with a part that is shared"),
        pytest.param(lambda n: Point(text(n), [1, 1.0][n % 2]), id="dataclass"),
        pytest.param(lambda n: Place(text(n)), id="attrs"),
        pytest.param(lambda n: Customer(name=text(n)), id="pydantic"),
        pytest.param(lambda n: Row(text(n), [1, np.int32(1)][n % 2]), id="row"),
        pytest.param(lambda n: [1, 1.0, True, np.float64(1)][n % 4], id="numbers"),
        pytest.param(lambda n: [(1, "a"), (1.0, "a"), (1, "a"), (True, "a")][n % 4], id="tuples"),
        pytest.param(lambda n: INSTANTS[n % 3], id="instants"),
        pytest.param(lambda n: [float("nan"), np.float32("nan"), -math.nan][n % 3], id="NaN"),
        pytest.param(lambda n: ("a", float("nan")), id="NaN in a tuple"),
        pytest.param(lambda n: Point(0, float("nan")), id="NaN in a dataclass"),
        pytest.param(lambda n: Place(float("nan")), id="NaN in a class of attrs"),
        pytest.param(lambda n: Measure(value=float("nan")), id="NaN in a pydantic model"),
        pytest.param(lambda n: Row(1, float("nan")), id="NaN in a row"),
        pytest.param(lambda n: [pd.NaT, np.datetime64("NaT", "ns")][n % 2], id="NaT"),
        pytest.param(lambda n: NANOSECONDS[n % 3], id="nanoseconds"),
        pytest.param(lambda n: (NO_TIMES[n % 3], 1), id="NaT in a tuple"),
        pytest.param(lambda n: frozenset([NO_TIMES[n % 3]]), id="NaT in a set"),
        pytest.param(lambda n: Point(NO_TIMES[n % 3], None), id="NaT in a dataclass"),
        pytest.param(lambda n: Row(None, NO_TIMES[n % 3]), id="NaT in a row"),
        pytest.param(lambda n: (None, [1, 1.0][n % 2]), id="None in a tuple"),
        pytest.param(lambda n: NANS[n % 4], id="NaN of decimals"),
        pytest.param(lambda n: (NANS[n % 4], None), id="NaN of decimals in a tuple"),
        pytest.param(lambda n: [None, pa.scalar(None, pa.int64())][n % 2], id="null"),
    ],
)  # fmt: skip
def test_all_records_of_equal_keys_share_state(key: Callable[[int], Any]) -> None:
    assert counts([key(n) for n in range(100)]) == [100]


@pytest.mark.parametrize(
    "key", [pd.NA, (pd.NA, 1), frozenset([pd.NA]), Point(pd.NA, 1), Row(pd.NA)], ids=repr
)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_pandas_na_as_a_key_is_refused_with_type_operator_and_record(
    key: Any, parallelism: int
) -> None:
    stream = environment(parallelism).from_collection([7]).key_by(lambda _: key)
    with pytest.raises(OperatorError, match=r"(?s)NAType cannot be a key: .*use None") as failure:
        list(stream.process(CountOfKey()).execute_and_collect())
    assert "on record 7" in str(failure.value)
    assert "in operator '" in str(failure.value)


def test_two_instants_that_show_the_same_local_time_are_different_keys() -> None:
    first = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    second = first.replace(fold=1)
    in_utc = second.astimezone(datetime.timezone.utc)
    assert counts([first, second, in_utc, first]) == [2, 2]


def test_row_that_is_changed_after_its_use_as_a_key_does_not_change_the_key() -> None:
    row = Row(1)

    def changing(place: int) -> Row:
        row[0] = 1
        return row

    class Changes(CountOfKey):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield from super().process_element(value, ctx)
            row[0] = 2

    stream = environment(1).from_collection([0, 1, 2]).key_by(changing).process(Changes())
    assert list(stream.execute_and_collect()) == [1, 2, 3]


def test_column_that_cannot_be_a_key_is_refused_with_the_reason() -> None:
    for array, declared, reason in (
        (pa.array([[1]]), None, "column 'k' holds list<"),
        (pa.array([{"a": 1}]), None, "column 'k' holds struct<"),
        (pa.array([1, None]), Types.LONG(), "None is no LONG"),
        (pa.array(["5"]), Types.INT(), "'5' is no INT"),
    ):
        table = pa.table({"k": array, "n": [1] * len(array)})
        stream = environment().from_arrow(table).key_by("k", key_type=declared).sum("n")
        with pytest.raises(OperatorError, match=reason):
            list(stream.execute_and_collect())


@pytest.mark.parametrize(
    ("values", "key_type"),
    [([0.5, 1.5], Types.FLOAT()), ([1, 2], Types.DOUBLE()), ([1.0, 2.0], Types.LONG())],
)
def test_keys_of_summed_columns_are_converted_to_the_declared_type(
    values: list[Any], key_type: Any
) -> None:
    table = pa.table({"k": values * 50, "n": [1] * 100})
    sums = environment().from_arrow(table).key_by("k", key_type=key_type).sum("n")
    last = Counter(row.k for row in sums.execute_and_collect() if row.n == 50)
    assert last == Counter(values)


def test_keys_that_differ_in_type_or_by_a_nanosecond_do_not_share_state() -> None:
    stamps = [pd.Timestamp("2026-01-02") + pd.Timedelta(n, unit="ns") for n in range(20)]
    assert counts([*stamps, *stamps, 1, "1", None, None, (1,), Point(1, 2)]) == [1] * 4 + [2] * 21


def test_stream_that_is_keyed_twice_uses_only_the_second_keys() -> None:
    """Also where the first keys were used only for an exchange."""
    records = [(n % 3, n % 2, 1) for n in range(600)]
    keyed = environment().from_collection(records).key_by(lambda record: record[0])
    stamped = keyed.assign_timestamps_and_watermarks(BY_POSITION)

    sums = stamped.key_by(lambda r: r[1]).reduce(lambda a, b: (0, a[1], a[2] + b[2]))

    sums_of_key = Counter(record[1] for record in sums.execute_and_collect() if record[2] == 300)
    assert sums_of_key == {0: 1, 1: 1}


def test_keys_are_converted_to_their_declared_type() -> None:
    class KeysSeen(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield repr(ctx.get_current_key())

    stream = environment().from_collection([1, 1.0, True])
    seen = stream.key_by(lambda value: value, key_type=Types.DOUBLE()).process(KeysSeen())
    assert list(seen.execute_and_collect()) == ["1.0"] * 3


@pytest.mark.parametrize(
    ("key", "declared", "reason"),
    [
        ([1], None, "a builtins.list cannot be a key: it may change while state is kept for it"),
        ({"a": 1}, None, "a builtins.dict cannot be a key"),
        (object(), None, "a builtins.object cannot be a key: it has no equality of its own"),
        ("a", Types.INT(), "a builtins.str cannot be a key: 'a' is no INT"),
    ],
)
def test_value_that_cannot_be_a_key_fails_with_its_type_operator_and_record(
    key: Any, declared: Any, reason: str
) -> None:
    stream = environment().from_collection([7]).map(lambda value: value).name("numbers")
    counted = stream.key_by(lambda _: key, key_type=declared).process(CountOfKey())
    with pytest.raises(OperatorError, match=reason) as failed:
        list(counted.execute_and_collect())
    assert "in operator 'numbers'" in str(failed.value)
    assert "on record 7" in str(failed.value)


@pytest.mark.parametrize("declared", [(Types.INT(), None), (Types.INT(), Types.LONG())])
def test_streams_with_different_key_types_cannot_be_connected_or_joined(declared: Any) -> None:
    first, second = (
        environment().from_collection([-1]).key_by(lambda value: value, key_type=kind)
        for kind in declared
    )
    refused = pytest.raises(StreamError, match="give both key_by the same key_type")
    with refused:
        first.connect(second).process(Never())
    with refused:
        first.interval_join(second).between(Time.seconds(0), Time.seconds(1)).process(NoPairs())


def test_streams_with_one_declared_key_type_can_be_connected() -> None:
    first, second = (
        environment().from_collection([-1]).key_by(lambda value: value, key_type=Types.INT())
        for _ in range(2)
    )
    with first.connect(second).process(Never()).execute_and_collect() as results:
        assert list(results) == []


class Never(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> None:
        return None

    def process_element2(self, value: Any, ctx: Any) -> None:
        return None


class NoPairs(ProcessJoinFunction[Any, Any, Any]):
    def process_element(self, left: Any, right: Any, ctx: Any) -> None:
        return None


class KeepAll(FilterFunction[Any]):
    def filter(self, value: Any) -> bool:
        return True


def plus_one(value: Any) -> Any:
    return value


USES: dict[str, Callable[[KeyedStream], Any]] = {
    "print": lambda keyed: keyed.print(),
    "sink_to": lambda keyed: keyed.sink_to(CallbackSink(plus_one)),
    "add_sink": lambda keyed: keyed.add_sink(plus_one),
    "union": lambda keyed: keyed.union(keyed).print(),
    "united": lambda keyed: keyed._origin.union(keyed).print(),
    "map": lambda keyed: keyed.map(plus_one).print(),
    "filter": lambda keyed: keyed.filter(plus_one).print(),
    "filter function": lambda keyed: keyed.filter(KeepAll()).print(),
    "flat_map": lambda keyed: keyed.flat_map(lambda value: [value]).print(),
    "map_batches": lambda keyed: keyed.map_batches(plus_one).print(),
    "timestamps": lambda keyed: keyed.assign_timestamps_and_watermarks(BY_POSITION).print(),
    "reduce": lambda keyed: keyed.reduce(lambda one, other: one).print(),
    "collected": lambda keyed: keyed.execute_and_collect(limit=1),
}


def key_of_small(value: Any) -> Any:
    number = value["n"] if isinstance(value, Row) else value[0]
    if number == 3:
        raise LookupError("three has no key")
    return number


def run(env: StreamExecutionEnvironment, build: Callable[[], Any]) -> None:
    build()
    env.execute()


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("data", ["rows", "columns"])
@pytest.mark.parametrize("use", list(USES))
def test_failing_key_selector_fails_the_program_whatever_uses_the_keyed_stream(
    use: str, data: str, parallelism: int
) -> None:
    env = environment(parallelism)
    if data == "rows":
        stream: DataStream = env.from_collection([(n, n) for n in (1, 2, 3, 4)])
    else:
        stream = env.from_arrow(pa.table({"n": [1, 2, 3, 4], "m": [1, 2, 3, 4]}))
    told = r"three has no key\n(.*\n)*in operator .*\n(.*\n)*on record .*3"
    with pytest.raises(OperatorError, match=told):
        run(env, lambda: USES[use](stream.key_by(key_of_small)))


def first_letter(text: str) -> str:
    return next(iter(text))


@pytest.mark.parametrize("mode", list(RuntimeExecutionMode))
@pytest.mark.parametrize("parallelism", [1, 2])
def test_key_selector_that_raises_stop_iteration_fails_the_program(
    parallelism: int, mode: RuntimeExecutionMode
) -> None:
    env = environment(parallelism)
    env.set_runtime_mode(mode)
    letters = env.from_collection(["a", "b", "", "c"]).key_by(first_letter)
    told = r"in first_letter\n(.*\n)*.*has raised StopIteration\n(.*\n)*on record ''"
    with pytest.raises(OperatorError, match=told):
        list(letters.reduce(lambda a, b: a + b).execute_and_collect())


@pytest.mark.parametrize("use", ["print", "union"])
def test_all_records_of_a_key_arrive_in_one_subtask(
    use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = environment(4)
    numbers = env.from_collection([*range(40)]).rebalance().map(lambda n: n % 5)
    USES[use](numbers.key_by(lambda n: n))
    env.execute()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (80 if use == "union" else 40)
    assert len(set(lines)) == 5  # the subtask is in front of each


@dataclasses.dataclass(unsafe_hash=True)
class ChangedCustomer:
    name: Any


@dataclasses.dataclass(frozen=True)
class Holder:
    """Frozen, around what is not."""

    customer: ChangedCustomer

    @property
    def name(self) -> Any:
        return self.customer.name

    @name.setter
    def name(self, name: Any) -> None:
        self.customer.name = name


class Written:
    """With an equality that somebody has written."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Written) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def _change(key: Any) -> None:
    part = key.customer if isinstance(key, Holder) else key
    part.name = f"{part.name}!"


class Counts(KeyedProcessFunction[Any, Any, Any]):
    """Changes whatever it is given after it has used state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(100)
        _change(ctx.get_current_key())
        _change(value[0])
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield count

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        key = ctx.get_current_key()
        name = key.name
        _change(key)
        yield name, self.count.value()


class Groups(KeyedGroupFunction[Any, Any, Any]):
    def process_group(self, key: Any, values: Any, ctx: Any) -> Any:
        _change(key)
        yield ctx.get_current_key().name, len(values)


class Batches(KeyedBatchFunction):
    def process_batch(self, batch: Any, ctx: Any) -> Any:
        names = [key.name for key in ctx.keys]
        _change(ctx.keys[0])
        _change(ctx.keys[:1][0])
        slots = ctx.slots.tolist()
        return pa.record_batch({"name": [names[slot] for slot in slots], "slot": slots})


class Windowed(ProcessWindowFunction[Any, Any, Any, Any]):
    """Fires again for each late record, and would find another key."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Any:
        name = key.name
        total = context.global_state().get_state(ValueStateDescriptor("total"))
        total.update((total.value() or 0) + len(list(elements)))
        count = total.value()
        _change(key)
        yield name, count


class Applied(WindowFunction[Any, Any, Any, Any]):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Any:
        name = key.name
        _change(key)
        yield name, len(list(inputs))


def _reduce(first: Any, second: Any) -> Any:
    _change(first[0])
    return first[0], first[1] + second[1]


def _environment(backend: str = "hashmap") -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.configure(Configuration().set_string("state.backend.type", backend))
    return env


def _keyed(kind: Callable[[Any], Any], *times: int, backend: str = "hashmap") -> Any:
    env = _environment(backend)
    stream = env.from_collection([(kind("ann"), time) for time in times])
    return stream.assign_timestamps_and_watermarks(BY_POSITION).key_by(lambda value: value[0])


KINDS: dict[str, Callable[[Any], Any]] = {
    "dataclass": ChangedCustomer,
    "written": Written,
    "within a frozen one": lambda name: Holder(ChangedCustomer(name)),
}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_state_and_timers_keep_their_key_when_a_function_changes_the_object(
    kind: str, backend: str
) -> None:
    stream = _keyed(KINDS[kind], 1, 2, 3, backend=backend)
    results = list(stream.process(Counts()).execute_and_collect())
    assert results == [1, 2, 3, ("ann", 3)]


def test_key_selector_may_return_one_object_that_it_changes_for_each_record() -> None:
    key = ChangedCustomer("")

    def select(value: str) -> ChangedCustomer:
        key.name = value
        return key

    class Names(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value, ctx.get_current_key().name

    stream = _environment().from_collection(["a", "b", "a"]).key_by(select).process(Names())
    assert list(stream.execute_and_collect()) == [("a", "a"), ("b", "b"), ("a", "a")]


def test_group_and_batch_functions_may_change_the_keys_that_they_receive() -> None:
    assert list(_keyed(ChangedCustomer, 1, 2).process_groups(Groups()).execute_and_collect()) == [
        ("ann", 2)
    ]
    env = _environment()
    rows = env.from_arrow(pa.table({"n": [1, 1, 1]}), batch_rows=1)
    stream = rows.key_by(lambda row: ChangedCustomer("ann")).process_batches(Batches())
    assert [(row.name, row.slot) for row in stream.execute_and_collect()] == [("ann", 0)] * 3


def test_windows_keep_their_key_when_a_function_changes_the_object() -> None:
    windows = TumblingEventTimeWindows.of(Time.milliseconds(10))
    processed = _keyed(ChangedCustomer, 1, 2, 12).window(windows).process(Windowed())
    assert list(processed.execute_and_collect()) == [("ann", 2), ("ann", 3)]
    applied = _keyed(ChangedCustomer, 1, 2, 12).window(windows).apply(Applied())
    assert list(applied.execute_and_collect()) == [("ann", 2), ("ann", 1)]
    reduced = list(
        _keyed(ChangedCustomer, 1, 2, 12).window(windows).reduce(_reduce).execute_and_collect()
    )
    assert [(key.name, number) for key, number in reduced] == [("ann!", 3), ("ann", 12)]


def test_rolling_reduce_may_change_the_key_in_its_accumulator() -> None:
    results = list(_keyed(ChangedCustomer, 1, 2, 3).reduce(_reduce).execute_and_collect())
    assert [number for _, number in results] == [1, 3, 6]


def test_key_and_value_of_a_collected_row_share_no_object() -> None:
    [row] = list(_keyed(ChangedCustomer, 1).execute_and_collect())
    _change(row.f0)
    assert row.f1 == (ChangedCustomer("ann"), 1)


def test_key_selector_of_mutable_keys_that_raises_stop_iteration_fails_the_program() -> None:
    def select(value: int) -> ChangedCustomer:
        if value == 3:
            raise StopIteration
        return ChangedCustomer("ann")

    stream = _environment().from_collection([1, 2, 3, 4]).key_by(select).map(lambda value: value)
    with pytest.raises(OperatorError, match="has raised StopIteration"):
        list(stream.execute_and_collect())


@pytest.mark.parametrize("side", [0, 1])
def test_key_selector_of_a_join_that_raises_stop_iteration_fails_the_program(side: int) -> None:
    def select(value: int) -> int:
        if value == 3:
            raise StopIteration
        return value

    selectors = [lambda value: value, select]
    env = _environment()
    first, second = (
        env.from_collection([1, 2, 3, 4]).assign_timestamps_and_watermarks(STAMPED) for _ in "ab"
    )
    keyed = first.join(second).where(selectors[side]).equal_to(selectors[1 - side])
    joined = keyed.window(TumblingEventTimeWindows.of(10)).apply(lambda a, b: a)
    with pytest.raises(OperatorError, match="has raised StopIteration"):
        list(joined.execute_and_collect())


STAMPED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v)


class Noting:
    """Takes down when it is opened and closed, in a file that all copies write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{text}\n")


class Modulo(Noting, KeySelector[int, Any]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.note("open")
        self.divisor = 2
        assert runtime_context.get_number_of_parallel_subtasks() > 0

    def close(self) -> None:
        del self.divisor
        self.note("close")

    def get_key(self, value: int) -> Any:
        return value % self.divisor


class Half(Noting, Partitioner[int]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.note("open")
        self.parts = 2

    def close(self) -> None:
        self.note("close")

    def partition(self, key: int, num_partitions: int) -> int:
        return key * num_partitions // self.parts


class Keyed(KeyedProcessFunction[Any, int, Any]):
    def process_element(self, value: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), value


class Both(CoMapFunction[int, int, Any]):
    def map1(self, value: int) -> Any:
        return value, 1

    def map2(self, value: int) -> Any:
        return value, 2


class Pairs(ProcessJoinFunction[int, int, Any]):
    def process_element(self, left: int, right: int, ctx: Any) -> Any:
        yield left, right


class Contents(ProcessWindowFunction[int, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, sorted(elements)


Build = Callable[[DataStream, Path], DataStream]
TEN = TumblingEventTimeWindows.of(10)
PROGRAMS: dict[str, tuple[Build, list[Any]]] = {
    "process": (
        lambda s, path: s.key_by(Modulo(path)).process(Keyed()), [(0, 2), (1, 1), (1, 3)],
    ),
    "map": (lambda s, path: s.key_by(Modulo(path)).map(lambda v: v), [1, 2, 3]),
    "window": (
        lambda s, path: s.key_by(Modulo(path)).window(TEN).process(Contents()),
        [(0, [2]), (1, [1, 3])],
    ),
    "two inputs": (
        lambda s, path: s.connect(s).key_by(Modulo(path), Modulo(path)).map(Both()),
        [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)],
    ),
    "interval join": (
        lambda s, path: (
            s.key_by(Modulo(path)).interval_join(s.key_by(Modulo(path)))
            .between(1, 2).process(Pairs())
        ),
        [(1, 3)],
    ),
    "window join": (
        lambda s, path: (
            s.join(s).where(Modulo(path)).equal_to(Modulo(path)).window(TEN)
            .apply(lambda one, other: (one, other))
        ),
        [(1, 1), (1, 3), (2, 2), (3, 1), (3, 3)],
    ),
    "custom": (
        lambda s, path: s.partition_custom(Half(path), Modulo(path)).map(lambda v: v), [1, 2, 3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_key_selector_is_opened_before_its_first_use_and_closed_once(
    name: str, parallelism: int, mode: RuntimeExecutionMode, tmp_path: Path
) -> None:
    build, expected = PROGRAMS[name]
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.set_runtime_mode(mode)
    stream = env.from_collection([1, 2, 3]).assign_timestamps_and_watermarks(STAMPED)
    notes = tmp_path / "notes"
    results = build(stream, notes).execute_and_collect()
    assert sorted(results) == expected
    noted = Counter(notes.read_text().split())
    assert noted["open"] == noted["close"] > 0


def test_keys_of_a_collected_stream_come_from_an_opened_key_selector(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1, 2]).key_by(Modulo(tmp_path / "notes"))
    assert sorted((row.f0, row.f1) for row in keyed.execute_and_collect()) == [(0, 2), (1, 1)]


class Failing(Modulo):
    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        raise OSError("there is no divisor")


def test_key_selector_that_cannot_be_opened_fails_with_the_name_of_its_operator(
    tmp_path: Path,
) -> None:
    """The operator is the source, whose records the selector partitions."""
    notes = tmp_path / "notes"
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1]).key_by(Failing(notes)).process(Keyed())
    with pytest.raises(OperatorError, match="there is no divisor\nin operator 'Source: Coll"):
        list(keyed.execute_and_collect())
    noted = Counter(notes.read_text().split())
    assert noted["open"] == noted["close"]


class Stateful(Modulo):
    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(None)  # type: ignore[arg-type]


def test_key_selector_that_asks_for_state_fails(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1]).key_by(Stateful(tmp_path / "notes")).process(Keyed())
    with pytest.raises(OperatorError, match="has no"):
        list(keyed.execute_and_collect())
