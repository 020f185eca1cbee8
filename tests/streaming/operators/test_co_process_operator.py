"""Process functions of two streams without keys."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import CoProcessFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.two_inputs import CoProcessOperator
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_failure_is_told,
    assert_input_that_comes_back_holds_time_back,
    assert_time_is_the_lesser_of_two,
    columns,
    unlike_five,
)

SIDE: OutputTag[Any] = OutputTag("side")


class Sides(CoProcessFunction[Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield "first", value, ctx.timestamp()

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield "second", value, ctx.timer_service().current_watermark()


class Fails(CoProcessFunction[Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield unlike_five(value)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield unlike_five(value)


def test_co_process_calls_the_method_of_the_input_of_each_record() -> None:
    h = OperatorHarness(CoProcessOperator(Sides()))
    h.process(1, at=7)
    h.watermark(3)
    h.watermark(5, on=1)
    h.process(2, on=1)
    assert h.values() == [("first", 1, 7), ("second", 2, 3)]


def test_columns_of_each_input_become_rows_with_their_timestamps() -> None:
    h = OperatorHarness(CoProcessOperator(Sides()))
    for on in (0, 1):
        h.watermark(6, on=on)
    h.process_columns(columns([7, 8], x=[1, 2]))
    h.process_columns(columns([9], y=[3]), on=1)
    assert h.records() == [
        (("first", Row(x=1), 7), 7), (("first", Row(x=2), 8), 8), (("second", Row(y=3), 6), 9),
    ]  # fmt: skip


def test_both_inputs_may_emit_to_side_outputs_and_none_is_no_result() -> None:
    class Apart(CoProcessFunction[Any, Any, Any]):
        def process_element1(self, value: Any, ctx: Any) -> Any:
            return [(SIDE, value)]

        def process_element2(self, value: Any, ctx: Any) -> Any:
            return [(SIDE, -value)] if value else None

    h = OperatorHarness(CoProcessOperator(Apart()), side_outputs=["side"])
    h.process(1)
    h.process(0, 2, on=1)
    assert h.side("side") == [1, -2]
    assert h.batches() == []


def test_timer_on_a_stream_without_keys_raises_an_error_that_names_key_by() -> None:
    class Registers(Sides):
        def process_element1(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1)

    with pytest.raises(StreamError, match="call key_by before process"):
        OperatorHarness(CoProcessOperator(Registers())).process(1)


def test_watermark_is_the_lesser_of_both_inputs_and_the_end_adds_no_result() -> None:
    h = OperatorHarness(CoProcessOperator(Sides()))
    assert_time_is_the_lesser_of_two(h)
    h.finish()
    assert h.output() == []


def test_input_that_is_active_after_idleness_delays_the_watermark() -> None:
    assert_input_that_comes_back_holds_time_back(OperatorHarness(CoProcessOperator(Sides())))


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    for on in (0, 1):
        assert_failure_is_told(CoProcessOperator(Fails()), 4, 5, 6, on=on, record=5)
