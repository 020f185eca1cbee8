"""The blobs of jobs: what was too large for a job graph, kept as long as its job."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership
from flinkray.blob import BlobNotFoundError, BlobOwner, BlobServer, BlobStore
from flinkray.core.ids import JobID
from flinkray.core.options import BLOB_UPLOAD_TIMEOUT
from flinkray.scheduler.graph.job_graph import JobGraph

log = logging.getLogger(__name__)


class JobBlobs:
    """The blob server in the Dispatcher's process, and which job keeps what there.

    Clients upload before they submit.  What they upload goes after ``blob.upload-timeout``, unless
    the job is accepted.  A refused submission deletes nothing: the blobs may be those of a running
    job of the same id.
    """

    def __init__(self, server: BlobServer) -> None:
        self._server = server

    @classmethod
    async def create(cls, services: ClusterServices, leadership: Leadership) -> JobBlobs:
        """With what a previous Dispatcher left.  Nothing is deleted but by who leads for certain.

        Raises:
            BlobStoreError: the storage fails.
        """
        store = BlobStore(services.high_availability.get_blob_directory())
        timeout = services.configuration.get(BLOB_UPLOAD_TIMEOUT)
        in_charge = leadership.is_certain
        return cls(await BlobServer.create(services.rpc_service, store, timeout, in_charge))

    async def retain_recovered(self, graphs: Iterable[JobGraph]) -> None:
        """Keep what stored graphs refer to; a blob that is lost is logged: its job will fail where
        the blob is needed, if that is so at all."""
        for graph in graphs:
            if graph.blobs:
                missing = await self._server.retain(BlobOwner.of_job(graph.job_id), graph.blobs)
                for key in missing:
                    log.error("job %s: its blob %s is lost", graph.job_id, key)

    async def retain_all(self, job_id: JobID) -> None:
        """Keep whatever a job has here, until :meth:`delete`."""
        await self._server.retain(BlobOwner.of_job(job_id), ())

    def start(self) -> None:
        """Let clients reach the server."""
        self._server.start()

    async def close(self) -> None:
        """End the server; what jobs keep stays stored."""
        await self._server.close()

    async def retain(self, graph: JobGraph) -> None:
        """Keep what a graph refers to until :meth:`delete`.

        Raises:
            BlobNotFoundError: some of it is not here.
        """
        if graph.blobs:
            owner = BlobOwner.of_job(graph.job_id)
            missing = await self._server.retain(owner, graph.blobs)
            if missing:
                raise BlobNotFoundError(owner, *missing)

    async def release(self, job_id: JobID) -> None:
        """The job is refused after all."""
        await self._server.release(BlobOwner.of_job(job_id))

    async def delete(self, job_id: JobID) -> None:
        """The job has ended, and its graph is not stored any more.

        Raises:
            BlobStoreError: some of its blobs may be there yet; call again.
        """
        await self._server.delete(BlobOwner.of_job(job_id))
