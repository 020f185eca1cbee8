"""The writers of sinks: what they are given, and what they put out for whom to commit."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream.connectors import CallbackSink, Sink, SinkError, SinkWriter, WriterContext
from flinkray.streaming.records.elements import Barrier, Block, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.sink_operators import CommittableMessage, SinkWriterOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import assert_failure_is_told, columns, unlike_five
from tests.streaming.operators.two_phases import Shelf


def prepared(h: OperatorHarness, checkpoint_id: int) -> list[Any]:
    h.operator.prepare_snapshot_pre_barrier(Barrier(checkpoint_id, 0))
    return h.values()


def test_sink_writer_emits_committables_before_each_barrier_and_at_the_end() -> None:
    h = OperatorHarness(SinkWriterOperator(Shelf()), subtask_index=1, parallelism=2)
    h.process(1, 2)
    assert prepared(h, 3) == [CommittableMessage(3, 1, ((1, 2), False))]
    assert prepared(h, 4) == []
    h.process(3)
    h.finish()
    assert h.values() == [CommittableMessage(None, 1, ((3,), True))]


def test_sink_writer_is_asked_for_no_committables_after_the_end_of_input() -> None:
    asked: list[bool] = []

    class Asked(SinkWriter[Any]):
        def write(self, block: Block) -> None:
            raise AssertionError

        def prepare_commit(self, end_of_input: bool) -> list[Any]:
            asked.append(end_of_input)
            return []

    class Asking(Sink[Any]):
        def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
            return Asked()

    h = OperatorHarness(SinkWriterOperator(Asking()))
    prepared(h, 1)
    h.finish()
    prepared(h, 2)
    assert asked == [False, True]


def test_without_checkpoints_all_committables_are_emitted_at_the_end() -> None:
    h = OperatorHarness(SinkWriterOperator(Shelf(), prepares_with_checkpoints=False))
    h.process(1)
    assert prepared(h, 1) == []
    h.process(2)
    h.finish()
    assert h.values() == [CommittableMessage(None, 0, ((1, 2), True))]


def test_sink_writer_is_restored_from_the_states_of_several_writers() -> None:
    snapshots = []
    for records in ([1, 2], [3]):
        h = OperatorHarness(SinkWriterOperator(Shelf()))
        h.process(*records)
        snapshots.append(h.snapshot())
    restored = OperatorHarness(SinkWriterOperator(Shelf()), restore=snapshots)
    restored.process(4)
    again = restored.snapshot()
    h = OperatorHarness(SinkWriterOperator(Shelf()), restore=again)
    assert h.snapshot() == again
    assert again != snapshots[0]


def test_stored_writer_state_is_refused_if_its_sink_cannot_restore_it() -> None:
    class Forgetful(Shelf):
        restore_writer = Sink.restore_writer

    sink = Forgetful()
    snapshot = OperatorHarness(SinkWriterOperator(sink)).snapshot()
    with pytest.raises(SinkError, match="Forgetful has state of writers in the checkpoint"):
        OperatorHarness(SinkWriterOperator(sink), restore=snapshot)


def test_sink_writer_gets_subtask_time_watermark_and_restored_checkpoint() -> None:
    sink = Shelf()
    h = OperatorHarness(
        SinkWriterOperator(sink),
        subtask_index=1,
        parallelism=3,
        attempt_number=2,
        job_id="ab",
        operator_id="cd",
        restored_checkpoint_id=7,
    )
    h.processing_time(40)
    h.watermark(7)
    (context,) = sink.contexts
    assert isinstance(context, WriterContext)
    assert (context.subtask_index, context.parallelism, context.attempt_number) == (1, 3, 2)
    assert (context.time_service.now(), context.current_watermark) == (40, 7)
    assert (context.job_id, context.operator_id, context.restored_checkpoint_id) == ("ab", "cd", 7)


def test_sink_writer_gets_columns_as_rows_unless_it_has_write_columns() -> None:
    batches: list[Any] = []

    class Rows(SinkWriter[Any]):
        def write(self, block: Block) -> None:
            batches.append((block.values, block.timestamps))

    class AsTheyAre(Rows):
        def write_columns(self, columns: Columns) -> None:
            batches.append(columns)

    class Writing(Sink[Any]):
        def __init__(self, writer: SinkWriter[Any]) -> None:
            self.writer = writer

        def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
            return self.writer

    given = columns([5, 6], x=[1, 2])
    for writer in (Rows(), AsTheyAre()):
        OperatorHarness(SinkWriterOperator(Writing(writer))).process_columns(given)
    assert batches == [([Row(x=1), Row(x=2)], [5, 6]), given]


def test_sink_emits_no_watermark_status_or_result() -> None:
    h = OperatorHarness(SinkWriterOperator(Shelf()))
    h.watermark(5)
    h.status(True)
    h.finish()
    assert h.output() == []


def test_sink_writer_is_closed_once() -> None:
    sink = Shelf()
    h = OperatorHarness(SinkWriterOperator(sink))
    h.close()
    h.close()
    assert sink.closed == ["writer"]


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    operator = SinkWriterOperator(CallbackSink(unlike_five))
    assert_failure_is_told(operator, 4, 5, 6, record=5)
