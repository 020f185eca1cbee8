"""The end of a stream whose records are a result that is files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkray.core.ids import IntermediateDataSetID
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.task_services import TaskServices
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation, Types
from flinkray.streaming.sinks.result_files import ResultFilesOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns

DATA_SET = IntermediateDataSetID(b"d" * 16)
LONG_AND_TEXT = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])


def harness(type_info: TypeInformation | None) -> tuple[OperatorHarness, list[pa.RecordBatch]]:
    written: list[pa.RecordBatch] = []

    class Services(TaskServices):
        def file_writer(self, data_set_id: IntermediateDataSetID) -> Any:
            assert data_set_id == DATA_SET
            return written.append

    operator = ResultFilesOperator(DATA_SET, type_info)
    return OperatorHarness(operator, services=Services()), written


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ([{"n": 1, "text": "a"}, {"n": 2, "text": None}], [(1, "a"), (2, None)]),
        ([Row(n=1, text="a")], [(1, "a")]),
        ([1, 2], [(1,), (2,)]),
    ],
)
def test_result_file_contains_values_as_rows_in_batches(
    values: list[Any], rows: list[tuple[Any, ...]]
) -> None:
    h, written = harness(None)
    h.process(*values, at=[5] * len(values))
    (batch,) = written
    assert [tuple(row.values()) for row in batch.to_pylist()] == rows


def test_columns_of_an_undeclared_type_are_written_unchanged() -> None:
    h, written = harness(Types.PICKLED_BYTE_ARRAY())
    h.process_columns(columns([7, 8], x=[1, 2]))
    assert [batch.to_pydict() for batch in written] == [{"x": [1, 2]}]


def test_every_batch_of_a_result_file_has_the_declared_columns() -> None:
    h, written = harness(LONG_AND_TEXT)
    h.process(Row(1, None))
    h.process_columns(columns(None, n=pa.array([2], pa.int32()), text=pa.array([None])))
    h.process_columns(columns(None, n=pa.array([], pa.int32()), text=pa.array([], pa.string())))
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    assert [batch.schema for batch in written] == [schema] * len(written)
    assert [batch.num_rows for batch in written] == [0, 1, 1, 0]


def test_column_of_another_type_than_declared_is_refused_with_its_name() -> None:
    h, _ = harness(LONG_AND_TEXT)
    with pytest.raises(StreamError, match=r"columns \['n', 'other'\] are not of the declared type"):
        h.process_columns(columns(None, n=[2], other=["b"]))


def test_sink_emits_no_watermark_status_or_result() -> None:
    h, written = harness(None)
    h.watermark(5)
    h.status(True)
    h.finish()
    assert h.output() == []
    assert written == []
