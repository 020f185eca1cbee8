"""The clean-up after a job's end: deletes its checkpoints, releases all other resources, then marks
the result as clean."""

from __future__ import annotations

import logging

from flinkray.actors.dispatcher.job_blobs import JobBlobs
from flinkray.actors.dispatcher.job_master_supervision import JobMasterSupervision
from flinkray.actors.dispatcher.managed_job import ManagedJob
from flinkray.actors.dispatcher.retry_until_done import retry_until_done
from flinkray.actors.gateways.messages import ArchivedJob, StoredJob
from flinkray.actors.shared.checkpoint_storage import checkpoint_storage_of
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.settings import with_checkpoint_options
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.layout import delete_checkpoints_of_job
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import DispatcherId, JobID
from flinkray.core.locations import without_secrets
from flinkray.file_results import delete_directory, results_of_job
from flinkray.ha import JobGraphStore, JobResultStore, StoreError
from flinkray.rpc import RpcService
from flinkray.scheduler.checkpoints.properties import checkpoint_of
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult


class JobCleanup:
    """Cleans up ended jobs on the Dispatcher's main thread. A failed step is repeated (DI-13)."""

    def __init__(
        self,
        dispatcher_id: DispatcherId,
        services: ClusterServices,
        graphs: JobGraphStore[StoredJob],
        results: JobResultStore[ArchivedJob],
        blobs: JobBlobs,
        job_masters: JobMasterSupervision,
        storage: UserStorage,
    ) -> None:
        self._dispatcher_id = dispatcher_id
        self._services = services
        self._graphs = graphs
        self._results = results
        self._blobs = blobs
        self._job_masters = job_masters
        self._storage = storage

    async def clean_up(self, job: ManagedJob) -> None:
        """Release and delete everything of a job whose end is stored and whose JobMaster is gone.
        Each step is repeated until it succeeds.
        """
        outcome = job.outcome
        assert outcome is not None
        reason = f"job {outcome.result.status.name}"

        async def release() -> None:
            # A JobMaster that was given up, or whose report a previous Dispatcher took, may still
            # live.
            await self._job_masters.kill(job.job_id, _ENDS_WITHIN)
            manager = await self._services.connect_to_resource_manager()
            await manager.release_job(job.job_id, self._dispatcher_id, reason)

        name = job.text
        await retry_until_done(f"{name}: cannot give back its workers yet", release)
        await retry_until_done(
            f"{name}: cannot forget its checkpoints yet",
            lambda: forget_checkpoints(self._services, self._storage, job.graph, outcome.result),
        )
        await retry_until_done(
            f"{name}: cannot forget who led it yet",
            lambda: self._services.high_availability.cleanup_job(job.job_id),
        )
        # no writer from before the job's end may store the graph after this
        async with job.storing:
            await retry_until_done(
                f"{name}: cannot remove its graph yet",
                lambda: self._graphs.remove_job_graph(job.job_id),
            )
        # after the graph, which would otherwise refer to deleted blobs
        await retry_until_done(
            f"{name}: cannot delete its blobs yet", lambda: self._blobs.delete(job.job_id)
        )
        await retry_until_done(
            f"{name}: cannot delete what its stages have read of each other yet",
            lambda: self._delete_file_results(job.job_id),
        )
        await retry_until_done(
            f"{name}: cannot mark its result as clean yet",
            lambda: self._results.mark_result_as_clean(job.job_id),
        )

    async def _delete_file_results(self, job_id: JobID) -> None:
        location = results_of_job(self._services.arguments.storage_dir, job_id)
        try:
            await self._services.rpc_service.run_blocking(delete_directory, location)
        except OSError as error:
            raise StoreError(f"cannot delete {location}: {error}") from error


log = logging.getLogger(__name__)

_ENDS_WITHIN = 1.0
"""Seconds that the processes of an ended job have to end by themselves."""

PATIENCE = 30.0
"""Seconds for which a failed deletion is repeated."""
_RETRY_DELAY = 0.5
"""Seconds between two attempts."""


async def forget_checkpoints(
    services: ClusterServices, storage: UserStorage, graph: JobGraph, result: JobResult
) -> None:
    """Delete the checkpoints of an ended job, the stored pointers to them, and the counter of
    checkpoint ids. The files of the checkpoints stay if the job retains them after an end of this
    kind, or if the storage does not delete them within :data:`PATIENCE` seconds.

    Raises:
        StoreError: the pointers or the counter cannot be deleted.
    """
    try:
        directory = _directory_to_clear(services, graph, result)
        if directory is not None:
            await _delete(services.rpc_service, storage, directory)
    except (CheckpointStorageError, ConfigurationError) as error:
        log.warning("%s: something of its checkpoints stays: %s", graph.text, error)
    await services.high_availability.forget_checkpoints(graph.job_id)


async def _delete(service: RpcService, storage: UserStorage, directory: str) -> None:
    now = service.deadlines.time
    deadline = now() + PATIENCE
    while True:
        try:
            await storage.run(delete_checkpoints_of_job, directory)
            return
        except CheckpointStorageError as error:
            if not error.retryable or now() >= deadline:
                raise
            log.warning("%s is not deleted yet: %s", without_secrets(directory), error)
        await service.pause(_RETRY_DELAY)


def _directory_to_clear(
    services: ClusterServices, graph: JobGraph, result: JobResult
) -> str | None:
    """Return the directory in which the ended job's checkpoints must be deleted.
    None if its checkpoints are to stay. Raises ConfigurationError if the job's options contradict
    the cluster's, which may have changed since the job began.
    """
    configured = with_checkpoint_options(graph, services.configuration).checkpoints
    if configured is None or result.keeps_checkpoints:
        return None
    if not checkpoint_of(configured).is_discarded_at(result.status):
        return None
    return checkpoint_storage_of(services, graph).directory
