"""The operator that runs a sink's committers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from flinkray.state.descriptors import ListStateDescriptor
from flinkray.streaming.operators.operator import (
    OperatorState,
    OperatorStateCapture,
    StreamOperator,
)
from flinkray.streaming.records.elements import Barrier, Block
from flinkray.streaming.sinks.committables import CommittableCollector, CommittableMessage
from flinkray.streaming.sinks.sink import (
    CommitOutcome,
    CommitRequest,
    Committer,
    CommitterContext,
    CommitterWithFiles,
    Sink,
    SinkUnavailableError,
)
from flinkray.streaming.state_file import StateFile

logger = logging.getLogger(__name__)

MOST_RETRIES = 10
"""How often a commit is retried (Flink's ``sink.committer.retries``)."""
FIRST_PAUSE = 100
"""Milliseconds before the first retry.
Each pause is twice the previous one, up to :data:`LONGEST_PAUSE`."""
LONGEST_PAUSE = 10_000
"""Longest pause in milliseconds. All retries together take about 43 seconds."""


class CommitLog(Protocol):
    """Log of the committables that a single committer for all writers is about to commit.
    Used by jobs without checkpoints. The log exists until the job has ended."""

    def settle(self, committables: Sequence[Any]) -> Sequence[Any]:
        """Log the committables and return them.
        If an earlier call, perhaps of an earlier attempt, has logged some, return these instead.

        Raises:
            OSError: the storage fails.
        """


class UnloggedCommits(CommitLog):
    """Commit log that stores nothing, for programs of which no part is run again."""

    def settle(self, committables: Sequence[Any]) -> Sequence[Any]:
        return committables


_PENDING: ListStateDescriptor[tuple[int, int, Any]] = ListStateDescriptor("sink-committables")


class CommitterOperator(StreamOperator):
    """Commits the committables of completed checkpoints, and keeps the others in its state.

    *at_end*: the job takes no checkpoints: commit everything when all writers have finished.
    """

    log: CommitLog = UnloggedCommits()
    """Log of the commits at the end. The runner of the task may replace it."""

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

    def process_watermark(self, timestamp: int) -> None:
        """Do nothing: no operator follows a sink."""

    def process_status(self, idle: bool) -> None:
        """Do nothing: no operator follows a sink."""

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
            noted = self.log.settle([tuple(message) for message in messages])
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
        """Return the number of committables that are not committed."""
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
