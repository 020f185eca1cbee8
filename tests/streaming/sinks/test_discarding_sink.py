"""The sink that keeps nothing."""

from __future__ import annotations

from flinkray.datastream.connectors import DiscardingSink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns


def test_discarding_sink_accepts_values_and_columns_and_commits_nothing() -> None:
    sink = DiscardingSink()
    assert not sink.has_committer
    h = OperatorHarness(SinkWriterOperator(sink))
    h.process(1, 2)
    h.process_columns(columns(x=[1]))
    assert h.snapshot().operator == OperatorHarness(SinkWriterOperator(sink)).snapshot().operator
    h.finish()
    assert h.output() == []
