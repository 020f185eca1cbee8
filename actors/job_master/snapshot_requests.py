"""Savepoints and checkpoints that clients ask for: each is taken once, however often it is asked
for."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken, SnapshotType
from flinkray.actors.job_master.checkpoint_carrier import CheckpointCarrier
from flinkray.core.errors import FlinkRayError, RecipientUnreachableError
from flinkray.core.ids import JobID, JobMasterId, TriggerID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.actions import SnapshotFinished
from flinkray.scheduler.checkpoints.errors import CheckpointError, CheckpointFailureReason
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds for which a request waits that comes while tasks do not run: the job begins, or restarts
after a failure."""

_RETRY_DELAY = 0.1
"""Seconds until it is looked again whether they do."""

_ANSWERS_KEPT = 1000
"""Of requests that were answered."""

_PROPERTIES: dict[SnapshotType, CheckpointProperties | None] = {
    SnapshotType.CHECKPOINT: None,
    SnapshotType.SAVEPOINT: savepoint(),
    SnapshotType.SUSPEND_WITH_SAVEPOINT: synchronous_savepoint(is_drain=False),
    SnapshotType.TERMINATE_WITH_SAVEPOINT: synchronous_savepoint(is_drain=True),
}

_NOT_BEGUN = (
    CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
    CheckpointFailureReason.JOB_FAILOVER_REGION,
)
"""Why one has not even begun that may begin in a while."""


class SnapshotRequests:
    """Lives on the JobMaster's main thread.

    A JobMaster that takes over knows nothing of the requests to its predecessor.  A savepoint is
    known by its directory, which follows from the request; one that was complete is not taken
    again.  A job that was to be stopped, and goes on under a new JobMaster, is stopped again, with
    another savepoint: it goes on from the first.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        job_id: JobID,
        checkpoints: CheckpointCarrier,
    ) -> None:
        self._job_master = job_master
        self._job_id = job_id
        self._checkpoints = checkpoints
        self._working: OrderedDict[TriggerID, asyncio.Task[SnapshotTaken | FlinkRayError]]
        self._working = OrderedDict()
        self._stopped: tuple[TriggerID, str] | None = None
        """By which request, and the savepoint."""

    async def take(self, request: SnapshotRequest) -> SnapshotTaken:
        """
        Raises:
            CheckpointError: it is not taken.
            StopWithSavepointError: it is complete, but the job did not finish.
            JobError, CheckpointStorageError: the directory cannot be used.
            RecipientUnreachableError: another JobMaster is to be asked.
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
        """The job's result, with the savepoint that it was stopped with."""
        if self._stopped is None or result.status is not JobStatus.FINISHED:
            return result
        trigger_id, path = self._stopped
        return result.with_savepoint(path, trigger_id)

    def _forget_old(self) -> None:
        answered = [trigger_id for trigger_id, task in self._working.items() if task.done()]
        for trigger_id in answered[: max(0, len(answered) - _ANSWERS_KEPT)]:
            del self._working[trigger_id]

    async def _outcome(self, request: SnapshotRequest) -> SnapshotTaken | FlinkRayError:
        """Errors are values here: whoever asks later is given them, too."""
        try:
            return await self._take(request)
        except FlinkRayError as error:
            log.warning("job %s: %s failed: %s", self._job_id, request.kind.value, error)
            return error

    async def _take(self, request: SnapshotRequest) -> SnapshotTaken:
        directory: str | None = None
        # Where a job takes none, nothing is recovered that would have to be waited for.
        if request.kind is not SnapshotType.CHECKPOINT and self._checkpoints.takes_any:
            try:
                place = await self._checkpoints.place_of_savepoint(request)
            except FlinkRayError:
                # Nothing has begun: asked for again, it may be told another place.
                self._working.pop(request.trigger_id, None)
                raise
            if isinstance(place, SnapshotTaken):
                return place
            directory = place
        finished = await self._finished(_PROPERTIES[request.kind], directory)
        if finished.error is not None:
            if self._checkpoints.status is JobStatus.SUSPENDED:
                raise RecipientUnreachableError(f"this JobMaster stops: {finished.error}")
            raise finished.error
        assert finished.path is not None
        taken = SnapshotTaken(finished.path, finished.without_uid)
        if request.kind.stops_the_job:
            self._stopped = request.trigger_id, taken.path
            await self._checkpoints.until_end_is_stored()
        if taken.without_uid and directory is not None:
            log.warning(
                "job %s: savepoint %s has state of operators without a uid: %s",
                self._job_id,
                taken.path,
                ", ".join(map(repr, taken.without_uid)),
            )
        return taken

    async def _finished(
        self, properties: CheckpointProperties | None, directory: str | None
    ) -> SnapshotFinished:
        """What the coordinator says of it, when tasks run."""
        now = self._job_master.counted_time
        deadline = now() + PATIENCE
        while True:
            finished = await self._checkpoints.request(properties, directory)
            error = finished.error
            if (
                not isinstance(error, CheckpointError)
                or error.reason not in _NOT_BEGUN
                or error.checkpoint_id is not None
                or now() >= deadline
                or self._checkpoints.status.is_terminal
            ):
                return finished
            await self._job_master.rpc_service.pause(_RETRY_DELAY)
