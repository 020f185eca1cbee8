"""The blobs of jobs: contents too large for a job graph, kept as long as their job."""

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
    """The blob server in the Dispatcher's process, with the blobs that each job keeps.

    Uploaded blobs are deleted after ``blob.upload-timeout`` unless their job is accepted. A refused
    submission deletes nothing, because the blobs may be those of a running job with the same id.
    """

    def __init__(self, server: BlobServer) -> None:
        self._server = server

    @classmethod
    async def create(cls, services: ClusterServices, leadership: Leadership) -> JobBlobs:
        """Create the server, with the blobs that a previous Dispatcher left. Raises BlobStoreError.

        The server deletes blobs only while the election confirms that this Dispatcher leads.
        """
        store = BlobStore(services.high_availability.get_blob_directory())
        timeout = services.configuration.get(BLOB_UPLOAD_TIMEOUT)
        in_charge = leadership.is_certain
        return cls(await BlobServer.create(services.rpc_service, store, timeout, in_charge))

    async def retain_recovered(self, graphs: Iterable[JobGraph]) -> None:
        """Keep the blobs of *graphs*, which a previous Dispatcher has stored.
        A missing blob is only logged: its job fails later, when it needs the blob.
        """
        for graph in graphs:
            if graph.blobs:
                missing = await self._server.retain(BlobOwner.of_job(graph.job_id), graph.blobs)
                for key in missing:
                    log.error("%s: its blob %s is lost", graph.text, key)

    async def retain_all(self, job_id: JobID) -> None:
        """Keep all blobs of a job whose graph cannot be read, until :meth:`delete`."""
        await self._server.retain(BlobOwner.of_job(job_id), ())

    def start(self) -> None:
        """Start the blob server, so that clients can reach it."""
        self._server.start()

    async def close(self) -> None:
        """End the server. The blobs that jobs keep stay stored."""
        await self._server.close()

    async def retain(self, graph: JobGraph) -> None:
        """Keep the blobs of a graph until :meth:`delete`.

        Raises:
            BlobNotFoundError: some of the blobs are not here.
        """
        if graph.blobs:
            owner = BlobOwner.of_job(graph.job_id)
            missing = await self._server.retain(owner, graph.blobs)
            if missing:
                raise BlobNotFoundError(owner, *missing)

    async def release(self, job_id: JobID) -> None:
        """Undo :meth:`retain` for a refused job. Its blobs are deleted after the upload timeout."""
        await self._server.release(BlobOwner.of_job(job_id))

    async def delete(self, job_id: JobID) -> None:
        """Delete the blobs of an ended job whose graph is not stored any more.

        Raises:
            BlobStoreError: some blobs may be left; call again.
        """
        await self._server.delete(BlobOwner.of_job(job_id))
