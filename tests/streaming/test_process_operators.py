"""Process functions on plain, keyed, connected and broadcast streams, and interval joins."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.state import MapStateDescriptor, StateError, ValueStateDescriptor
from flinkray.streaming.elements import MIN_TIMESTAMP, Watermark, WatermarkStatus
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    ProcessJoinFunction,
)
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.broadcast import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
)
from flinkray.streaming.operators.interval_join import IntervalJoinOperator
from flinkray.streaming.operators.process import KeyedProcessOperator, ProcessOperator
from flinkray.streaming.operators.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from flinkray.streaming.output_tag import OutputTag
from flinkray.testing.operator_harness import OperatorHarness, Record

BY_FIRST = Keys(lambda value: value[0])
SIDE: OutputTag[Any] = OutputTag("side")
RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")


# --- process --------------------------------------------------------------------------------------


class Describe(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()
        if value == "side":
            yield SIDE, ctx.timer_service().current_processing_time()


def test_process_function_sees_timestamp_watermark_and_clock() -> None:
    """PF-14"""
    h = OperatorHarness(ProcessOperator(Describe()), side_outputs=["side"])
    h.process("a")
    h.watermark(5)
    h.processing_time(70)
    h.process("side", at=9)
    assert h.output() == [
        Record(("a", None, MIN_TIMESTAMP)), Watermark(5), Record(("side", 9, 5), 9),
    ]  # fmt: skip
    assert h.side("side") == [70]


def test_timers_without_keys_say_what_is_missing() -> None:
    class Registers(ProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1)

    with pytest.raises(StreamError, match="call key_by before process"):
        OperatorHarness(ProcessOperator(Registers())).process(1)


class Alarm(KeyedProcessFunction[Any, Any, Any]):
    """Two timers per record; the second is deleted by key "quiet"."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value[1])
        timers.register_processing_time_timer(value[1] * 10)
        if ctx.get_current_key() == "quiet":
            timers.delete_event_time_timer(value[1])
            timers.delete_processing_time_timer(value[1] * 10)
        return None

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.timestamp(), ctx.time_domain()
        if timestamp == 7:
            yield SIDE, "seven"


def test_timers_fire_with_their_key_and_before_the_watermark() -> None:
    h = OperatorHarness(KeyedProcessOperator(Alarm(), BY_FIRST), keyed=True, side_outputs=["side"])
    h.process(("b", 7), ("a", 5), ("quiet", 6), ("a", 5), at=0)
    h.watermark(10)
    assert h.output() == [
        Record(("a", 5, 5, 0), 5), Record(("b", 7, 7, 0), 7), Watermark(10),
    ]  # fmt: skip
    assert h.side("side") == ["seven"]
    h.processing_time(50)
    assert h.output() == [Record(("a", 50, None, 1))]


# --- connected ------------------------------------------------------------------------------------


class Both(CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any:
        return value + 1

    def map2(self, value: Any) -> Any:
        return value - 1 if value else None


class BothFlat(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield value
        yield SIDE, value

    def flat_map2(self, value: Any) -> Any:
        return [value, value] if value else None


def test_co_map_leaves_none_out() -> None:
    h = OperatorHarness(CoMapOperator(Both()))
    h.process(10, at=3)
    h.process(10, 0, 20, on=1)
    assert h.records() == [(11, 3), (9, None), (19, None)]


def test_co_flat_map_sends_to_sides_from_both_inputs() -> None:
    """PF-14"""
    h = OperatorHarness(CoFlatMapOperator(BothFlat()), side_outputs=["side"])
    h.process(1)
    h.process(2, 0, on=1)
    assert h.values() == [1, 2, 2]
    assert h.side("side") == [1]


def test_keyed_co_map_has_state_of_both_inputs() -> None:
    class Balance(CoMapFunction[Any, Any, Any]):
        def open(self, runtime_context: Any) -> None:
            self.sum = runtime_context.get_state(ValueStateDescriptor("sum", default_value=0))

        def map1(self, value: Any) -> Any:
            self.sum.update(self.sum.value() + value[1])
            return value[0], self.sum.value()

        def map2(self, value: Any) -> Any:
            self.sum.update(self.sum.value() - value[1])
            return value[0], self.sum.value()

    h = OperatorHarness(CoMapOperator(Balance(), (BY_FIRST, BY_FIRST)), keyed=True)
    h.process(("a", 5), ("b", 1))
    h.process(("a", 2), on=1)
    assert h.values() == [("a", 5), ("b", 1), ("a", 3)]


def test_time_of_two_inputs_is_the_lesser_and_idle_ones_do_not_count() -> None:
    h = OperatorHarness(CoMapOperator(Both()))
    h.watermark(10)
    assert h.output() == []
    h.watermark(4, on=1)
    assert h.output() == [Watermark(4)]
    h.status(True, on=1)
    assert h.output() == [Watermark(10)]
    h.status(True)
    assert h.output() == [WatermarkStatus(True)]


def test_co_process_sees_which_input_a_record_came_from() -> None:
    class Sides(CoProcessFunction[Any, Any, Any]):
        def process_element1(self, value: Any, ctx: Any) -> Any:
            yield "first", value, ctx.timestamp()

        def process_element2(self, value: Any, ctx: Any) -> Any:
            yield "second", value, ctx.timer_service().current_watermark()

    h = OperatorHarness(CoProcessOperator(Sides()))
    h.process(1, at=7)
    h.watermark(3)
    h.watermark(5, on=1)
    h.process(2, on=1)
    assert h.values() == [("first", 1, 7), ("second", 2, 3)]


def test_keyed_co_process_shares_state_and_timers() -> None:
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

    h = OperatorHarness(KeyedCoProcessOperator(Matched(), BY_FIRST, BY_FIRST), keyed=True)
    h.process(("a", 1), ("b", 2), at=0)
    h.process(("a", 3), ("c", 4), at=1, on=1)
    h.watermark(20)
    h.watermark(20, on=1)
    assert h.values() == [("matched", "a", 1, 3), ("alone", "b", 2, 10)]


# --- broadcast ------------------------------------------------------------------------------------


class ApplyRules(BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        factor = ctx.get_broadcast_state(RULES).get("factor")
        yield value * (factor or 1), ctx.current_watermark()

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put("factor", value)
        yield "rule", value


def test_broadcast_side_fills_state_that_the_other_reads() -> None:
    h = OperatorHarness(BroadcastProcessOperator(ApplyRules(), (RULES,)))
    h.process(5, at=1)
    h.process(3, on=1)
    h.process(5, at=2)
    assert h.values() == [(5, MIN_TIMESTAMP), ("rule", 3), (15, MIN_TIMESTAMP)]


def test_broadcast_state_cannot_be_changed_from_the_other_side_and_must_be_declared() -> None:
    class Changes(ApplyRules):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES).put("factor", value)

    with pytest.raises(StateError, match="read-only"):
        OperatorHarness(BroadcastProcessOperator(Changes(), (RULES,))).process(1)
    with pytest.raises(StateError, match="was not declared"):
        OperatorHarness(BroadcastProcessOperator(ApplyRules(), ())).process(1)


def test_keyed_broadcast_function_has_keys_timers_and_rules() -> None:
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

    h = OperatorHarness(KeyedBroadcastProcessOperator(Limits(), BY_FIRST, (RULES,)), keyed=True)
    h.process(10, on=1)
    h.process(("a", 6), ("b", 1), ("a", 6), at=5)
    h.process(20, on=1)
    h.watermark(100)
    h.watermark(100, on=1)
    assert h.values() == [("above", "a"), ("a", 12, 20, 0), ("b", 1, 20, 0)]


# --- interval join --------------------------------------------------------------------------------


class Pairs(ProcessJoinFunction[Any, Any, Any]):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        assert ctx.get_timestamp() == max(ctx.get_left_timestamp(), ctx.get_right_timestamp())
        yield left[1], right[1]


def join(lower: int, upper: int, **late: Any) -> OperatorHarness:
    operator = IntervalJoinOperator(Pairs(), lower, upper, BY_FIRST, BY_FIRST, **late)
    return OperatorHarness(operator, keyed=True, side_outputs=["side"])


def feed(h: OperatorHarness, *times: int) -> None:
    for time in times:
        h.process(("k", time), at=time)
        h.process(("k", time), at=time, on=1)


@pytest.mark.parametrize(
    ("lower", "upper", "differences"),
    [(-1, 1, {-1, 0, 1}), (0, 1, {0, 1}), (-1, 0, {-1, 0}), (0, 0, {0}), (-3, -1, {-3, -2, -1})],
)
def test_bounds_are_inclusive_and_results_carry_the_later_time(
    lower: int, upper: int, differences: set[int]
) -> None:
    """WI-15: (-1, 1) with both bounds exclusive is (0, 0)."""
    h = join(lower, upper)
    feed(h, 1, 2, 3, 4, 5)
    expected = {
        ((left, right), max(left, right))
        for left in range(1, 6)
        for right in range(1, 6)
        if right - left in differences
    }
    records = h.records()
    assert set(records) == expected
    assert len(records) == len(expected)


def test_only_records_of_one_key_join() -> None:
    h = join(-10, 10)
    h.process(("a", 1), at=1)
    h.process(("b", 1), at=1, on=1)
    assert h.values() == []


def test_join_needs_timestamps() -> None:
    """WI-15"""
    with pytest.raises(StreamError, match="no timestamps"):
        join(0, 1).process(("a", 1))


def test_late_records_do_not_join() -> None:
    """WI-15"""
    h = join(-1, 1, late_left=SIDE)
    h.watermark(5)
    h.watermark(5, on=1)
    h.process(("k", 4), at=4)
    h.process(("k", 5), at=5, on=1)
    assert h.values() == []
    assert h.side("side") == [("k", 4)]
    h.process(("k", 6), at=6)
    assert h.values() == [(6, 5)]


def test_buffers_are_cleaned_by_the_watermark() -> None:
    """WI-15"""
    h = join(0, 1)
    feed(h, 1, 2, 3, 4, 5)
    for on in (0, 1):
        h.watermark(4, on=on)
    operator: Any = h.operator
    assert sorted(operator.left["k"]) == [4, 5]
    assert sorted(operator.right["k"]) == [5]
    for on in (0, 1):
        h.watermark(7, on=on)
    assert operator.left == operator.right == {}


def test_empty_interval_is_refused() -> None:
    with pytest.raises(StreamError, match="above the upper bound"):
        join(2, 1)
