"""Results that wait in the client's process."""

from __future__ import annotations

import pytest

from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.simple import CollectSink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns


def test_collect_sink_returns_values_and_rows_in_order_once() -> None:
    sink = CollectSink()
    h = OperatorHarness(SinkWriterOperator(sink))
    h.process(1, 2)
    h.process_columns(columns(x=[3]))
    assert len(sink) == 3
    assert sink.pop() == 1
    assert sink.take_all() == [2, Row(x=3)]
    assert sink.take_all() == []
    with pytest.raises(IndexError):
        sink.pop()


def test_collect_sink_is_shared_by_its_subtasks() -> None:
    assert SinkWriterOperator(CollectSink()).shared
