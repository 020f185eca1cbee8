"""Functions of two inputs: map, flat map and process of connected and broadcast streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flinkray.state import MapStateDescriptor, StateError, ValueStateDescriptor
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    TimeDomain,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.broadcast import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
)
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    BY_FIRST,
    Counting,
    assert_failure_is_told,
    assert_input_that_comes_back_holds_time_back,
    assert_time_is_the_lesser_of_two,
    columns,
    failure,
    unlike_five,
)

SIDE: OutputTag[Any] = OutputTag("side")
RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")


class Mapped(CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any:
        return unlike_five(value)

    map2 = map1


class FlatMapped(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield unlike_five(value)

    flat_map2 = flat_map1


class Processed(CoProcessFunction[Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield unlike_five(value)

    process_element2 = process_element1


class ProcessedByKey(KeyedCoProcessFunction[Any, Any, Any, Any]):
    """Fails on records that end with 5, and when the timer for 5 fires."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(5)
        yield unlike_five(value)

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield unlike_five(timestamp)


class Broadcast(BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield unlike_five(value)

    process_broadcast_element = process_element


class BroadcastByKey(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(5)
        yield unlike_five(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        yield unlike_five(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield unlike_five(timestamp)


OPERATORS: dict[str, Callable[[], StreamOperator]] = {
    "map": lambda: CoMapOperator(Mapped()),
    "keyed map": lambda: CoMapOperator(Mapped(), (BY_FIRST, BY_FIRST)),
    "flat map": lambda: CoFlatMapOperator(FlatMapped()),
    "keyed flat map": lambda: CoFlatMapOperator(FlatMapped(), (BY_FIRST, BY_FIRST)),
    "process": lambda: CoProcessOperator(Processed()),
    "keyed process": lambda: KeyedCoProcessOperator(ProcessedByKey(), BY_FIRST, BY_FIRST),
    "broadcast": lambda: BroadcastProcessOperator(Broadcast(), (RULES,)),
    "keyed broadcast": lambda: KeyedBroadcastProcessOperator(BroadcastByKey(), BY_FIRST, (RULES,)),
}
each_operator = pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)


@each_operator
@pytest.mark.parametrize("on", [0, 1], ids=["first input", "second input"])
def test_error_on_a_record_of_either_input_names_the_record(make: Any, on: int) -> None:
    values = ("a", 4), ("b", 5), ("c", 6)
    assert_failure_is_told(make(), *values, record=("b", 5), on=on, keyed=True)


@pytest.mark.parametrize("name", ["keyed process", "keyed broadcast"])
def test_error_in_a_timer_names_its_time_and_key(name: str) -> None:
    def act(h: OperatorHarness) -> None:
        h.process(("a", 1))
        h.watermark(10)
        h.watermark(10, on=1)

    error = failure(OPERATORS[name](), act, keyed=True)
    assert (error.record, error.occasion) == ("", "the timer for 5 of key 'a'")


@each_operator
def test_watermark_is_the_lesser_of_both_inputs_and_the_end_adds_no_result(make: Any) -> None:
    h = OperatorHarness(make(), keyed=True)
    assert_time_is_the_lesser_of_two(h)
    h.process(("a", 1))
    h.output()
    h.finish()
    assert h.output() == []


@each_operator
def test_input_that_is_active_after_idleness_delays_the_watermark(make: Any) -> None:
    assert_input_that_comes_back_holds_time_back(OperatorHarness(make(), keyed=True))


@each_operator
def test_columns_of_each_input_become_rows_that_keep_their_timestamps(make: Any) -> None:
    h = OperatorHarness(make(), keyed=True)
    h.process_columns(columns([7, 8], x=[1, 2]))
    h.process_columns(columns([9], y=[3]), on=1)
    assert h.records() == [(Row(x=1), 7), (Row(x=2), 8), (Row(y=3), 9)]


# --- map and flat map -----------------------------------------------------------------------------


class Both(CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any:
        return value + 1

    def map2(self, value: Any) -> Any:
        return value - 1 if value else None


def test_co_map_emits_no_record_for_a_result_of_none() -> None:
    h = OperatorHarness(CoMapOperator(Both()))
    h.process(10, at=3)
    h.process(10, 0, 20, on=1)
    h.process(10, 0, 20, at=[4, 5, 6], on=1)
    assert h.records() == [(11, 3), (9, None), (19, None), (9, 4), (19, 6)]


class BothFlat(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield value
        yield SIDE, value

    def flat_map2(self, value: Any) -> Any:
        return [value, value] if value else None


def test_co_flat_map_emits_results_and_side_output_of_both_inputs() -> None:
    """PF-14"""
    h = OperatorHarness(CoFlatMapOperator(BothFlat()), side_outputs=["side"])
    h.process(1)
    h.process(2, 0, 7, at=[6, 7, 8], on=1)
    assert h.records() == [(1, None), (2, 6), (2, 6), (7, 8), (7, 8)]
    assert h.side("side") == [1]


class Numbered(Counting, CoFlatMapFunction[Any, Any, Any], CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any:
        return 1, value[0], self.next()

    def map2(self, value: Any) -> Any:
        return 2, value[0], self.next()

    def flat_map1(self, value: Any) -> Any:
        yield self.map1(value)

    def flat_map2(self, value: Any) -> Any:
        yield self.map2(value)


@pytest.mark.parametrize("kind", [CoMapOperator, CoFlatMapOperator])
def test_both_inputs_share_the_state_of_a_key_also_after_a_restore(kind: Any) -> None:
    """Each input has its own key column."""

    def harness(**context: Any) -> OperatorHarness:
        keys = Keys("k"), Keys("key")
        return OperatorHarness(kind(Numbered(), keys), keyed=True, **context)

    h = harness()
    h.process_columns(columns([7, 8], k=["a", "b"]))
    h.process_columns(columns([9], key=["a"]), on=1)
    assert h.records() == [((1, "a", 1), 7), ((1, "b", 1), 8), ((2, "a", 2), 9)]
    restored = harness(restore=h.snapshot())
    restored.process(Row(key="a"), Row(key="c"), on=1)
    assert restored.values() == [(2, "a", 3), (2, "c", 1)]


# --- process functions ----------------------------------------------------------------------------


class Sides(CoProcessFunction[Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield "first", value, ctx.timestamp()
        yield SIDE, value

    def process_element2(self, value: Any, ctx: Any) -> Any:
        if not value:
            return None
        return [("second", value, ctx.timer_service().current_watermark()), (SIDE, -value)]


def test_co_process_calls_the_method_of_the_input_of_each_record() -> None:
    h = OperatorHarness(CoProcessOperator(Sides()), side_outputs=["side"])
    h.process(1, at=7)
    h.watermark(3)
    h.watermark(5, on=1)
    h.process(2, 0, on=1)
    assert h.values() == [("first", 1, 7), ("second", 2, 3)]
    assert h.side("side") == [1, -2]


def test_timer_on_a_stream_without_keys_raises_an_error_that_names_key_by() -> None:
    class Registers(Sides):
        def process_element1(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1)

    with pytest.raises(StreamError, match="call key_by before process"):
        OperatorHarness(CoProcessOperator(Registers())).process(1)


class Matched(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.waiting = runtime_context.get_state(ValueStateDescriptor("waiting"))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.waiting.update(value[1])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        if self.waiting.value() is not None:
            yield "matched", ctx.get_current_key(), self.waiting.value(), value[1]
            self.waiting.clear()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        if self.waiting.value() is not None:
            yield "alone", ctx.get_current_key(), self.waiting.value(), timestamp


def test_inputs_of_a_keyed_co_process_share_state_and_timers_after_a_restore() -> None:
    def harness(**context: Any) -> OperatorHarness:
        operator = KeyedCoProcessOperator(Matched(), BY_FIRST, BY_FIRST)
        return OperatorHarness(operator, keyed=True, **context)

    h = harness()
    h.process(("a", 1), ("b", 2), at=[0, 5])
    for each in (harness(restore=h.snapshot()), h):
        each.process(("a", 3), ("c", 4), at=7, on=1)
        each.watermark(20)
        each.watermark(30, on=1)
        assert each.output() == [
            Record(("matched", "a", 1, 3), 7), Record(("alone", "b", 2, 15), 15), Watermark(20),
        ]  # fmt: skip


# --- broadcast state ------------------------------------------------------------------------------


class ApplyRules(BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        factor = ctx.get_broadcast_state(RULES).get("factor")
        yield value * (factor or 1), ctx.current_watermark()

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put("factor", value)
        yield "rule", value


def test_broadcast_function_processes_records_with_the_state_of_the_broadcast_side() -> None:
    h = OperatorHarness(BroadcastProcessOperator(ApplyRules(), (RULES,)))
    h.process(5, at=1)
    h.watermark(4)
    h.watermark(3, on=1)
    h.process(3, at=8, on=1)
    h.process(5, at=9)
    assert h.records() == [((5, MIN_TIMESTAMP), 1), (("rule", 3), 8), ((15, 3), 9)]
    snapshot = h.snapshot()
    h.process(4, on=1)
    restored = OperatorHarness(BroadcastProcessOperator(ApplyRules(), (RULES,)), restore=snapshot)
    restored.process(5)
    assert restored.values() == [(15, MIN_TIMESTAMP)]


def test_broadcast_state_must_be_declared_and_records_cannot_change_it() -> None:
    class Changes(ApplyRules):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES).put("factor", value)

    with pytest.raises(StateError, match="read-only"):
        OperatorHarness(BroadcastProcessOperator(Changes(), (RULES,))).process(1)
    with pytest.raises(StateError, match="was not declared"):
        OperatorHarness(BroadcastProcessOperator(ApplyRules(), ())).process(1)


class Limits(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", default_value=0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.sum.update(self.sum.value() + value[1])
        ctx.timer_service().register_event_time_timer(100)
        if self.sum.value() > ctx.get_broadcast_state(RULES)["limit"]:
            yield "above", ctx.get_current_key()

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES)["limit"] = value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        limit = ctx.get_broadcast_state(RULES)["limit"]
        yield ctx.get_current_key(), self.sum.value(), limit, ctx.time_domain()


def limits(function: Any, **context: Any) -> OperatorHarness:
    operator = KeyedBroadcastProcessOperator(function, BY_FIRST, (RULES,))
    return OperatorHarness(operator, keyed=True, **context)


def test_keyed_broadcast_function_has_keyed_state_timers_and_broadcast_state() -> None:
    h = limits(Limits())
    h.process(10, on=1)
    h.process(("a", 6), ("b", 1), ("a", 6), at=5)
    h.process(20, on=1)
    assert h.values() == [("above", "a")]
    for each in (limits(Limits(), restore=h.snapshot()), h):
        for on in (0, 1):
            each.watermark(100, on=on)
        assert sorted(each.records()) == [
            (("a", 12, 20, TimeDomain.EVENT_TIME), 100), (("b", 1, 20, TimeDomain.EVENT_TIME), 100),
        ]  # fmt: skip


def test_keyed_state_is_refused_for_broadcast_records_and_in_open() -> None:
    class Looks(Limits):
        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES)["limit"] = value
            yield self.sum.value()

    class LooksEarly(Limits):
        def open(self, runtime_context: Any) -> None:
            super().open(runtime_context)
            self.sum.update(1)

    h = limits(Looks())
    no_key = "there is none here: use them where a record"
    with pytest.raises(StateError, match=no_key):
        h.process(10, on=1)
    h.process(("a", 6))
    with pytest.raises(StateError, match=no_key):
        h.process(20, on=1)  # nor is it that of the last record
    with pytest.raises(StateError, match=no_key):
        limits(LooksEarly())


def test_keyed_side_cannot_change_broadcast_state_and_broadcast_side_has_no_key() -> None:
    class Changes(Limits):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES)["limit"] = 1

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_current_key()

    h = limits(Changes())
    with pytest.raises(StateError, match="read-only"):
        h.process(("a", 1))
    with pytest.raises(AttributeError):
        h.process(1, on=1)
