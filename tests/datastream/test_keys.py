"""Which records share a key, whatever the keys are: rows, and two subtasks that exchange them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import math
import zoneinfo
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest

from flinkray.datastream import (
    DataStream,
    FilterFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    ProcessJoinFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Row, Time, Types
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.streaming.errors import OperatorError, StreamError
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


def test_row_that_is_changed_later_remains_its_original_key() -> None:
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


def test_keys_that_differ_do_not_share_state() -> None:
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
def test_failing_selector_fails_the_program_whatever_uses_the_keyed_stream(
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
def test_selector_that_raises_stop_iteration_fails_the_program(
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
