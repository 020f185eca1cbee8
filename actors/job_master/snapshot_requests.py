"""Savepoints and checkpoints that clients request.
Each is taken once, even if requested repeatedly.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from itertools import count

from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken, SnapshotType
from flinkray.actors.job_master.checkpoint_carrier import CheckpointCarrier
from flinkray.core.errors import FlinkRayError, RecipientUnreachableError
from flinkray.core.ids import JobMasterId, TriggerID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.actions import SnapshotFinished
from flinkray.scheduler.checkpoints.failures import CheckpointError, CheckpointFailureReason
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds for which a request waits while tasks do not run.
The job may be about to begin, or to restart after a failure.
"""

_RETRY_DELAY = 0.1
"""Seconds between two checks whether tasks run."""

_ANSWERS_KEPT = 1000
"""Number of answered requests whose answers are kept."""

_PROPERTIES: dict[SnapshotType, CheckpointProperties | None] = {
    SnapshotType.CHECKPOINT: None,
    SnapshotType.SAVEPOINT: savepoint(),
    SnapshotType.SUSPEND_WITH_SAVEPOINT: synchronous_savepoint(is_drain=False),
    SnapshotType.TERMINATE_WITH_SAVEPOINT: synchronous_savepoint(is_drain=True),
}

_NOT_BEGUN = (
    CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
    CheckpointFailureReason.JOB_FAILOVER_REGION,
    CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
)
"""Reasons for which a request is repeated if its snapshot has not been begun.
A snapshot that failed because a task has just finished is always repeated, because it may succeed
without that task."""


class SnapshotRequests:
    """Takes snapshots that clients request. Lives on the JobMaster's main thread.

    A new JobMaster knows nothing of the requests to its predecessor. It finds a savepoint by its
    directory, which follows from the request. A complete savepoint is not taken again. If a job was
    to be stopped but continues under a new JobMaster, it is stopped again with another savepoint,
    because the job has changed its state since the first.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        checkpoints: CheckpointCarrier,
    ) -> None:
        self._job_master = job_master
        self._graph = graph
        self._checkpoints = checkpoints
        self._working: OrderedDict[TriggerID, asyncio.Task[SnapshotTaken | FlinkRayError]]
        self._working = OrderedDict()
        self._stopped: tuple[TriggerID, str] | None = None
        """Trigger id of the request that has stopped the job, and path of its savepoint."""

    async def take(self, request: SnapshotRequest) -> SnapshotTaken:
        """Take a snapshot once per trigger id, and return it.

        Raises:
            CheckpointError: the snapshot is not taken.
            StopWithSavepointError: the savepoint is complete, but the job did not finish.
            JobError, CheckpointStorageError: the directory cannot be used.
            RecipientUnreachableError: another JobMaster must be asked.
        """
        working = self._working.get(request.trigger_id)
        if working is None:
            name = f"{request.kind.value} {request.trigger_id.short()}"
            working = self._job_master.create_task(self._outcome(request), name)
            self._working[request.trigger_id] = working
            self._forget_old()
        outcome = await asyncio.shield(working)
        if isinstance(outcome, FlinkRayError):
            raise outcome
        return outcome

    def with_savepoint(self, result: JobResult) -> JobResult:
        """Return *result*, with the path of the savepoint if the job was stopped with one."""
        if self._stopped is None or result.status is not JobStatus.FINISHED:
            return result
        trigger_id, path = self._stopped
        return result.with_savepoint(path, trigger_id)

    def _forget_old(self) -> None:
        answered = [trigger_id for trigger_id, task in self._working.items() if task.done()]
        for trigger_id in answered[: max(0, len(answered) - _ANSWERS_KEPT)]:
            del self._working[trigger_id]

    async def _outcome(self, request: SnapshotRequest) -> SnapshotTaken | FlinkRayError:
        """Take a snapshot, and return it or the error. The error is not raised, so that a repeated
        request can get it again."""
        try:
            return await self._take(request)
        except FlinkRayError as error:
            log.warning("%s: %s failed: %s", self._graph.text, request.kind.value, error)
            return error

    async def _take(self, request: SnapshotRequest) -> SnapshotTaken:
        deadline = self._job_master.counted_time() + PATIENCE
        for attempt in count(1):
            directory: str | None = None
            # A job without checkpoints recovers nothing that must be waited for.
            if request.kind is not SnapshotType.CHECKPOINT and self._checkpoints.takes_any:
                try:
                    place = await self._checkpoints.place_of_savepoint(request, attempt)
                except FlinkRayError:
                    # Nothing has begun: a repeated request may lead to another directory.
                    self._working.pop(request.trigger_id, None)
                    raise
                if isinstance(place, SnapshotTaken):
                    return place
                directory = place
            finished = await self._finished(_PROPERTIES[request.kind], directory, deadline)
            # The directory of an aborted savepoint is deleted: each attempt has its own.
            if not self._may_succeed_now(finished.error, deadline):
                break
        if finished.error is not None:
            if self._checkpoints.status is JobStatus.SUSPENDED:
                raise RecipientUnreachableError(f"this JobMaster stops: {finished.error}")
            raise finished.error
        assert finished.path is not None
        taken = SnapshotTaken(finished.path, finished.without_uid)
        if request.kind.stops_the_job:
            self._stopped = request.trigger_id, taken.path
            await self._checkpoints.until_end_is_stored()
        # in one process, the client's warning is in the same log
        is_told_elsewhere = not self._job_master.rpc_service.has_own_process
        if taken.without_uid and directory is not None and not is_told_elsewhere:
            log.warning(
                "%s: savepoint %s has state of operators without a uid: %s",
                self._graph.text,
                taken.path,
                ", ".join(map(repr, taken.without_uid)),
            )
        return taken

    async def _finished(
        self, properties: CheckpointProperties | None, directory: str | None, deadline: float
    ) -> SnapshotFinished:
        """Request a snapshot from the checkpoint coordinator, and return the answer, a snapshot or
        an error. The request is repeated until *deadline* while the snapshot cannot begin, for
        example because tasks do not run yet.
        """
        while True:
            finished = await self._checkpoints.request(properties, directory)
            error = finished.error
            if (
                not isinstance(error, CheckpointError)
                or error.reason not in _NOT_BEGUN
                or error.checkpoint_id is not None
                or self._is_over(deadline)
            ):
                return finished
            await self._job_master.rpc_service.pause(_RETRY_DELAY)

    def _may_succeed_now(self, error: FlinkRayError | None, deadline: float) -> bool:
        """Return whether a snapshot failed only because a task finished while it was taken."""
        return (
            isinstance(error, CheckpointError)
            and error.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
            and not self._is_over(deadline)
        )

    def _is_over(self, deadline: float) -> bool:
        return self._job_master.counted_time() >= deadline or self._checkpoints.status.is_terminal
