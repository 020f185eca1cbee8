"""Process functions on keyed streams."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.functions.functions import KeyedProcessFunction, TimeDomain
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.records.elements import Watermark
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_time_passes_and_the_end_adds_nothing,
    failure,
    unlike_five,
)

SIDE: OutputTag[Any] = OutputTag("side")


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


def test_timers_fire_with_their_key_before_the_watermark_is_forwarded() -> None:
    h = OperatorHarness(KeyedProcessOperator(Alarm(), BY_FIRST), keyed=True, side_outputs=["side"])
    h.process(("b", 7), ("a", 5), ("quiet", 6), ("a", 5), at=0)
    h.watermark(10)
    assert h.output() == [
        Record(("a", 5, 5, TimeDomain.EVENT_TIME), 5),
        Record(("b", 7, 7, TimeDomain.EVENT_TIME), 7),
        Watermark(10),
    ]
    assert h.side("side") == ["seven"]
    h.processing_time(50)
    assert h.output() == [Record(("a", 50, 50, TimeDomain.PROCESSING_TIME))]


class At(KeyedProcessFunction[Any, Any, Any]):
    """Registers a timer of event time, whose firing fails at 5."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        unlike_five(value)
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), unlike_five(timestamp)


def test_timers_are_kept_after_a_restore() -> None:
    h = OperatorHarness(KeyedProcessOperator(At(), BY_FIRST), keyed=True)
    h.process(("a", 7), ("b", 9))
    restored = OperatorHarness(
        KeyedProcessOperator(At(), BY_FIRST), keyed=True, restore=h.snapshot()
    )
    restored.watermark(8)
    assert restored.output() == [Record(("a", 7), 7), Watermark(8)]


def test_watermarks_pass_through_and_the_end_of_input_fires_no_timer() -> None:
    h = OperatorHarness(KeyedProcessOperator(At(), BY_FIRST), keyed=True)
    h.process(("a", 100))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_in_a_timer_names_its_time_and_key() -> None:
    class OnTime(At):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(value[1])

    def act(h: OperatorHarness) -> None:
        h.process(("a", 4), ("b", 5))
        h.watermark(10)

    error = failure(KeyedProcessOperator(OnTime(), BY_FIRST), act, keyed=True)
    assert (error.record, error.occasion) == ("", "the timer for 5 of key 'b'")
