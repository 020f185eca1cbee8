"""Sinks that users write, with commits and without."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream.connectors import CallbackSink, Committer, Sink, SinkWriter, WriterContext
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.sink import SinkOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import assert_failure_is_told, columns, unlike_five


class Shelf(Sink[Any]):
    """A sink of two phases, as a user writes it."""

    def __init__(self) -> None:
        self.commits: list[Any] = []

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return ShelfWriter()

    def create_committer(self) -> Committer[Any]:
        return ShelfCommitter(self.commits)


class ShelfWriter(SinkWriter[Any]):
    def __init__(self) -> None:
        self._values: list[Any] = []

    def write(self, block: Block) -> None:
        self._values.extend(block.values)

    def prepare_commit(self, end_of_input: bool) -> list[Any]:
        box, self._values = (tuple(self._values), end_of_input), []
        return [box]


class ShelfCommitter(Committer[Any]):
    def __init__(self, commits: list[Any]) -> None:
        self._commits = commits

    def commit(self, committables: Any) -> None:
        self._commits.extend(committables)


def test_users_sink_commits_what_complete_checkpoints_cover_in_their_order() -> None:
    sink = Shelf()
    h = OperatorHarness(SinkOperator(sink))
    h.process(1)
    h.snapshot(1)
    h.process(2)
    h.snapshot(2)
    h.process(3)
    assert sink.commits == []
    h.operator.notify_checkpoint_complete(2)  # 1 was never confirmed by itself
    assert sink.commits == [((1,), False), ((2,), False)]
    h.finish()
    assert sink.commits[2:] == [((3,), True)]


def test_users_sink_commits_again_what_its_last_attempt_had_prepared() -> None:
    first = OperatorHarness(SinkOperator(Shelf()))
    first.process(1)
    snapshot = first.snapshot(1)
    first.process(2)  # is read again, because it came after the checkpoint
    sink = Shelf()
    OperatorHarness(SinkOperator(sink), restore=snapshot)
    assert sink.commits == [((1,), False)]


def test_users_sink_is_told_subtask_time_and_watermark() -> None:
    told: list[WriterContext] = []

    class Told(Shelf):
        def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
            told.append(context)
            return ShelfWriter()

    h = OperatorHarness(SinkOperator(Told()), subtask_index=1, parallelism=3, attempt_number=2)
    h.processing_time(40)
    h.watermark(7)
    (context,) = told
    assert (context.subtask_index, context.parallelism, context.attempt_number) == (1, 3, 2)
    assert (context.time_service.now(), context.current_watermark) == (40, 7)


def test_columns_come_as_rows_unless_the_writer_takes_them() -> None:
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
        OperatorHarness(SinkOperator(Writing(writer))).process_columns(given)
    assert batches == [([Row(x=1), Row(x=2)], [5, 6]), given]


def test_nothing_follows_neither_time_nor_the_end() -> None:
    h = OperatorHarness(SinkOperator(Shelf()))
    h.process(1)
    h.watermark(5)
    h.status(True)
    h.finish()
    assert h.output() == []


def test_writer_and_committer_are_closed_also_when_the_writer_fails_to() -> None:
    closed: list[str] = []

    class Closing(ShelfWriter):
        def close(self) -> None:
            closed.append("writer")
            raise OSError("no room")

    class Committing(ShelfCommitter):
        def close(self) -> None:
            closed.append("committer")

    class Both(Shelf):
        def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
            return Closing()

        def create_committer(self) -> Committer[Any]:
            return Committing(self.commits)

    h = OperatorHarness(SinkOperator(Both()))
    with pytest.raises(OSError, match="no room"):
        h.operator.close()
    assert closed == ["writer", "committer"]


def test_failure_is_told_with_its_record() -> None:
    operator = SinkOperator(CallbackSink(unlike_five))
    assert_failure_is_told(operator, 4, 5, 6, record=5)
