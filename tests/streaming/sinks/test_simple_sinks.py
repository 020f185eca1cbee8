"""Sinks that call a function, collect or discard."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import CallbackSink, DiscardingSink, Sink
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.simple import CollectSink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns


def write(sink: Sink[Any], values: list[Any]) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(values).sink_to(sink)
    env.execute()


def test_callback_sink_calls_on_value_or_on_batch() -> None:
    values: list[Any] = []
    batches: list[Any] = []
    write(CallbackSink(values.append), [1, 2])
    write(CallbackSink(on_batch=batches.append), [1, 2])
    assert (values, batches) == ([1, 2], [[1, 2]])
    with pytest.raises(ValueError, match="either"):
        CallbackSink()


def test_callback_sink_gets_columns_as_a_record_batch_or_as_single_rows() -> None:
    values: list[Any] = []
    batches: list[Any] = []
    given = columns(x=[1, 2])
    for sink in (CallbackSink(values.append), CallbackSink(on_batch=batches.append)):
        OperatorHarness(SinkWriterOperator(sink)).process_columns(given)
    assert values == [Row(x=1), Row(x=2)]
    (batch,) = batches
    assert isinstance(batch, pa.RecordBatch)
    assert batch.equals(given.batch)


def test_callback_sink_is_shared_by_its_subtasks() -> None:
    assert SinkWriterOperator(CallbackSink(print)).shared


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


def test_discarding_sink_accepts_values_and_columns_and_commits_nothing() -> None:
    sink = DiscardingSink()
    assert not sink.has_committer
    h = OperatorHarness(SinkWriterOperator(sink))
    h.process(1, 2)
    h.process_columns(columns(x=[1]))
    assert h.snapshot().operator == OperatorHarness(SinkWriterOperator(sink)).snapshot().operator
    h.finish()
    assert h.output() == []
