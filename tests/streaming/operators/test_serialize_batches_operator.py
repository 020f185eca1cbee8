"""Columns as values, for whoever collects them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flinkray.streaming.columnar import arrow_batches
from flinkray.streaming.columnar.arrow_batches import SerializeBatchesOperator, deserialized
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import Types
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_time_passes_and_the_end_adds_nothing,
    columns,
)


def batches(h: OperatorHarness) -> list[pa.RecordBatch]:
    return [deserialized(value) for value in h.values()]


def test_serialized_columns_are_unchanged_and_have_no_timestamps() -> None:
    h = OperatorHarness(SerializeBatchesOperator())
    h.process_columns(columns([5, 6], x=[1, 2], y=["a", None]))
    ((value, timestamp),) = h.records()
    assert deserialized(value).to_pydict() == {"x": [1, 2], "y": ["a", None]}
    assert timestamp is None


def test_rows_become_columns_of_their_declared_type() -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.STRING()])
    h = OperatorHarness(SerializeBatchesOperator(kind))
    h.process(Row(a=1, b="x"), Row(a=2, b=None))
    (batch,) = batches(h)
    assert batch.schema == pa.schema([("a", pa.int16()), ("b", pa.string())])
    assert batch.num_rows == 2


def test_values_of_mixed_types_cannot_be_serialized_as_a_column() -> None:
    h = OperatorHarness(SerializeBatchesOperator())
    with pytest.raises(StreamError, match="declare an output type"):
        h.process(1, "two")


def test_large_batch_is_serialized_in_several_independent_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_batches, "MOST_BYTES", 4000)
    h = OperatorHarness(SerializeBatchesOperator())
    h.process_columns(columns(x=list(range(2000))))
    parts = batches(h)
    assert len(parts) == 4
    assert all(len(value) < 5000 for value in h.values())
    assert pa.Table.from_batches(parts)["x"].to_pylist() == list(range(2000))


def test_empty_batches_are_not_serialized() -> None:
    h = OperatorHarness(SerializeBatchesOperator())
    h.process()
    h.process_columns(columns(x=[]))
    assert h.values() == []


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    assert_time_passes_and_the_end_adds_nothing(OperatorHarness(SerializeBatchesOperator()))
