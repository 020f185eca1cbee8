"""Savepoints and checkpoints that clients request, and the disposal of savepoints."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from flinkray.actors.dispatcher.managed_job import ManagedJob
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.actors.shared.checkpoint_storage import why_not_started_from
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import CheckpointNotFoundError, CheckpointStorageError
from flinkray.checkpoint.layout import delete_checkpoint, metadata_path
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.checkpoint.metadata_file import read_metadata
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import (
    FencingTokenError,
    JobStateError,
    JobSubmissionError,
    RpcError,
)
from flinkray.core.ids import DispatcherId, JobID
from flinkray.core.job_options import CHECKPOINTING_DIR, SAVEPOINT_DIR, STATE_RECOVERY_PATH
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult

log = logging.getLogger(__name__)

_RETRY_DELAY = 0.1
"""Seconds until the next look for a JobMaster."""


class JobSnapshots:
    """Takes and disposes of snapshots. Lives on the Dispatcher's main thread."""

    def __init__(
        self,
        dispatcher: FencedRpcEndpoint[DispatcherId],
        jobs: Mapping[JobID, ManagedJob],
        storage: UserStorage,
    ) -> None:
        """Create the object that takes and disposes of snapshots for the Dispatcher.
        *jobs* is the Dispatcher's own mapping of jobs that are not cleaned up. It changes over
        time.
        """
        self._dispatcher = dispatcher
        self._storage = storage
        self._jobs = jobs
        self._being_given: Counter[str] = Counter()
        """Number of running checks of each savepoint, by its metadata path.
        A check runs before a job starts from the savepoint.
        """
        self._being_disposed: Counter[str] = Counter()

    async def take(self, job: ManagedJob, request: SnapshotRequest) -> SnapshotTaken:
        """Take a snapshot; see :meth:`DispatcherGateway.take_snapshot`.
        Asks one JobMaster after the other until one answers or the job has ended.
        """
        await asyncio.shield(job.accepted)
        while job.outcome is None:
            if job.gateway is not None:
                try:
                    token = self._dispatcher.fencing_token
                    return await job.gateway.take_snapshot(token, request)
                except RpcError as error:
                    if not (error.retryable or isinstance(error, FencingTokenError)):
                        raise
                    log.info("%s: no %s yet: %s", job.text, request.kind.value, error)
            await self._dispatcher.rpc_service.pause(_RETRY_DELAY)
        return taken_at_the_end(job.outcome.result, request)

    async def check_given(self, graph: JobGraph) -> None:
        """Check that the savepoint from which a job is to start exists and is not being deleted. If
        the storage fails temporarily, the check passes. The job's JobMaster checks again, and also
        whether all files are there. Does nothing for a job that starts from no savepoint.

        Raises:
            JobSubmissionError: the savepoint is missing, incomplete or being deleted, or its
                storage hangs.
        """
        given = ReadableConfig(graph.configuration).get(STATE_RECOVERY_PATH)
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
        """Delete a savepoint; see :meth:`DispatcherGateway.dispose_savepoint`."""
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

    def directories(self, of_cluster: ReadableConfig) -> tuple[str, ...]:
        """Return the snapshot directories of the cluster and of all jobs that have not ended."""
        of_jobs = [ReadableConfig(job.graph.configuration) for job in self._jobs.values()]
        found = (
            configuration.get(option)
            for configuration in (of_cluster, *of_jobs)
            for option in (CHECKPOINTING_DIR, SAVEPOINT_DIR)
        )
        return tuple(dict.fromkeys(filter(None, found)))

    async def _dispose_unless_needed(self, path: str, location: str, taken_of: JobID) -> None:
        """Delete the savepoint. Raises JobStateError if a job would recover from the savepoint, or
        is about to start from it."""
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
        """Return whether the job would recover from the savepoint at *location*.
        *taken_of* is the job whose state the savepoint holds. If the JobMaster does not answer, the
        result is True for that job and for a job that was started from the savepoint.
        """
        if job.outcome is not None:
            return False
        if job.gateway is not None:
            try:
                return await job.gateway.request_savepoint_in_use() == location
            except (RpcError, JobStateError) as error:
                log.info(
                    "%s: the JobMaster does not say which savepoint is in use: %s", job.text, error
                )
        given = ReadableConfig(job.graph.configuration).get(STATE_RECOVERY_PATH)
        return job.job_id == taken_of or (given is not None and metadata_path(given) == location)


def _one_less(counts: Counter[str], location: str) -> None:
    counts[location] -= 1
    if not counts[location]:
        del counts[location]


def dispose_savepoint(location: str) -> None:
    """Delete a savepoint with its files, and its directory if nothing else is in the directory.
    Blocks. Raises CheckpointNotFoundError if *location* has no savepoint, or has a checkpoint: only
    a checkpoint's job deletes the checkpoint."""
    path = metadata_path(location)
    directory = locations.parent_of(path)
    metadata = read_metadata(path)
    if metadata.kind is not SnapshotKind.SAVEPOINT:
        raise CheckpointNotFoundError(
            directory, f"it is a checkpoint of job {metadata.job_id}, and no savepoint"
        )
    files = [file for operator in metadata.operators for file in operator.files()]
    own = [file for file in files if locations.parent_of(file.path) == directory]
    delete_checkpoint(path, own)


def taken_at_the_end(result: JobResult, request: SnapshotRequest) -> SnapshotTaken:
    """Return the savepoint with which the ended job was stopped on *request*.

    Raises:
        JobStateError: this request has not stopped the job.
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
