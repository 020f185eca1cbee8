"""Process functions on streams without keys."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.elements import MIN_TIMESTAMP, Watermark
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions import (
    ProcessFunction,
)
from flinkray.streaming.operators.process import ProcessOperator
from flinkray.streaming.output_tag import OutputTag
from flinkray.testing.operator_harness import OperatorHarness, Record

SIDE: OutputTag[Any] = OutputTag("side")


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
