"""Operators at the end of a stream: printing, collecting and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from flinkray.core.ids import IntermediateDataSetID
from flinkray.datastream import Types
from flinkray.streaming.columnar import arrow_batches
from flinkray.streaming.columnar.arrow_batches import SerializeBatchesOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import operator_error
from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.operators.task_services import ResultsReceiver, TaskServices
from flinkray.streaming.records.arrow_bytes import deserialized
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sinks.result_files import ResultFilesOperator
from flinkray.streaming.sinks.simple import CollectOperator, PrintOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    unlike_five,
)


def test_printed_line_has_sink_name_subtask_and_text_of_the_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    OperatorHarness(PrintOperator()).process(None, True, (1, "a"), at=[1, 2, 3])
    OperatorHarness(PrintOperator(), subtask_index=1, parallelism=3).process("b")
    OperatorHarness(PrintOperator("name")).process("c")
    OperatorHarness(PrintOperator("name"), subtask_index=1, parallelism=3).process("d")
    assert capsys.readouterr().out == "null\ntrue\n(1, 'a')\n2> b\nname> c\nname:2> d\n"


def test_print_operator_prints_columns_as_rows(capsys: pytest.CaptureFixture[str]) -> None:
    OperatorHarness(PrintOperator()).process_columns(columns(x=[1, 2], y=["a", "b"]))
    assert capsys.readouterr().out == "+I[1, a]\n+I[2, b]\n"


def test_sink_emits_no_watermark_status_or_result() -> None:
    h = OperatorHarness(PrintOperator())
    h.watermark(5)
    h.finish()
    assert h.output() == []


def test_error_in_str_of_a_printed_value_names_the_value() -> None:
    class Fails:
        def __init__(self, number: int) -> None:
            self.number = number

        def __repr__(self) -> str:
            return "the fifth"

        def __str__(self) -> str:
            return str(unlike_five(self.number))

    h = OperatorHarness(PrintOperator(), subtask_index=1, parallelism=3)
    with pytest.raises(ValueError, match="five is not liked") as caught:
        h.process(Fails(4), Fails(5))
    error = operator_error(caught.value, "the task")
    assert (error.operator, error.subtask, error.record) == ("operator", "2/3", "the fifth")


class Kept:
    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.has_begun = False
        self.restored: list[tuple[int, bytes]] = []
        self.completed_id = 0

    def put(self, values: Sequence[Any]) -> None:
        self.batches.append(list(values))

    def begin(self) -> None:
        self.has_begun = True

    def capture(self, checkpoint_id: int) -> Sequence[tuple[int, bytes]]:
        return [(checkpoint_id, b"piece")]

    def restore(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        assert not self.has_begun
        self.restored = list(pieces)

    def completed(self, checkpoint_id: int) -> None:
        self.completed_id = checkpoint_id


def collecting(restore: OperatorState | None = None) -> tuple[OperatorHarness, Kept]:
    kept = Kept()

    class Services(TaskServices):
        def results(self) -> ResultsReceiver:
            return kept

    return OperatorHarness(CollectOperator(), restore=restore, services=Services()), kept


def test_collect_operator_collects_values_in_batches_and_columns_as_rows() -> None:
    h, kept = collecting()
    h.process(1, 2, at=[5, 6])
    h.process((3,))
    h.process_columns(columns([7, 8], x=[1, 2]))
    assert kept.batches == [[1, 2], [(3,)], [Row(x=1), Row(x=2)]]


def test_collected_results_that_the_client_has_not_read_are_restored() -> None:
    h, before = collecting()
    state = h.snapshot(7)
    h.operator.notify_checkpoint_complete(7)
    assert (before.has_begun, before.restored, before.completed_id) == (True, [], 7)
    _, kept = collecting(state)
    assert (kept.has_begun, kept.restored) == (True, [(7, b"piece")])


def test_collect_sink_emits_neither_watermarks_nor_status_nor_results() -> None:
    h, kept = collecting()
    h.watermark(5)
    h.status(True)
    h.finish()
    assert h.output() == []
    assert kept.batches == []


DATA_SET = IntermediateDataSetID(b"d" * 16)
LONG_AND_TEXT = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])


def writing(type_info: TypeInformation | None) -> tuple[OperatorHarness, list[pa.RecordBatch]]:
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
    h, written = writing(None)
    h.process(*values, at=[5] * len(values))
    (batch,) = written
    assert [tuple(row.values()) for row in batch.to_pylist()] == rows


def test_columns_of_an_undeclared_type_are_written_unchanged() -> None:
    h, written = writing(Types.PICKLED_BYTE_ARRAY())
    h.process_columns(columns([7, 8], x=[1, 2]))
    assert [batch.to_pydict() for batch in written] == [{"x": [1, 2]}]


def test_every_batch_of_a_result_file_has_the_declared_columns() -> None:
    h, written = writing(LONG_AND_TEXT)
    h.process(Row(1, None))
    h.process_columns(columns(None, n=pa.array([2], pa.int32()), text=pa.array([None])))
    h.process_columns(columns(None, n=pa.array([], pa.int32()), text=pa.array([], pa.string())))
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    assert [batch.schema for batch in written] == [schema] * len(written)
    assert [batch.num_rows for batch in written] == [0, 1, 1, 0]


def test_column_of_another_type_than_declared_is_refused_with_its_name() -> None:
    h, _ = writing(LONG_AND_TEXT)
    with pytest.raises(StreamError, match=r"columns \['n', 'other'\] are not of the declared type"):
        h.process_columns(columns(None, n=[2], other=["b"]))


def test_result_files_operator_emits_no_watermark_status_or_result() -> None:
    h, written = writing(None)
    h.watermark(5)
    h.status(True)
    h.finish()
    assert h.output() == []
    assert written == []


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
