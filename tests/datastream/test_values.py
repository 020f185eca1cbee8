"""Values of records: copies, and the fields of declared types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import (
    FlatMapFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Row, Types
from flinkray.datastream.connectors import CallbackSink, IteratorSource
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError


def environment(parallelism: int = 1) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


def results(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as values:
        return list(values)


ALL = 0


class OneOfItsOwn(MapFunction[Any, Any]):
    """Puts out the same object each time."""

    def __init__(self, make: Callable[[], Any], change: Callable[[Any, Any], Any]) -> None:
        self.make, self.change = make, change

    def open(self, runtime_context: RuntimeContext) -> None:
        self.kept = self.make()

    def map(self, value: Any) -> Any:
        self.change(self.kept, value)
        return self.kept


class TaggedAndMain(ProcessFunction[Any, Any]):
    def __init__(self, tag: OutputTag[Any]) -> None:
        self.tag = tag

    def process_element(self, value: Any, ctx: Any) -> Any:
        both: list[Any] = [value]
        yield self.tag, both
        both.append("main")
        yield both


def test_change_to_a_value_in_the_main_output_does_not_change_the_side_output() -> None:
    tag = OutputTag[Any]("side")
    env = environment()
    main = env.from_collection([1, 2]).process(TaggedAndMain(tag))
    tagged: list[Any] = []
    main.get_side_output(tag).sink_to(CallbackSink(tagged.append))
    assert results(main) == [[1, "main"], [2, "main"]]
    assert tagged == [[1], [2]]


def test_filter_that_changes_stored_records_does_not_change_its_output() -> None:
    seen: list[Any] = []

    def remember(value: list[int]) -> bool:
        for earlier in seen:
            earlier.append("changed")
        seen.append(value)
        return True

    stream = environment().from_collection([[1], [2], [3]])
    assert results(stream.filter(remember)) == [[1], [2], [3]]
    stamped = (
        environment()
        .from_collection([[1], [2], [3]])
        .assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[0])
        )
    )
    assert results(stamped.filter(remember)) == [[1], [2], [3]]


def test_from_collection_leaves_its_values_unchanged() -> None:
    values = [[1], [2]]
    env = environment()
    stream = env.from_collection(values)

    def emptied(value: list[int]) -> list[int]:
        taken = list(value)
        value.clear()
        return taken

    assert results(stream.map(emptied)) == [[1], [2]]
    assert results(stream.map(emptied)) == [[1], [2]]
    assert values == [[1], [2]]


def test_iterator_that_changes_a_list_after_its_yield_gives_the_list_at_each_yield() -> None:
    def growing() -> Any:
        values: list[int] = []
        for number in range(3):
            values.append(number)
            yield values

    stream = environment().from_source(IteratorSource.of(growing), None, "growing")
    assert results(stream) == [[0], [0, 1], [0, 1, 2]]


def test_join_function_may_change_its_records() -> None:
    """Each record is in several pairs; the earlier results stay unchanged."""
    env = environment()
    left, right = (
        env.from_collection([[1], [2]]).assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[0])
        )
        for _ in range(2)
    )

    def joined(first: list[int], second: list[int]) -> list[int]:
        first.append(second.pop())
        return first

    keyed = left.join(right).where(lambda _: ALL).equal_to(lambda _: ALL)
    pairs = keyed.window(TumblingEventTimeWindows.of(10)).apply(joined)
    assert results(pairs) == [[1, 1], [1, 2], [2, 1], [2, 2]]


@pytest.mark.parametrize("reuse", [False, True])
def test_object_reuse_passes_values_on_without_copies(reuse: bool) -> None:
    taken: list[Any] = []
    env = environment()
    if reuse:
        env.get_config().enable_object_reuse()
    stream = env.from_collection([1, 2]).map(OneOfItsOwn(list, lambda kept, v: kept.append(v)))
    stream.map(lambda value: value).sink_to(CallbackSink(on_batch=taken.extend))
    env.execute()
    assert taken == ([[1, 2], [1, 2]] if reuse else [[1], [1, 2]])


class PairsThatBecomeMutable(FlatMapFunction[Any, Any]):
    """Most of its results are pairs that nobody can change."""

    def __init__(self, first: bool) -> None:
        self.first = first
        self.trail: list[int] = []

    def flat_map(self, value: Any) -> Any:
        for pair in ((value, value), (value, self.trail), (value, value), (value, self.trail)):
            self.trail.append(value)
            yield pair[::-1] if self.first else pair


@pytest.mark.parametrize("first", [False, True])
def test_tuple_with_a_list_is_copied_although_many_earlier_tuples_had_no_list(first: bool) -> None:
    stream = environment().from_collection([1, 2]).flat_map(PairsThatBecomeMutable(first))
    pairs = [pair[::-1] if first else pair for pair in results(stream)]
    trails = [trail for _, trail in pairs if isinstance(trail, list)]
    assert trails == [[1] * 2, [1] * 4, [1] * 4 + [2] * 2, [1] * 4 + [2] * 4]


class AnyKind(FlatMapFunction[Any, Any]):
    """Results of all kinds in turn, the same list among them."""

    def flat_map(self, value: Any) -> Any:
        trail: list[int] = []
        for result in (1, trail, "text", (1, 2), (1, 2, trail), 2, trail, (trail,)):
            trail.append(value)
            yield result


def test_mutable_results_among_results_of_other_kinds_are_copied() -> None:
    stream = environment().from_collection([0]).flat_map(AnyKind())
    assert results(stream) == [
        1, [0] * 2, "text", (1, 2), (1, 2, [0] * 5), 2, [0] * 7, ([0] * 8,),
    ]  # fmt: skip


TWO = [Types.INT(), Types.INT()]
NAMED = Types.ROW_NAMED(["a", "b"], TWO)


def streaming_or_batch(mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_runtime_mode(mode)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ((1, 2, 3), NAMED, "(1, 2, 3) has 3 fields, and its type has 2: RowTypeInfo(a: Integer,"),
        ([1], NAMED, "[1] has 1 field, and its type has 2"),
        (Row(1, 2, 3), NAMED, "has 3 fields, and its type has 2"),
        ((1,), Types.ROW(TWO), "(1,) has 1 field, and its type has 2"),
        ((1,), Types.TUPLE(TWO), "(1,) has 1 field, and its type has 2: TupleTypeInfo("),
        ((1, 2, 3), Types.TUPLE(TWO), "(1, 2, 3) has 3 fields, and its type has 2"),
        (
            (1, (2, 3, 4)),
            Types.TUPLE([Types.INT(), Types.TUPLE(TWO)]),
            "(2, 3, 4) has 3 fields, and its type has 2",
        ),
        (
            ((2, 3, 4), 1, 0),
            Types.TUPLE([Types.TUPLE(TWO), Types.INT()]),
            "((2, 3, 4), 1, 0) has 3 fields, and its type has 2",
        ),
    ],
)
def test_value_with_other_fields_than_its_declared_type_is_refused(
    value: Any, kind: Any, words: str
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(StreamError, match=re.escape(words)):
        env.from_collection([value], kind)
    results = env.from_collection([0]).map(lambda _: value, output_type=kind)
    with pytest.raises(OperatorError, match=re.escape(words)):
        list(results.execute_and_collect())


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_unknown_column_to_sum_is_reported_although_no_key_comes_twice(
    mode: RuntimeExecutionMode,
) -> None:
    rides = streaming_or_batch(mode).from_arrow(pa.table({"city": ["A", "B"], "fare": [1, 2]}))
    with pytest.raises(OperatorError, match=r"no column 'fares' to sum: \['city', 'fare'\]"):
        list(rides.key_by("city").sum("fares").execute_and_collect())


@pytest.mark.parametrize(
    ("mode", "sums"),
    [(RuntimeExecutionMode.STREAMING, [1, 3]), (RuntimeExecutionMode.BATCH, [3])],
)
def test_dictionaries_are_aggregated_by_field_name(
    mode: RuntimeExecutionMode, sums: list[int]
) -> None:
    """Dictionaries can be keyed by field name as well."""
    sales = [{"city": "A", "n": 1}, {"city": "A", "n": 2}]

    def keyed() -> Any:
        return streaming_or_batch(mode).from_collection(sales).key_by("city")

    found = list(keyed().sum("n").execute_and_collect())
    assert found == [{"city": "A", "n": n} for n in sums]
    assert list(keyed().max_by("n").execute_and_collect())[-1] == sales[1]
    assert sales == [{"city": "A", "n": 1}, {"city": "A", "n": 2}]
    with pytest.raises(OperatorError, match="KeyError: 'm'"):
        list(keyed().sum("m").execute_and_collect())
