"""Submits a job: uploads large user code, and sends the job graph.

An interrupted client can find out whether the job was accepted.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from flinkray.actors.gateways import DispatcherGateway
from flinkray.blob import BlobClient, BlobNotFoundError, BlobOwner, blob_server_beside
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.core.blobs import BlobKey
from flinkray.core.errors import (
    DuplicateJobSubmissionError,
    FlinkRayError,
    RecipientUnreachableError,
    RpcTimeoutError,
)
from flinkray.core.options import BLOB_OFFLOAD_MIN_SIZE
from flinkray.scheduler.graph.job_graph import JobGraph

log = logging.getLogger(__name__)

_UPLOADS = 3
"""How many times user code is uploaded for one submission if the cluster loses it again."""
_PATIENCE = 5.0
"""Seconds without progress after which an upload fails; the submission then begins again."""


class SubmissionInterrupted(KeyboardInterrupt):
    """Raised when Ctrl-C came while a job was being submitted.
    The text says what became of the job.
    """


class Submission:
    """Submits one job, and knows whether the job may have been accepted.
    Used on the client's event loop.
    """

    def __init__(
        self,
        connection: DispatcherConnection,
        job: JobGraph,
        timeout: float | None,
        offload_min_size: int = BLOB_OFFLOAD_MIN_SIZE.default,
    ) -> None:
        """Create a submission; :meth:`make` makes it.

        Args:
            timeout: seconds to wait for an answer; None: for as long as there is a Dispatcher.
            offload_min_size: value of the option ``blob.offload.minsize``, in bytes.
        """
        self._connection = connection
        self._job = job
        self._timeout = timeout
        self._offload_min_size = offload_min_size
        self._task: asyncio.Task[None] | None = None

    async def make(self) -> None:
        """Submit the job; return when the cluster has stored it. If the caller is cancelled, the
        submission continues in the background: a later request to cancel the job must not reach the
        Dispatcher before the job does."""
        self._task = asyncio.ensure_future(self._submit())
        await asyncio.shield(self._task)

    async def may_be_accepted(self) -> bool:
        """Wait until the submission has ended; return whether the cluster may have accepted the
        job. False: the job was never sent, or was refused. True: it was accepted, or the answer was
        lost."""
        if self._task is None:
            return False
        await asyncio.wait([self._task])
        error = self._task.exception()
        return error is None or (isinstance(error, FlinkRayError) and error.retryable)

    async def _submit(self) -> None:
        """Submit the job exactly once; large user code is uploaded first. An attempt may end
        without an answer although the cluster accepted the job. If a later attempt then finds that
        the cluster knows the job, the submission has succeeded."""
        job = self._job
        unanswered = False
        run_blocking = self._connection.rpc_service.run_blocking
        small, blobs = await run_blocking(offload, job, self._offload_min_size)

        async def submit(gateway: DispatcherGateway) -> None:
            nonlocal unanswered
            await self._upload(gateway, blobs)
            try:
                await gateway.submit_job(small)
            except DuplicateJobSubmissionError:
                if not unanswered:
                    raise
            except (RecipientUnreachableError, RpcTimeoutError):
                unanswered = True
                raise

        async def submit_with_blobs(gateway: DispatcherGateway) -> None:
            for _ in range(_UPLOADS - 1):
                try:
                    await submit(gateway)
                except BlobNotFoundError as error:  # the Dispatcher was replaced in between
                    log.info("job %s: to be uploaded again: %s", job.job_id, error)
                else:
                    return
            await submit(gateway)

        await self._connection.ask(f"submit job {job.job_id}", submit_with_blobs, self._timeout)

    async def _upload(self, gateway: DispatcherGateway, blobs: dict[BlobKey, bytes]) -> None:
        if blobs:
            address = blob_server_beside(gateway.address)
            client = BlobClient(self._connection.rpc_service, address, patience=_PATIENCE)
            for blob in blobs.values():
                await client.put(BlobOwner.of_job(self._job.job_id), blob)


def offload(graph: JobGraph, min_size: int) -> tuple[JobGraph, dict[BlobKey, bytes]]:
    """Replace the largest pieces of user code and files in *graph* by the keys of blobs, until the
    pieces that are left have at most *min_size* bytes together. Returns (graph with keys, replaced
    pieces by key). Nothing is uploaded here."""
    vertices, files = list(graph.vertices), list(graph.files)
    contents = [vertex.invokable.code for vertex in vertices] + [file.content for file in files]
    pieces = {index: piece for index, piece in enumerate(contents) if isinstance(piece, bytes)}
    blobs: dict[BlobKey, bytes] = {}
    left = sum(map(len, pieces.values()))
    for index, piece in sorted(pieces.items(), key=lambda item: len(item[1]), reverse=True):
        if left <= min_size:
            break
        key = BlobKey.of(piece)
        blobs[key] = piece
        if index < len(vertices):
            vertex = vertices[index]
            vertices[index] = replace(vertex, invokable=replace(vertex.invokable, code=key))
        else:
            place = index - len(vertices)
            files[place] = replace(files[place], content=key)
        left -= len(piece)
    return replace(graph, vertices=tuple(vertices), files=tuple(files)), blobs
