"""Process functions on keyed streams."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.elements import Watermark
from flinkray.streaming.functions import (
    KeyedProcessFunction,
)
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.output_tag import OutputTag
from flinkray.testing.operator_harness import OperatorHarness, Record

BY_FIRST = Keys(lambda value: value[0])


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
