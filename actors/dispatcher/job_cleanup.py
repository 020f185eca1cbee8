"""The clean-up after a job's end: releases all resources, then marks the result as clean."""

from __future__ import annotations

from flinkray.actors.dispatcher.job_blobs import JobBlobs
from flinkray.actors.dispatcher.job_checkpoints import forget_checkpoints
from flinkray.actors.dispatcher.job_master_supervision import JobMasterSupervision
from flinkray.actors.dispatcher.managed_job import ManagedJob
from flinkray.actors.dispatcher.retry_until_done import retry_until_done
from flinkray.actors.gateways.messages import ArchivedJob, StoredJob
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.core.ids import DispatcherId, JobID
from flinkray.file_results import delete_directory, results_of_job
from flinkray.ha import JobGraphStore, JobResultStore, StoreError


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
        """Clean up a job whose end is stored and whose JobMaster is gone."""
        outcome = job.outcome
        assert outcome is not None
        reason = f"job {outcome.result.status.name}"

        async def release() -> None:
            # A JobMaster that was given up, or whose report a previous Dispatcher took, may still
            # live.
            await self._job_masters.kill(job.job_id)
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
