"""The operator that runs a sink's writers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flinkray.state.descriptors import ListStateDescriptor
from flinkray.streaming.operators.operator import OperatorStateCapture, StreamOperator
from flinkray.streaming.records.elements import Barrier, Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sinks.committables import CommittableMessage
from flinkray.streaming.sinks.sink import Sink, SinkWriter, StatefulSinkWriter, WriterContext

_STATES: ListStateDescriptor[Any] = ListStateDescriptor("writer-states")


class SinkWriterOperator(StreamOperator):
    """Emits :class:`CommittableMessage` before barriers and at the end of the input.
    Watermarks and status are not forwarded.

    Args:
        prepares_with_checkpoints: False: emit only at the end of the input.
    """

    def __init__(
        self,
        sink: Sink[Any],
        type_info: TypeInformation | None = None,
        prepares_with_checkpoints: bool = True,
    ) -> None:
        self.sink = sink
        self.type_info = type_info
        self.prepares_with_checkpoints = prepares_with_checkpoints
        self.shared = sink.shared
        self._writer: SinkWriter[Any] | None = None
        self._has_ended = False

    def open(self) -> None:
        context = self.context
        self._writer_context = WriterContext(
            context.subtask_index,
            context.parallelism,
            context.attempt_number,
            context.time_service,
            type_info=self.type_info,
            job_id=context.job_id,
            operator_id=context.operator_id,
            restored_checkpoint_id=context.restored_checkpoint_id,
        )
        states = list(self.operator_state.list_state(_STATES).get())
        if states:
            self._writer = self.sink.restore_writer(self._writer_context, states)
        else:
            self._writer = self.sink.create_writer(self._writer_context)

    def process_block(self, block: Block) -> None:
        assert self._writer is not None
        self._writer.write(block)

    def process_columns(self, columns: Columns) -> None:
        assert self._writer is not None
        self._writer.write_columns(columns)

    def process_watermark(self, timestamp: int) -> None:
        """Keep the watermark for the writer. No operator behind a sink needs it."""
        self._writer_context.current_watermark = timestamp

    def process_status(self, idle: bool) -> None:
        """Do nothing: no operator behind a sink needs the status."""

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        if self.prepares_with_checkpoints and not self._has_ended:
            assert self._writer is not None
            self._put_out(barrier.checkpoint_id, self._writer.prepare_commit(False))

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        if isinstance(self._writer, StatefulSinkWriter):
            states = self._writer.snapshot_state(checkpoint_id)
            self.operator_state.list_state(_STATES).update(list(states))
        return super().capture(checkpoint_id, since)

    def finish(self) -> None:
        assert self._writer is not None
        self._has_ended = True
        self._put_out(None, self._writer.prepare_commit(True))

    def _put_out(self, checkpoint_id: int | None, committables: Iterable[Any]) -> None:
        subtask = self.context.subtask_index
        messages = [CommittableMessage(checkpoint_id, subtask, one) for one in committables]
        if messages:
            self.output.emit(Block(messages))

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
