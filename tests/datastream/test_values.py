"""Who keeps, changes or hands on a value never sees what others do with theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flinkray.datastream import (
    AggregateFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Row
from flinkray.datastream.connectors import CallbackSink, IteratorSource
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows


@dataclasses.dataclass
class Trail:
    values: list[int] = dataclasses.field(default_factory=list)


def environment(parallelism: int = 1) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


def results(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as values:
        return list(values)


BY_VALUE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda value, _: value
)
ALL = 0


class Trails(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("trail"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        trail = self.state.value() or []
        trail.append(value)
        self.state.update(trail)
        yield trail


def test_stored_list_that_is_changed_after_an_emit_arrives_as_it_was_at_the_emit() -> None:
    trails = environment().from_collection([1, 2, 3]).key_by(lambda _: ALL).process(Trails())
    assert results(trails) == [[1], [1, 2], [1, 2, 3]]


class OneOfItsOwn(MapFunction[Any, Any]):
    """Puts out the same object each time."""

    def __init__(self, make: Callable[[], Any], change: Callable[[Any, Any], Any]) -> None:
        self.make, self.change = make, change

    def open(self, runtime_context: RuntimeContext) -> None:
        self.kept = self.make()

    def map(self, value: Any) -> Any:
        self.change(self.kept, value)
        return self.kept


@pytest.mark.parametrize(
    ("make", "change", "seen"),
    [
        (list, lambda kept, v: kept.append(v), list),
        (dict, lambda kept, v: kept.update({v: v}), list),
        (set, lambda kept, v: kept.add(v), sorted),
        (bytearray, lambda kept, v: kept.append(v), list),
        (Trail, lambda kept, v: kept.values.append(v), lambda kept: kept.values),
        (lambda: ([],), lambda kept, v: kept[0].append(v), lambda kept: kept[0]),
        (lambda: Row([]), lambda kept, v: kept[0].append(v), lambda kept: kept[0]),
        (lambda: Row(a=0), lambda kept, v: kept.__setitem__("a", v), lambda kept: [kept["a"]]),
        (
            lambda: np.zeros(4, int),
            lambda kept, v: kept.__setitem__(v, v),
            lambda kept: kept.tolist(),
        ),
    ],
    ids=["list", "dict", "set", "bytearray", "dataclass", "tuple", "row", "named row", "array"],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_map_that_emits_one_object_and_changes_it_gives_the_value_at_each_emit(
    make: Any, change: Any, seen: Any, keyed: bool
) -> None:
    stream = environment().from_collection([1, 2, 3])
    if keyed:
        stream = stream.key_by(lambda _: ALL)
    found = [list(seen(value)) for value in results(stream.map(OneOfItsOwn(make, change)))]
    expected, kept = [], make()
    for value in (1, 2, 3):
        change(kept, value)
        expected.append(list(seen(kept)))
    assert found == expected


class Growing(FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        growing: list[int] = []
        for number in range(value):
            growing.append(number)
            yield growing


@pytest.mark.parametrize("keyed", [False, True])
def test_flat_map_that_changes_a_list_after_its_yield_gives_the_list_at_each_yield(
    keyed: bool,
) -> None:
    stream = environment().from_collection([3])
    if keyed:
        stream = stream.key_by(lambda _: ALL)
    assert results(stream.flat_map(Growing())) == [[0], [0, 1], [0, 1, 2]]


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


def test_reduce_that_changes_its_first_argument_gives_correct_results() -> None:
    def extend(first: list[int], second: list[int]) -> list[int]:
        first.extend(second)
        return first

    stream = environment().from_collection([[1], [2], [3]]).key_by(lambda _: ALL)
    assert results(stream.reduce(extend)) == [[1], [1, 2], [1, 2, 3]]


def test_function_after_a_reduce_may_change_its_input() -> None:
    def emptied(value: list[int]) -> int:
        total = sum(value)
        value.clear()
        return total

    stream = environment().from_collection([[1], [2], [3]]).key_by(lambda _: ALL)
    assert results(stream.reduce(lambda a, b: [*a, *b]).map(emptied)) == [1, 3, 6]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_branches_of_a_stream_do_not_see_changes_by_other_branches(parallelism: int) -> None:
    def changed(by: str) -> Callable[[Any], Any]:
        def change(value: list[Any]) -> list[Any]:
            value.append(by)
            return value

        return change

    env = environment(parallelism)
    stream = env.from_collection([[1], [2]]).map(lambda value: value)
    found: dict[str, list[Any]] = {"a": [], "b": []}
    for name, taken in found.items():
        stream.map(changed(name)).sink_to(CallbackSink(taken.append))
    broadcast: list[Any] = []
    stream.broadcast().map(changed("c")).sink_to(CallbackSink(broadcast.append))
    env.execute()
    for name, taken in found.items():
        assert sorted(taken) == [[1, name], [2, name]]
    assert sorted(broadcast) == sorted([[1, "c"], [2, "c"]] * parallelism)


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


class Lists(AggregateFunction[Any, Any, Any]):
    """Changes its accumulator and puts it out as it is."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        acc_a.extend(acc_b)
        return acc_a


def test_accumulators_of_sliding_windows_are_not_shared() -> None:
    stream = environment().from_collection([1, 2, 3]).assign_timestamps_and_watermarks(BY_VALUE)
    windows = stream.key_by(lambda _: ALL).window(SlidingEventTimeWindows.of(4, 2))
    assert results(windows.aggregate(Lists())) == [[1], [1, 2, 3], [2, 3]]


class Emptying(ProcessWindowFunction[Any, Any, Any, Any]):
    """Changes the elements that it is given."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield [list(element) for element in elements]
        for element in elements:
            element.clear()


def test_window_function_may_change_its_elements() -> None:
    by_first = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, _: value[0]
    )
    stream = environment().from_collection([[1], [3]]).assign_timestamps_and_watermarks(by_first)
    windows = stream.key_by(lambda _: ALL).window(SlidingEventTimeWindows.of(4, 2))
    assert results(windows.process(Emptying())) == [[[1]], [[1], [3]], [[3]]]


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


def test_window_keeps_its_values_although_an_earlier_operator_changes_them() -> None:
    stream = environment().from_collection([1, 2, 3])
    kept = stream.map(OneOfItsOwn(list, lambda kept, v: kept.append(v)))
    stamped = kept.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: len(v))
    )
    windows = stamped.key_by(lambda _: ALL).window(TumblingEventTimeWindows.of(10))
    assert results(windows.aggregate(Lists())) == [[[1], [1, 2], [1, 2, 3]]]


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
def test_pair_with_a_list_is_copied_after_many_pairs_without_one(first: bool) -> None:
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
