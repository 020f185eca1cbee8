"""Functions of one input: map, filter, flat map, process, reduce, projection and sink functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flinkray.state import StateError
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    SinkFunction,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operator_errors import operator_error
from flinkray.streaming.operators.basic import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProjectOperator,
    TagOperator,
)
from flinkray.streaming.operators.keyed import (
    BatchReduceOperator,
    KeyedFilterOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
    ReduceOperator,
)
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.process import KeyedProcessOperator, ProcessOperator
from flinkray.streaming.records.elements import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Block,
    Columns,
    Watermark,
)
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.simple import SinkFunctionOperator
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    BY_FIRST,
    PAIRS,
    Counting,
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)

SIDE: OutputTag[Any] = OutputTag("side")


class Applied(ProcessFunction[Any, Any]):
    def __init__(self, function: Any) -> None:
        self.function = function

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield self.function(value)


class AppliedByKey(KeyedProcessFunction[Any, Any, Any]):
    def __init__(self, function: Any) -> None:
        self.function = function

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield self.function(value)


OPERATORS: dict[str, Callable[[Any], StreamOperator]] = {
    "map": MapOperator,
    "filter": FilterOperator,
    "flat map": lambda f: FlatMapOperator(lambda value: [f(value)]),
    "generator": lambda f: FlatMapOperator(lambda value: (f(each) for each in [value])),
    "process": lambda f: ProcessOperator(Applied(f)),
    "keyed map": lambda f: KeyedMapOperator(f, BY_FIRST),
    "keyed filter": lambda f: KeyedFilterOperator(f, BY_FIRST),
    "keyed flat map": lambda f: KeyedFlatMapOperator(lambda value: [f(value)], BY_FIRST),
    "keyed process": lambda f: KeyedProcessOperator(AppliedByKey(f), BY_FIRST),
    "reduce": lambda f: ReduceOperator(lambda _, value: f(value), BY_FIRST),
    "batch reduce": lambda f: BatchReduceOperator(lambda _, value: f(value), BY_FIRST),
}
each_operator = pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)


@each_operator
@pytest.mark.parametrize("at", [None, [1, 2, 3]], ids=["without timestamps", "with timestamps"])
def test_error_of_a_function_names_operator_subtask_and_record(make: Any, at: Any) -> None:
    values = ("a", 4), ("a", 5), ("a", 6)
    assert_failure_is_told(make(unlike_five), *values, record=("a", 5), keyed=True, at=at)


@each_operator
def test_watermarks_pass_through_and_the_end_of_input_adds_no_result(make: Any) -> None:
    h = OperatorHarness(make(lambda value: value), keyed=True, side_outputs=["side"])
    assert_time_passes_and_the_end_adds_nothing(h)


@each_operator
def test_columns_become_rows_that_keep_their_timestamps(make: Any) -> None:
    h = OperatorHarness(make(lambda value: value), keyed=True)
    h.process_columns(columns([7, 8], k=["a", "b"], v=[1, 2]))
    h.finish()
    at = [MAX_TIMESTAMP] * 2 if isinstance(h.operator, BatchReduceOperator) else [7, 8]
    assert h.records() == [(Row(k="a", v=1), at[0]), (Row(k="b", v=2), at[1])]


# --- map, filter, flat map ------------------------------------------------------------------------


def test_map_keeps_the_timestamps_of_records() -> None:
    h = OperatorHarness(MapOperator(lambda value: value * 2))
    h.process(1, 2, at=[10, 20])
    h.process(3)
    assert h.records() == [(2, 10), (4, 20), (6, None)]


def test_results_of_a_map_are_sent_without_the_keys_of_its_input() -> None:
    h = OperatorHarness(MapOperator(abs))
    h.operator.process_block(Block([-1, -2], [10, 20], ["k", "k"]))
    (batch,) = h.batches()
    assert isinstance(batch, Block)
    assert (batch.values, batch.timestamps, batch.keys) == ([1, 2], [10, 20], None)


def test_map_function_is_opened_before_the_first_record_and_closed_once() -> None:
    calls: list[str] = []

    class Noted(MapFunction[Any, Any]):
        def open(self, runtime_context: Any) -> None:
            calls.append(f"open {runtime_context.get_task_name()}")

        def close(self) -> None:
            calls.append("close")

        def map(self, value: Any) -> Any:
            calls.append("map")

    h = OperatorHarness(MapOperator(Noted()))
    h.process(1)
    h.operator.close()
    h.operator.close()
    assert calls == ["open operator", "map", "close"]


class Nameless:
    def __repr__(self) -> str:
        raise OSError("no text")


def test_error_on_a_record_whose_repr_fails_names_its_type() -> None:
    operator = MapOperator(lambda value: unlike_five(5))
    error = failure(operator, lambda h: h.process(Nameless()))
    assert error.record == "<Nameless, whose __repr__ raised OSError>"


def test_filter_keeps_values_with_their_timestamps() -> None:
    h = OperatorHarness(FilterOperator(lambda value: value % 2))
    h.process(1, 2, 3, at=[10, 20, 30])
    h.process(4, 5)
    h.operator.process_block(Block([1, 2], None, ["k", "k"]))
    assert h.records() == [(1, 10), (3, 30), (5, None), (1, None)]


@pytest.mark.parametrize(
    "operator",
    [
        FilterOperator(lambda _: False),
        FlatMapOperator(lambda _: []),
        KeyedFilterOperator(lambda _: False, BY_FIRST),
        ProcessOperator(Applied(lambda _: (SIDE, 0))),
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_batch_without_results_is_not_emitted(operator: StreamOperator) -> None:
    h = OperatorHarness(operator, keyed=True)
    h.process(*PAIRS)
    h.process(*PAIRS, at=[1, 2, 3, 4])
    assert h.batches() == []


@pytest.mark.parametrize("kind", [FlatMapOperator, lambda f: KeyedFlatMapOperator(f, BY_FIRST)])
def test_flat_map_accepts_generators_lists_none_and_tagged_results(kind: Any) -> None:
    def function(value: Any) -> Any:
        number = value[1]
        if number == 2:
            return None
        return [(SIDE, number)] if number == 3 else (number + step for step in range(2))

    h = OperatorHarness(kind(function), keyed=True, side_outputs=["side"])
    h.process(*PAIRS, at=[6, 7, 8, 9])
    h.process(*PAIRS[2:])
    assert h.records() == [(1, 6), (2, 6), (4, 9), (5, 9), (4, None), (5, None)]
    assert h.side("side") == [3, 3]


def test_project_selects_fields_of_rows_tuples_and_columns() -> None:
    h = OperatorHarness(ProjectOperator((2, 0)))
    h.process((1, 2, 3), Row(a=1, b=2, c=3), Row(1, 2, 3), at=[5, 6, 7])
    h.process_columns(columns([8], a=[1], b=[2], c=[3]))
    named = Row.of(["c", "a"], [3, 1])
    assert h.records() == [((3, 1), 5), (named, 6), (Row(3, 1), 7), (named, 8)]
    assert isinstance(h.batches()[1], Columns)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_projection_names_the_record_with_too_few_fields() -> None:
    h = OperatorHarness(ProjectOperator((1,)), subtask_index=1, parallelism=3)
    with pytest.raises(IndexError) as caught:
        h.process((1, 2), (3,))
    error = operator_error(caught.value, "the task")
    assert (error.operator, error.subtask, error.record) == ("operator", "2/3", "(3,)")


def test_tag_operator_puts_the_number_of_the_stream_before_each_value() -> None:
    h = OperatorHarness(TagOperator(1))
    h.process("a", [2], at=[5, 6])
    h.process_columns(columns([7], a=[1]))
    assert h.records() == [((1, "a"), 5), ((1, [2]), 6), ((1, Row(a=1)), 7)]
    assert_time_passes_and_the_end_adds_nothing(h)


# --- keyed state ----------------------------------------------------------------------------------


class CountingMap(Counting, MapFunction[Any, Any]):
    def map(self, value: Any) -> Any:
        return (*value, self.next())


class EverySecond(Counting, FilterFunction[Any]):
    def filter(self, value: Any) -> bool:
        return self.next() % 2 == 0


class Repeated(Counting, FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        for _ in range(self.next()):
            yield value


class Count(Counting, KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.next(), ctx.timestamp()


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (
            lambda: KeyedMapOperator(CountingMap(), BY_FIRST),
            [(("a", 1, 1), 1), (("b", 2, 1), 2), (("a", 3, 2), 3), (("a", 4, 3), 4)],
            [("a", 0, 4), ("b", 0, 2), ("c", 0, 1)],
        ),
        (
            lambda: KeyedFilterOperator(EverySecond(), BY_FIRST),
            [(("a", 3), 3)],
            [("a", 0), ("b", 0)],
        ),
        (
            lambda: KeyedFlatMapOperator(Repeated(), BY_FIRST),
            [(("a", 1), 1), (("b", 2), 2), *[(("a", 3), 3)] * 2, *[(("a", 4), 4)] * 3],
            [*[("a", 0)] * 4, *[("b", 0)] * 2, ("c", 0)],
        ),
        (
            lambda: KeyedProcessOperator(Count(), BY_FIRST),
            [(("a", 1, 1), 1), (("b", 1, 2), 2), (("a", 2, 3), 3), (("a", 3, 4), 4)],
            [("a", 4, None), ("b", 2, None), ("c", 1, None)],
        ),
    ],
    ids=["map", "filter", "flat map", "process"],
)
def test_function_uses_the_state_of_the_key_also_after_a_restore(
    make: Any, before: Any, after: Any
) -> None:
    """PF-11"""
    h = OperatorHarness(make(), keyed=True)
    h.process(*PAIRS, at=[1, 2, 3, 4])
    assert h.records() == before
    restored = OperatorHarness(make(), keyed=True, restore=h.snapshot())
    restored.process(("a", 0), ("b", 0), ("c", 0))
    assert restored.values() == after


def test_state_on_a_stream_without_keys_raises_an_error_that_names_key_by() -> None:
    with pytest.raises(StateError, match="call key_by before it"):
        OperatorHarness(MapOperator(CountingMap()))


def test_keys_of_columns_are_those_of_the_key_column() -> None:
    h = OperatorHarness(KeyedMapOperator(CountingMap(), Keys("k")), keyed=True)
    h.process_columns(columns([7, 8, 9], k=["a", "b", "a"], v=[1, 2, 3]))
    assert h.records() == [(("a", 1, 1), 7), (("b", 2, 1), 8), (("a", 3, 2), 9)]


def test_keys_sent_with_a_batch_are_used_without_the_key_selector() -> None:
    h = OperatorHarness(KeyedMapOperator(CountingMap(), Keys(lambda value: 1 / 0)), keyed=True)
    h.operator.process_block(Block([("x", 1), ("y", 2)], None, ["same", "same"]))
    assert h.values() == [("x", 1, 1), ("y", 2, 2)]


def test_error_in_the_key_selector_names_the_record() -> None:
    operator = KeyedMapOperator(abs, Keys(unlike_five))
    assert_failure_is_told(operator, 4, 5, 6, record=5, keyed=True)


def add(a: Any, b: Any) -> Any:
    return a[0], a[1] + b[1]


def test_rolling_reduce_emits_every_update_and_continues_after_a_restore() -> None:
    """PF-08"""
    h = OperatorHarness(ReduceOperator(add, BY_FIRST), keyed=True)
    h.process(("a", 1), ("b", 5), ("a", 2), at=[9, 5, 4])
    h.process(("a", 3))
    assert h.records() == [(("a", 1), 9), (("b", 5), 5), (("a", 3), 4), (("a", 6), None)]
    restored = OperatorHarness(ReduceOperator(add, BY_FIRST), keyed=True, restore=h.snapshot())
    restored.process(("a", 2), ("c", 3))
    assert restored.values() == [("a", 8), ("c", 3)]


def test_batch_reduce_emits_only_final_values_once_at_the_end() -> None:
    """PF-08"""
    h = OperatorHarness(BatchReduceOperator(add, BY_FIRST), keyed=True)
    h.process(("a", 1), ("b", 5), ("a", 2), at=[3, 4, 9])
    assert h.values() == []
    h.finish()
    h.finish()
    assert h.records() == [(("a", 3), MAX_TIMESTAMP), (("b", 5), MAX_TIMESTAMP)]


# --- process functions ----------------------------------------------------------------------------


class Describe(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if value is None:
            return
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()
        if value == "side":
            yield SIDE, ctx.timer_service().current_processing_time()


def test_process_function_gets_timestamp_watermark_and_processing_time() -> None:
    """PF-14"""
    h = OperatorHarness(ProcessOperator(Describe()), side_outputs=["side"])
    h.process("a", None)
    h.watermark(5)
    h.processing_time(70)
    h.process("side", at=9)
    assert h.output() == [
        Record(("a", None, MIN_TIMESTAMP)), Watermark(5), Record(("side", 9, 5), 9),
    ]  # fmt: skip
    assert h.side("side") == [70]


class Nothing(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return None


def test_process_function_that_returns_none_emits_nothing() -> None:
    h = OperatorHarness(ProcessOperator(Nothing()))
    h.process(1, 2, at=[1, 2])
    h.process(3)
    assert h.batches() == []


def test_timer_on_a_stream_without_keys_raises_an_error_that_names_key_by() -> None:
    class Registers(ProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1)

    with pytest.raises(StreamError, match="call key_by before process"):
        OperatorHarness(ProcessOperator(Registers())).process(1)


# --- sink functions -------------------------------------------------------------------------------


class Noted(SinkFunction[Any]):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def open(self, runtime_context: Any) -> None:
        self.calls.append(("open", runtime_context.get_index_of_this_subtask()))

    def close(self) -> None:
        self.calls.append("close")

    def invoke(self, value: Any) -> None:
        self.calls.append(value)


def test_sink_function_is_opened_called_with_each_value_and_closed_once() -> None:
    sink = Noted()
    h = OperatorHarness(SinkFunctionOperator(sink), subtask_index=1, parallelism=2)
    h.process(1, 2, at=[3, 4])
    h.process_columns(columns([5], x=[3]))
    h.watermark(5)
    h.finish()
    for _ in range(2):
        h.operator.close()
    assert sink.calls == [("open", 1), 1, 2, Row(x=3), "close"]
    assert h.output() == []


def test_sink_function_marked_as_shared_makes_its_operator_shared() -> None:
    shared = Noted()
    shared.shared = True  # type: ignore[attr-defined]
    assert SinkFunctionOperator(shared).shared
    assert not SinkFunctionOperator(Noted()).shared


def test_error_of_a_sink_function_names_operator_subtask_and_record() -> None:
    assert_failure_is_told(SinkFunctionOperator(unlike_five), 4, 5, 6, record=5)
