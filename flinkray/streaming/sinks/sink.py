"""The interface of sinks.  A sink that has a committer is exactly-once: what its writers wrote
before a checkpoint is committed once the checkpoint is complete, and again after a failure, so
committing must be idempotent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flinkray.state.descriptors import ListStateDescriptor
from flinkray.streaming.operators.operator import (
    OperatorStateCapture,
    StreamOperator,
)
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.time.time_service import ProcessingTimeService

CommitT = TypeVar("CommitT")


@dataclass
class WriterContext:
    """What a writer knows of its surroundings."""

    subtask_index: int
    parallelism: int
    attempt_number: int
    time_service: ProcessingTimeService
    """The clock, and callbacks between two batches."""
    current_watermark: int = MIN_TIMESTAMP
    type_info: TypeInformation | None = None
    """The declared type of the records."""


class SinkWriter(ABC, Generic[CommitT]):
    """Writes the records of one subtask; called by its task's thread only."""

    @abstractmethod
    def write(self, block: Block) -> None:
        """Take a batch."""

    def write_columns(self, columns: Columns) -> None:
        """Take a batch of columns; rows by default."""
        self.write(columns.to_block())

    def prepare_commit(self, end_of_input: bool) -> list[CommitT]:
        """Finish what was written so far, and say what has to be committed.  It must be stored
        safely when this returns, and not be visible yet."""
        return []

    def close(self) -> None:
        """Give resources back; what was not committed is lost."""
        return


class Committer(ABC, Generic[CommitT]):
    """Makes visible what writers wrote."""

    @abstractmethod
    def commit(self, committables: Sequence[CommitT]) -> None:
        """May be called again with the same ones after a failure."""

    def close(self) -> None:
        """Give resources back."""
        return


class Sink(ABC, Generic[CommitT]):
    """Where records go; to be given to ``DataStream.sink_to``."""

    shared: bool = False
    """Lives in the client's process: local runs do not copy it."""

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter[CommitT]:
        """The writer of one subtask."""

    def create_committer(self) -> Committer[CommitT] | None:
        """None where writing is all there is to it."""
        return None


_PENDING: ListStateDescriptor[Any] = ListStateDescriptor("sink-committables")


class SinkOperator(StreamOperator):
    """Writes, and commits what completed checkpoints cover; at the end of the input the rest."""

    def __init__(self, sink: Sink[Any], type_info: TypeInformation | None = None) -> None:
        self.sink = sink
        self._type_info = type_info
        self.shared = sink.shared

    def open(self) -> None:
        context = self.context
        self._writer_context = WriterContext(
            context.subtask_index,
            context.parallelism,
            context.attempt_number,
            context.time_service,
            type_info=self._type_info,
        )
        self._writer: SinkWriter[Any] | None = self.sink.create_writer(self._writer_context)
        self._committer = self.sink.create_committer()
        self._pending: list[tuple[int, list[Any]]] = []
        restored = list(self.operator_state.list_state(_PENDING).get())
        if restored and self._committer is not None:
            self._committer.commit(restored)  # they belong to a complete checkpoint

    def process_block(self, block: Block) -> None:
        assert self._writer is not None
        self._writer.write(block)

    def process_columns(self, columns: Columns) -> None:
        assert self._writer is not None
        self._writer.write_columns(columns)

    def process_watermark(self, timestamp: int) -> None:
        """Nothing follows a sink."""
        self._writer_context.current_watermark = timestamp

    def process_status(self, idle: bool) -> None:
        """Nothing follows a sink."""

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        assert self._writer is not None
        committables = self._writer.prepare_commit(False)
        if committables:
            self._pending.append((checkpoint_id, committables))
        waiting = [item for _, items in self._pending for item in items]
        self.operator_state.list_state(_PENDING).update(waiting)
        return super().capture(checkpoint_id, since)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        ready = [items for number, items in self._pending if number <= checkpoint_id]
        self._pending = [entry for entry in self._pending if entry[0] > checkpoint_id]
        self._commit([item for items in ready for item in items])

    def finish(self) -> None:
        assert self._writer is not None
        rest = self._writer.prepare_commit(True)
        waiting = [item for _, items in self._pending for item in items]
        self._pending = []
        self._commit([*waiting, *rest])

    def _commit(self, committables: list[Any]) -> None:
        if committables and self._committer is not None:
            self._committer.commit(committables)

    def close(self) -> None:
        writer, committer = getattr(self, "_writer", None), getattr(self, "_committer", None)
        try:
            if writer is not None:
                writer.close()
        finally:
            if committer is not None:
                committer.close()
