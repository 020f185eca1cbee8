"""Process functions of two keyed streams."""

from __future__ import annotations

from typing import Any

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.functions.functions import KeyedCoProcessFunction
from flinkray.streaming.operators.two_inputs import KeyedCoProcessOperator
from flinkray.streaming.records.elements import Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_failure_is_told,
    assert_input_that_comes_back_holds_time_back,
    assert_time_is_the_lesser_of_two,
    columns,
    failure,
    unlike_five,
)


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


class Fails(KeyedCoProcessFunction[Any, Any, Any, Any]):
    """On records of the second input, and when the timers of the first one's fire."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value[1])

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield unlike_five(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield unlike_five(timestamp)


def harness(*keys: Keys, **context: Any) -> OperatorHarness:
    first, second = keys or (BY_FIRST, BY_FIRST)
    operator = KeyedCoProcessOperator(Matched(), first, second)
    return OperatorHarness(operator, keyed=True, **context)


def test_both_inputs_of_a_keyed_co_process_share_state_and_timers() -> None:
    h = harness()
    h.process(("a", 1), ("b", 2), at=0)
    h.process(("a", 3), ("c", 4), at=1, on=1)
    h.watermark(20)
    h.watermark(20, on=1)
    assert h.values() == [("matched", "a", 1, 3), ("alone", "b", 2, 10)]


def test_results_have_the_timestamp_of_their_record_or_timer() -> None:
    h = harness()
    h.process(("a", 1), ("b", 2), at=[0, 5])
    h.process(("a", 3), at=7, on=1)
    h.watermark(20)
    h.watermark(30, on=1)
    assert h.output() == [
        Record(("matched", "a", 1, 3), 7), Record(("alone", "b", 2, 15), 15), Watermark(20),
    ]  # fmt: skip


def test_columns_of_each_input_become_rows_with_the_keys_of_that_input() -> None:
    h = harness(Keys("k"), Keys("key"))
    h.process_columns(columns([0, 0], k=["a", "b"], v=[1, 2]))
    h.process_columns(columns([7], key=["b"], v=[3]), on=1)
    assert h.records() == [(("matched", "b", 2, 3), 7)]


def test_state_and_timers_are_kept_after_a_restore() -> None:
    h = harness()
    h.process(("a", 1), ("b", 2), at=0)
    restored = harness(restore=h.snapshot())
    restored.process(("a", 3), at=1, on=1)
    for on in (0, 1):
        restored.watermark(10, on=on)
    assert restored.values() == [("matched", "a", 1, 3), ("alone", "b", 2, 10)]


def test_watermark_is_the_lesser_of_both_inputs_and_the_end_fires_no_timer() -> None:
    h = harness()
    h.process(("a", 1), at=90)
    assert_time_is_the_lesser_of_two(h)
    h.finish()
    assert h.output() == []


def test_input_that_is_active_after_idleness_delays_the_watermark() -> None:
    assert_input_that_comes_back_holds_time_back(harness())


def test_error_on_a_record_names_operator_subtask_and_record() -> None:
    operator = KeyedCoProcessOperator(Fails(), BY_FIRST, BY_FIRST)
    assert_failure_is_told(
        operator, ("a", 4), ("b", 5), ("c", 6), on=1, record=("b", 5), keyed=True
    )


def test_error_in_a_timer_names_its_time_and_key() -> None:
    def act(h: OperatorHarness) -> None:
        h.process(("a", 5))
        h.watermark(10)
        h.watermark(10, on=1)

    error = failure(KeyedCoProcessOperator(Fails(), BY_FIRST, BY_FIRST), act, keyed=True)
    assert (error.record, error.occasion) == ("", "the timer for 5 of key 'a'")
