"""The operators that run a sink's writers and committers, and the committables between them.

A committable becomes *due* when the checkpoint that it was prepared for is complete. Committables
from the end of the input belong to the first checkpoint taken afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flinkray.state.descriptors import ListStateDescriptor
from flinkray.state.operator_state import StateFile
from flinkray.streaming.operators.operator import (
    LastOperator,
    OperatorState,
    OperatorStateCapture,
    StreamOperator,
)
from flinkray.streaming.records.elements import Barrier, Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sinks.sink import (
    CommitOutcome,
    CommitRequest,
    Committer,
    CommitterContext,
    CommitterWithFiles,
    Sink,
    SinkUnavailableError,
    SinkWriter,
    StatefulSinkWriter,
    WriterContext,
)

logger = logging.getLogger(__name__)

MOST_RETRIES = 10
"""How often a commit is retried (Flink's ``sink.committer.retries``)."""
FIRST_PAUSE = 100
"""Milliseconds before the first retry.
Each pause is twice the previous one, up to :data:`LONGEST_PAUSE`."""
LONGEST_PAUSE = 10_000
"""Longest pause in milliseconds. All retries together take about 43 seconds."""


_PENDING: ListStateDescriptor[tuple[int, int, Any]] = ListStateDescriptor("sink-committables")


class CommitterOperator(LastOperator):
    """Commits the committables of completed checkpoints, and keeps the others in its state.
    *at_end*: the job takes no checkpoints, so all is committed when all writers have finished."""

    def __init__(self, sink: Sink[Any], at_end: bool = False) -> None:
        self.sink = sink
        self.at_end = at_end
        self.shared = sink.shared
        self._committer: Committer[Any] | None = None
        self._restored_files: dict[str, StateFile] = {}
        self._is_savepoint = False
        self._files: tuple[StateFile, ...] = ()
        self._savepoints: list[OperatorStateCapture] = []
        """Captures of savepoints whose files may still be read."""

    def restore(self, states: Sequence[OperatorState], checkpoint_id: int | None = None) -> None:
        super().restore(states, checkpoint_id)
        self._restored_files = {file.name: file for state in states for file in state.files}

    def open(self) -> None:
        context = self.context
        restored = context.restored_checkpoint_id
        self._committables = CommittableCollector(restored, self.sink.commits_in_order)
        self._metrics = _Metrics(self)
        self._retries_are_due: int | None = None
        self._committer = self.sink.create_committer(
            CommitterContext(
                context.subtask_index,
                context.parallelism,
                context.attempt_number,
                context.job_id,
                context.operator_id,
                restored,
                context.services.stages,
            )
        )
        if isinstance(self._committer, CommitterWithFiles):
            self._committer.restore_files(self._restored_files)
        pending = self.operator_state.list_state(_PENDING)
        self._committables.restore(CommittableMessage(*one) for one in pending.get())
        self._commit()

    def process_block(self, block: Block) -> None:
        self._metrics.total.inc(len(block))
        self._committables.add(block.values)
        self._commit()

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        self._is_savepoint = barrier.savepoint

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        messages = self._committables.capture(checkpoint_id)
        self._files = ()
        if self._is_savepoint and isinstance(self._committer, CommitterWithFiles):
            not_done = self._committer.not_done()
            committed = [CommittableMessage(it.checkpoint_id, 0, it.committable) for it in not_done]
            messages = [*committed, *messages]
            self._files = tuple(self._committer.files_of([one.committable for one in messages]))
        self.operator_state.list_state(_PENDING).update([tuple(one) for one in messages])
        captured = super().capture(checkpoint_id, since)
        if self._files:
            self._savepoints.append(captured)
        return captured

    def files(self) -> tuple[StateFile, ...]:
        return self._files

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._committables.completed(checkpoint_id)
        self._commit()
        self._savepoints = [one for one in self._savepoints if not one.is_released]
        if isinstance(self._committer, CommitterWithFiles) and not self._savepoints:
            self._committer.delete_done()

    def finish(self) -> None:
        if self.at_end:
            messages = self._committables.capture(0)
            log = self.context.services.commit_log(self.context.operator_id)
            noted = log.settle([tuple(message) for message in messages])
            self._committables = CommittableCollector(0, self.sink.commits_in_order)
            self._committables.restore(CommittableMessage(*one) for one in noted)
            self._commit()

    @property
    def awaits_checkpoint(self) -> bool:
        return self._committables.awaits_checkpoint

    @property
    def is_retrying(self) -> bool:
        return self._committables.is_retrying

    def number_of_pending(self) -> int:
        return len(self._committables)

    def _commit(self, again: bool = False) -> None:
        committables = self._committables
        while requests := committables.due(again):
            for request in requests:
                request.begin_attempt()
            assert self._committer is not None
            self._committer.commit(requests)
            for request in requests:
                self._look_at(request)
            committables.settle(requests)
            again = False
        if committables.is_retrying and self._retries_are_due is None:
            self._schedule_retries(committables.most_retries)

    def _schedule_retries(self, retries: int) -> None:
        service = self.context.time_service
        self._retries_are_due = service.now() + min(FIRST_PAUSE << retries, LONGEST_PAUSE)
        service.schedule(self._retries_are_due, self._retry, also_after_end=True)

    def _retry(self, _: int) -> None:
        self._retries_are_due = None
        self._commit(again=True)

    def _look_at(self, request: CommitRequest[Any]) -> None:
        outcome, reason, metrics = request.outcome, request.reason, self._metrics
        if outcome is CommitOutcome.COMMITTED:
            metrics.successful.inc()
        elif outcome is CommitOutcome.ALREADY_COMMITTED:
            metrics.already.inc()
        elif outcome is CommitOutcome.LOST:
            metrics.failed.inc()
            logger.error(
                "%s goes on without what could never be committed: %r: %s",
                self.context.task_name,
                request.committable,
                reason,
            )
        elif outcome is CommitOutcome.RETRY and request.number_of_retries < MOST_RETRIES:
            metrics.retried.inc()
            logger.warning(
                "%s tries later to commit %r: %s",
                self.context.task_name,
                request.committable,
                reason,
            )
        else:
            metrics.failed.inc()
            tries = request.number_of_retries + 1
            raise SinkUnavailableError(
                f"{self.context.task_name} cannot commit {request.committable!r}"
                f"{f', tried {tries} times' if tries > 1 else ''}: {reason}; what was prepared "
                "stays in the job's last checkpoint, and is committed when the job goes on from it"
            ) from reason

    def close(self) -> None:
        committer, self._committer = self._committer, None
        if committer is not None:
            committer.close()


class _Metrics:
    """The metrics of a committer, with the names of Flink's SinkCommitterMetricGroup."""

    def __init__(self, operator: CommitterOperator) -> None:
        group = operator.context.metrics
        self.total = group.counter("totalCommittables")
        self.successful = group.counter("successfulCommittables")
        self.already = group.counter("alreadyCommittedCommittables")
        self.failed = group.counter("failedCommittables")
        self.retried = group.counter("retriedCommittables")
        group.gauge("pendingCommittables", operator.number_of_pending)


_STATES: ListStateDescriptor[Any] = ListStateDescriptor("writer-states")


class SinkWriterOperator(StreamOperator):
    """Runs a sink's writer and sends its committables to the committer
    (:class:`CommittableMessage`) before each barrier and at the end of the input.
    *prepares_with_checkpoints* False: only at the end."""

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
            stages=context.services.stages,
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


class CommittableMessage(NamedTuple):
    """A committable on its way from its writer's operator to a committer's operator."""

    checkpoint_id: int | None
    """Id of the checkpoint that the committable was prepared for. None: the end of the input."""
    subtask: int
    """Subtask of the writer."""
    committable: Any


@dataclass(eq=False)
class _Pending:
    checkpoint_id: int | None
    subtask: int
    request: CommitRequest[Any]
    waits: bool = False
    """Whether a commit was tried without success and is to be retried later."""

    @property
    def place(self) -> tuple[int, int]:
        assert self.checkpoint_id is not None
        return self.checkpoint_id, self.subtask


class CommittableCollector:
    """The committables of one committer that are not known to be committed.
    *completed*: id of the checkpoint that the task was restored from; 0: none. *in_order*: a
    committable becomes due only when those of earlier checkpoints are committed."""

    def __init__(self, completed: int = 0, in_order: bool = False) -> None:
        self._completed = completed
        self._in_order = in_order
        self._pending: list[_Pending] = []

    def restore(self, messages: Iterable[CommittableMessage]) -> None:
        """Add committables of the checkpoint from which the task was restored.
        That checkpoint is complete, so they count as due, whatever their checkpoint ids are. With
        at-least-once, some may belong to the next checkpoint; their records are written again."""
        for message in messages:
            known = message.checkpoint_id or 0
            self._add(message._replace(checkpoint_id=min(known, self._completed)))

    def add(self, messages: Iterable[CommittableMessage]) -> None:
        """Add committables that have arrived from writers.
        Their checkpoint may already be complete, if its barrier has overtaken them."""
        for message in messages:
            self._add(message)

    def _add(self, message: CommittableMessage) -> None:
        request = CommitRequest(message.committable)
        self._pending.append(_Pending(message.checkpoint_id, message.subtask, request))

    def capture(self, checkpoint_id: int) -> list[CommittableMessage]:
        """Return the committables that a checkpoint stores: all not known to be committed."""
        for pending in self._pending:
            if pending.checkpoint_id is None:
                pending.checkpoint_id = checkpoint_id
        return [
            CommittableMessage(one.checkpoint_id, one.subtask, one.request.committable)
            for one in self._pending
        ]

    def completed(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete, so that its committables are due. Ids increase."""
        self._completed = max(self._completed, checkpoint_id)

    def _is_due(self, pending: _Pending) -> bool:
        return pending.checkpoint_id is not None and pending.checkpoint_id <= self._completed

    def due(self, again: bool = False) -> list[CommitRequest[Any]]:
        """Return the requests to commit now, in order: those of completed checkpoints or, with
        *in_order*, only those of the earliest one. *again*: also those that were tried without
        success; otherwise, with *in_order*, they hold back all later ones."""
        due = sorted(filter(self._is_due, self._pending), key=lambda pending: pending.place)
        if self._in_order:
            if due and not again and due[0].waits:
                return []
            due = [one for one in due if one.checkpoint_id == due[0].checkpoint_id]
        chosen = [one for one in due if again or not one.waits]
        for one in chosen:
            one.waits = False
            one.request.checkpoint_id, _ = one.place
        return [one.request for one in chosen]

    def settle(self, requests: Sequence[CommitRequest[Any]]) -> None:
        """Forget the committables of *requests*, whose commit was tried. Requests that are to be
        retried stay."""
        tried = set(map(id, requests))
        left = []
        for pending in self._pending:
            if id(pending.request) in tried:
                if pending.request.outcome is not CommitOutcome.RETRY:
                    continue
                pending.waits = True
            left.append(pending)
        self._pending = left

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether there are committables whose checkpoint is not complete yet."""
        return not all(map(self._is_due, self._pending))

    @property
    def is_retrying(self) -> bool:
        """Whether a committable waits for a retry, after its commit was tried without success."""
        return any(pending.waits for pending in self._pending)

    @property
    def most_retries(self) -> int:
        """The largest number of retries of a committable that is not committed; 0 if none is
        left."""
        waiting = (one.request.number_of_retries for one in self._pending if one.waits)
        return max(waiting, default=0)
