"""Process functions of two streams."""

from __future__ import annotations

from typing import Any

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.functions import (
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.two_inputs import (
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from flinkray.testing.operator_harness import OperatorHarness

BY_FIRST = Keys(lambda value: value[0])


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
