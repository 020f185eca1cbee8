"""Sink functions, and plain functions as sinks."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.functions.functions import SinkFunction
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.simple import SinkFunctionOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import assert_failure_is_told, columns, unlike_five


class Noted(SinkFunction[Any]):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def open(self, runtime_context: Any) -> None:
        self.calls.append(("open", runtime_context.get_index_of_this_subtask()))

    def close(self) -> None:
        self.calls.append("close")

    def invoke(self, value: Any) -> None:
        self.calls.append(value)


def test_sink_function_is_opened_called_with_each_value_and_closed_once() -> None:
    sink = Noted()
    h = OperatorHarness(SinkFunctionOperator(sink), subtask_index=1, parallelism=2)
    h.process(1, 2, at=[3, 4])
    h.process(3)
    h.finish()
    for _ in range(2):
        h.operator.close()
    assert sink.calls == [("open", 1), 1, 2, 3, "close"]


def test_plain_function_is_accepted_as_sink_and_gets_columns_as_rows() -> None:
    values: list[Any] = []
    h = OperatorHarness(SinkFunctionOperator(values.append))
    h.process_columns(columns([5, 6], x=[1, 2]))
    assert values == [Row(x=1), Row(x=2)]


def test_sink_emits_no_watermark_status_or_result() -> None:
    h = OperatorHarness(SinkFunctionOperator(print))
    h.watermark(5)
    h.finish()
    assert h.output() == []


def test_sink_function_marked_as_shared_makes_its_operator_shared() -> None:
    shared = Noted()
    shared.shared = True  # type: ignore[attr-defined]
    assert SinkFunctionOperator(shared).shared
    assert not SinkFunctionOperator(Noted()).shared


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    assert_failure_is_told(SinkFunctionOperator(unlike_five), 4, 5, 6, record=5)
