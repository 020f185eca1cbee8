"""Functions of a stream and a broadcast one."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.state import MapStateDescriptor, StateError, ValueStateDescriptor
from flinkray.streaming.elements import MIN_TIMESTAMP
from flinkray.streaming.functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.broadcast import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
)
from flinkray.testing.operator_harness import OperatorHarness

BY_FIRST = Keys(lambda value: value[0])


RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")


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
