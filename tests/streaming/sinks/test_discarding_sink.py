"""The sink that keeps nothing."""

from __future__ import annotations

from flinkray.datastream.connectors import DiscardingSink
from flinkray.streaming.sinks.writer_operator import SinkWriterOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns


def test_records_of_both_kinds_are_taken_and_nothing_has_to_be_committed() -> None:
    sink = DiscardingSink()
    assert not sink.has_committer
    h = OperatorHarness(SinkWriterOperator(sink))
    h.process(1, 2)
    h.process_columns(columns(x=[1]))
    assert h.snapshot().operator == OperatorHarness(SinkWriterOperator(sink)).snapshot().operator
    h.finish()
    assert h.output() == []
