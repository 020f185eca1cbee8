"""Functions of a stream without keys and a broadcast one."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.state import MapStateDescriptor, StateError
from flinkray.streaming.functions.functions import BroadcastProcessFunction
from flinkray.streaming.operators.broadcast import BroadcastProcessOperator
from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_failure_is_told,
    assert_input_that_comes_back_holds_time_back,
    assert_time_is_the_lesser_of_two,
    columns,
    unlike_five,
)

RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")


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
    h.process(3, on=1)
    h.process(5, at=2)
    assert h.values() == [(5, MIN_TIMESTAMP), ("rule", 3), (15, MIN_TIMESTAMP)]


def test_broadcast_state_must_be_declared_and_records_cannot_change_it() -> None:
    class Changes(ApplyRules):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(RULES).put("factor", value)

    with pytest.raises(StateError, match="read-only"):
        OperatorHarness(BroadcastProcessOperator(Changes(), (RULES,))).process(1)
    with pytest.raises(StateError, match="was not declared"):
        OperatorHarness(BroadcastProcessOperator(ApplyRules(), ())).process(1)


def harness(**context: Any) -> OperatorHarness:
    return OperatorHarness(BroadcastProcessOperator(ApplyRules(), (RULES,)), **context)


def test_results_of_both_inputs_have_the_timestamps_of_their_records() -> None:
    h = harness()
    h.watermark(4)
    h.watermark(3, on=1)
    h.process(2, at=8, on=1)
    h.process(5, 6, at=[9, 10])
    assert h.records() == [(("rule", 2), 8), ((10, 3), 9), ((12, 3), 10)]


def test_columns_of_each_input_become_rows() -> None:
    class OfRows(ApplyRules):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield from super().process_element(value.x, ctx)

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            yield from super().process_broadcast_element(value.factor, ctx)

    h = OperatorHarness(BroadcastProcessOperator(OfRows(), (RULES,)))
    h.process_columns(columns([6], factor=[3]), on=1)
    h.process_columns(columns([7, 8], x=[1, 2]))
    assert h.records() == [
        (("rule", 3), 6), ((3, MIN_TIMESTAMP), 7), ((6, MIN_TIMESTAMP), 8),
    ]  # fmt: skip


def test_broadcast_state_is_restored_from_the_snapshot() -> None:
    h = harness()
    h.process(3, on=1)
    snapshot = h.snapshot()
    h.process(4, on=1)
    restored = harness(restore=snapshot)
    restored.process(5)
    assert restored.values() == [(15, MIN_TIMESTAMP)]


def test_watermark_is_the_lesser_of_both_inputs_and_the_end_adds_no_result() -> None:
    h = harness()
    assert_time_is_the_lesser_of_two(h)
    h.finish()
    assert h.output() == []


def test_input_that_is_active_after_idleness_delays_the_watermark() -> None:
    assert_input_that_comes_back_holds_time_back(harness())


def test_error_on_a_record_of_either_input_names_the_record() -> None:
    class Fails(ApplyRules):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield unlike_five(value)

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            yield unlike_five(value)

    for on in (0, 1):
        operator = BroadcastProcessOperator(Fails(), (RULES,))
        assert_failure_is_told(operator, 4, 5, 6, on=on, record=5)
