"""Functions of Arrow batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flinkray.streaming.columnar.arrow_batches import MapBatchesOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import Types
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)


def test_map_batches_accepts_batches_tables_lists_and_none_and_refuses_others() -> None:
    def function(batch: Any) -> Any:
        table = pa.Table.from_batches([batch])
        return [table, None, [batch.slice(0, 1)]]

    h = OperatorHarness(MapBatchesOperator(function))
    h.process(Row(x=1), Row(x=2), at=[5, 6])
    assert h.records() == [(Row(x=1), 5), (Row(x=2), 6), (Row(x=1), 5)]
    h = OperatorHarness(MapBatchesOperator(lambda batch: 5))
    with pytest.raises(StreamError, match="returns an Arrow RecordBatch"):
        h.process(1, 2)
    for whole in (pa.record_batch, pa.table):
        h = OperatorHarness(
            MapBatchesOperator(lambda batch, whole=whole: whole([[1], [2]], ["a"] * 2))
        )
        with pytest.raises(StreamError, match="returned two columns named 'a'"):
            h.process(1)
    with pytest.raises(StreamError, match="declare an output type"):
        h.process(1, "two")


def test_rows_keep_their_timestamps_through_a_batch_function() -> None:
    seen: list[list[str]] = []

    def function(batch: pa.RecordBatch) -> Any:
        seen.append(batch.schema.names)
        return [batch, batch.slice(1), batch.sort_by([("x", "descending")])]

    h = OperatorHarness(MapBatchesOperator(function))
    h.process_columns(columns([5, 6], x=[1, 2]))
    same, shorter, sorted_ = h.batches()
    assert seen == [["x", "$timestamp"]]
    for batch, times in ((same, [5, 6]), (shorter, [6]), (sorted_, [6, 5])):
        assert isinstance(batch, Columns)
        assert batch.batch.schema.names == ["x"]
        assert np.array_equal(batch.timestamps, times)  # type: ignore[arg-type]
    assert h.values() == [Row(x=1), Row(x=2), Row(x=2), Row(x=2), Row(x=1)]


def test_batch_that_a_function_returns_without_timestamps_has_no_timestamps() -> None:
    h = OperatorHarness(MapBatchesOperator(lambda batch: batch.select(["x"])))
    h.process_columns(columns([5, 6], x=[1, 2]))
    assert h.records() == [(Row(x=1), None), (Row(x=2), None)]


def test_batch_function_may_change_timestamps() -> None:
    def later(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"$timestamp": pc.add(batch["$timestamp"], 10), "y": batch["x"]})

    h = OperatorHarness(MapBatchesOperator(later))
    h.process_columns(columns([5, 6], x=[1, 2]))
    assert h.records() == [(Row(y=1), 15), (Row(y=2), 16)]


def test_input_column_with_the_reserved_timestamp_name_is_refused() -> None:
    h = OperatorHarness(MapBatchesOperator(lambda batch: batch))
    with pytest.raises(StreamError, match=r"a column '\$timestamp' of their own"):
        h.process_columns(columns([5], **{"$timestamp": [1]}))


def test_values_become_columns_of_their_declared_type() -> None:
    seen: list[pa.RecordBatch] = []
    kind = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.STRING()])
    h = OperatorHarness(MapBatchesOperator(seen.append, kind))
    h.process((1, "x"), (2, None))
    (batch,) = seen
    assert batch.schema == pa.schema([("a", pa.int16()), ("b", pa.string())])


def test_object_with_a_map_batch_method_is_opened_and_closed_by_the_operator() -> None:
    calls: list[Any] = []

    class Noted:
        def open(self, runtime_context: Any) -> None:
            calls.append(runtime_context.get_index_of_this_subtask())

        def close(self) -> None:
            calls.append("closed")

        def map_batch(self, batch: pa.RecordBatch) -> None:
            calls.append(batch.num_rows)

    h = OperatorHarness(MapBatchesOperator(Noted()), subtask_index=1, parallelism=2)
    h.process(1, 2)
    h.operator.close()
    assert calls == [1, 2, "closed"]


def test_object_with_open_but_without_close_is_opened_by_the_operator() -> None:
    class Opened:
        def open(self, runtime_context: Any) -> None:
            self.factor = 10

        def map_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch({"x": pc.multiply(batch["x"], self.factor)})

    h = OperatorHarness(MapBatchesOperator(Opened()))
    h.process_columns(columns(x=[1]))
    h.operator.close()
    assert h.values() == [Row(x=10)]


def test_batch_function_neither_gets_nor_emits_empty_batches() -> None:
    h = OperatorHarness(MapBatchesOperator(lambda batch: batch.slice(0, 0)))
    h.process()
    h.process(1)
    assert h.batches() == []


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = OperatorHarness(MapBatchesOperator(lambda batch: batch))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_and_subtask() -> None:
    operator = MapBatchesOperator(lambda batch: unlike_five(batch["x"][0].as_py()))
    assert failure(operator, lambda h: h.process_columns(columns(x=[5]))).record == ""
