"""Savepoints and checkpoints that clients ask for, whichever JobMasters die meanwhile; and the end
of savepoints."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from flinkray.actors.dispatcher.managed_job import ManagedJob
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.actors.shared.checkpoint_storage import why_not_started_from
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.checkpoint.errors import CheckpointNotFoundError, CheckpointStorageError
from flinkray.checkpoint.storage import dispose_savepoint, metadata_path, read_metadata
from flinkray.core.config import Configuration
from flinkray.core.errors import (
    FencingTokenError,
    JobStateError,
    JobSubmissionError,
    RpcError,
)
from flinkray.core.ids import DispatcherId, JobID
from flinkray.core.job_options import STATE_RECOVERY_PATH
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult

log = logging.getLogger(__name__)

_RETRY_DELAY = 0.1
"""Seconds until it is looked again for a JobMaster."""


class JobSnapshots:
    """Lives on the Dispatcher's main thread."""

    def __init__(
        self,
        dispatcher: FencedRpcEndpoint[DispatcherId],
        jobs: Mapping[JobID, ManagedJob],
        storage: UserStorage,
    ) -> None:
        """*jobs*: the Dispatcher's own, as they are at any time."""
        self._dispatcher = dispatcher
        self._storage = storage
        self._jobs = jobs
        self._being_given: Counter[str] = Counter()
        """Savepoints, by their metadata, that are looked for as jobs are to start from them."""
        self._being_disposed: Counter[str] = Counter()

    async def take(self, job: ManagedJob, request: SnapshotRequest) -> SnapshotTaken:
        """See :meth:`DispatcherGateway.take_snapshot`.  One JobMaster after the other is asked,
        until one answers or the job has ended."""
        await asyncio.shield(job.accepted)
        while job.outcome is None:
            if job.gateway is not None:
                try:
                    token = self._dispatcher.fencing_token
                    return await job.gateway.take_snapshot(token, request)
                except RpcError as error:
                    if not (error.retryable or isinstance(error, FencingTokenError)):
                        raise
                    log.info("job %s: no %s yet: %s", job.job_id, request.kind.value, error)
            await self._dispatcher.rpc_service.pause(_RETRY_DELAY)
        return taken_at_the_end(job.outcome.result, request)

    async def check_given(self, graph: JobGraph) -> None:
        """Look for the savepoint that a job is to start from, and that is not disposed of
        meanwhile.  What storage may tell another time, its JobMaster asks again; and whether all
        files are there.

        Raises:
            JobSubmissionError: there is none, or it is not whole, or its storage hangs.
        """
        given = Configuration(graph.configuration).get(STATE_RECOVERY_PATH)
        if given is None:
            return
        try:
            location = metadata_path(given)
        except ValueError as error:
            text = f"{STATE_RECOVERY_PATH.key}: {given!r} is neither a path nor a URI: {error}"
            raise JobSubmissionError(graph.job_id, text) from error
        if self._being_disposed[location]:
            raise JobSubmissionError(graph.job_id, f"{given} is being deleted")
        self._being_given[location] += 1
        try:
            await self._storage.run(read_metadata, given)
        except CheckpointStorageError as error:
            if not error.retryable:
                reason = why_not_started_from(given, error)
                raise JobSubmissionError(graph.job_id, reason) from error
        finally:
            _one_less(self._being_given, location)

    async def dispose(self, path: str) -> None:
        """See :meth:`DispatcherGateway.dispose_savepoint`."""
        try:
            location = metadata_path(path)
        except ValueError as error:
            raise CheckpointNotFoundError(path, f"it is no path of a savepoint: {error}") from error
        taken_of = (await self._storage.run(read_metadata, location)).job_id
        self._being_disposed[location] += 1
        try:
            await self._dispose_unless_needed(path, location, taken_of)
        finally:
            _one_less(self._being_disposed, location)

    async def _dispose_unless_needed(self, path: str, location: str, taken_of: JobID) -> None:
        """No job is given it meanwhile."""
        if self._being_given[location]:
            text = f"its savepoint {path} is what a job is about to start from"
            raise JobStateError(taken_of, text)
        for job in tuple(self._jobs.values()):
            if await self._may_need(job, location, taken_of):
                raise JobStateError(
                    job.job_id,
                    f"it would go on from {path} after a failure: wait until it has taken a "
                    "checkpoint of its own, take one (flinkray checkpoint trigger), or cancel it",
                )
        await self._storage.run(dispose_savepoint, location)

    async def _may_need(self, job: ManagedJob, location: str, taken_of: JobID) -> bool:
        """Whether a job would go on from that savepoint.  As long as nobody can tell, one may that
        was given it, and one that was to be stopped with it."""
        if job.outcome is not None:
            return False
        if job.gateway is not None:
            try:
                return await job.gateway.request_savepoint_in_use() == location
            except (RpcError, JobStateError) as error:
                log.info("job %s: which savepoint it needs is not known: %s", job.job_id, error)
        given = Configuration(job.graph.configuration).get(STATE_RECOVERY_PATH)
        return job.job_id == taken_of or (given is not None and metadata_path(given) == location)


def _one_less(counts: Counter[str], location: str) -> None:
    counts[location] -= 1
    if not counts[location]:
        del counts[location]


def taken_at_the_end(result: JobResult, request: SnapshotRequest) -> SnapshotTaken:
    """The savepoint that an ended job was stopped with, if that was this request.

    Raises:
        JobStateError: it was not.
    """
    if result.savepoint is not None and result.stopped_by == request.trigger_id:
        return SnapshotTaken(result.savepoint)
    refused = (
        "it cannot be stopped with a savepoint"
        if request.kind.stops_the_job
        else f"no {request.kind.value} can be taken"
    )
    text = f"it has ended ({result.status.name}): {refused}"
    if result.savepoint is not None:
        text += f"; it was stopped with the savepoint {result.savepoint}"
    raise JobStateError(result.job_id, text)
