"""Process functions on streams without keys."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    ProcessFunction,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.process import ProcessOperator
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Watermark
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    unlike_five,
)

SIDE: OutputTag[Any] = OutputTag("side")


class Describe(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()
        if value == "side":
            yield SIDE, ctx.timer_service().current_processing_time()


def test_process_function_gets_timestamp_watermark_and_processing_time() -> None:
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


def test_timer_on_a_stream_without_keys_raises_an_error_that_names_key_by() -> None:
    class Registers(ProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1)

    with pytest.raises(StreamError, match="call key_by before process"):
        OperatorHarness(ProcessOperator(Registers())).process(1)


def test_function_gets_columns_as_rows_with_their_timestamps() -> None:
    h = OperatorHarness(ProcessOperator(Describe()))
    h.process_columns(columns([7, 8], x=[1, 2]))
    h.process_columns(columns(x=[3]))
    assert h.records() == [
        ((Row(x=1), 7, MIN_TIMESTAMP), 7),
        ((Row(x=2), 8, MIN_TIMESTAMP), 8),
        ((Row(x=3), None, MIN_TIMESTAMP), None),
    ]


def test_process_function_that_returns_none_emits_nothing() -> None:
    class Nothing(ProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            return None

    h = OperatorHarness(ProcessOperator(Nothing()))
    h.process(1, 2, at=[1, 2])
    h.process(3)
    assert h.batches() == []


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = OperatorHarness(ProcessOperator(Describe()), side_outputs=["side"])
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    class Fails(ProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield unlike_five(value)

    assert_failure_is_told(ProcessOperator(Fails()), 4, 5, 6, record=5)
    assert_failure_is_told(ProcessOperator(Fails()), 4, 5, 6, record=5, at=[1, 2, 3])
