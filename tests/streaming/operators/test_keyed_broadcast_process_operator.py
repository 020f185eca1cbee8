"""Functions of a keyed stream and a broadcast one."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.state import MapStateDescriptor, StateError, ValueStateDescriptor
from flinkray.streaming.functions.functions import KeyedBroadcastProcessFunction, TimeDomain
from flinkray.streaming.operators.broadcast import KeyedBroadcastProcessOperator
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_failure_is_told,
    assert_input_that_comes_back_holds_time_back,
    assert_time_is_the_lesser_of_two,
    columns,
    failure,
    unlike_five,
)

RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")


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


def harness(keys: Keys = BY_FIRST, **context: Any) -> OperatorHarness:
    operator = KeyedBroadcastProcessOperator(Limits(), keys, (RULES,))
    return OperatorHarness(operator, keyed=True, **context)


def test_keyed_broadcast_function_has_keyed_state_timers_and_broadcast_state() -> None:
    h = harness()
    h.process(10, on=1)
    h.process(("a", 6), ("b", 1), ("a", 6), at=5)
    h.process(20, on=1)
    h.watermark(100)
    h.watermark(100, on=1)
    assert h.values() == [
        ("above", "a"),
        ("a", 12, 20, TimeDomain.EVENT_TIME),
        ("b", 1, 20, TimeDomain.EVENT_TIME),
    ]


def test_columns_of_each_input_become_rows_with_their_timestamps() -> None:
    h = harness(Keys("k"))
    h.process(10, on=1)
    h.process_columns(columns([7, 8, 9], k=["a", "b", "a"], v=[6, 11, 5]))
    assert h.records() == [(("above", "b"), 8), (("above", "a"), 9)]


def test_keyed_state_broadcast_rules_and_timers_are_kept_after_a_restore() -> None:
    h = harness()
    h.process(10, on=1)
    h.process(("a", 6), at=5)
    restored = harness(restore=h.snapshot())
    for on in (0, 1):
        restored.watermark(100, on=on)
    assert restored.records() == [(("a", 6, 10, TimeDomain.EVENT_TIME), 100)]
    restored.process(("a", 6), at=106)
    assert restored.records() == [(("above", "a"), 106)]


def test_keyed_state_is_refused_for_broadcast_records_and_in_open() -> None:
    class Looks(Limits):
        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES)["limit"] = value
            yield self.sum.value()

    class LooksEarly(Limits):
        def open(self, runtime_context: Any) -> None:
            super().open(runtime_context)
            self.sum.update(1)

    h = OperatorHarness(KeyedBroadcastProcessOperator(Looks(), BY_FIRST, (RULES,)), keyed=True)
    no_key = "there is none here: use them where a record"
    with pytest.raises(StateError, match=no_key):
        h.process(10, on=1)
    h.process(("a", 6))
    with pytest.raises(StateError, match=no_key):
        h.process(20, on=1)  # nor is it that of the last record
    early = KeyedBroadcastProcessOperator(LooksEarly(), BY_FIRST, (RULES,))
    with pytest.raises(StateError, match=no_key):
        OperatorHarness(early, keyed=True)


def test_keyed_side_cannot_change_broadcast_state_and_broadcast_side_has_no_key() -> None:
    class Changes(Limits):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES)["limit"] = 1

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_current_key()

    h = OperatorHarness(KeyedBroadcastProcessOperator(Changes(), BY_FIRST, (RULES,)), keyed=True)
    with pytest.raises(StateError, match="read-only"):
        h.process(("a", 1))
    with pytest.raises(AttributeError):
        h.process(1, on=1)


def test_watermark_is_the_lesser_of_both_inputs_and_the_end_fires_no_timer() -> None:
    h = harness()
    h.process(10, on=1)
    h.process(("a", 1), at=5)
    assert_time_is_the_lesser_of_two(h)
    h.finish()
    assert h.output() == []


def test_input_that_is_active_after_idleness_delays_the_watermark() -> None:
    assert_input_that_comes_back_holds_time_back(harness())


class Fails(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(5)
        yield unlike_five(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        yield unlike_five(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield unlike_five(timestamp)


def failing() -> KeyedBroadcastProcessOperator:
    return KeyedBroadcastProcessOperator(Fails(), BY_FIRST, (RULES,))


def test_error_on_a_record_of_either_input_names_the_record() -> None:
    assert_failure_is_told(failing(), ("a", 4), ("b", 5), ("c", 6), record=("b", 5), keyed=True)
    assert_failure_is_told(failing(), 4, 5, 6, on=1, record=5, keyed=True)


def test_error_in_a_timer_names_its_time_and_key() -> None:
    def act(h: OperatorHarness) -> None:
        h.process(("a", 1))
        h.watermark(10)
        h.watermark(10, on=1)

    error = failure(failing(), act, keyed=True)
    assert (error.record, error.occasion) == ("", "the timer for 5 of key 'a'")
