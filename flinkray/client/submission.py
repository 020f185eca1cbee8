"""Submits a job in a way that lets an interrupted client find out whether the job was accepted.

The message itself, and the upload of large user code, are in
:mod:`flinkray.client.dispatcher_connection`.
"""

from __future__ import annotations

import asyncio

from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.core.errors import FlinkRayError
from flinkray.scheduler.graph.job_graph import JobGraph


class SubmissionInterrupted(KeyboardInterrupt):
    """Raised when Ctrl-C came while a job was being submitted.
    The text says what became of the job.
    """


class Submission:
    """Submits one job, and knows whether the job may have been accepted.
    Used on the client's event loop.
    """

    def __init__(
        self, connection: DispatcherConnection, job: JobGraph, timeout: float | None
    ) -> None:
        self._connection = connection
        self._job = job
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None

    async def make(self) -> None:
        """Submit the job; return when the cluster has stored it. If the caller is cancelled, the
        submission continues in the background: a later request to cancel the job must not reach the
        Dispatcher before the job does."""
        self._task = asyncio.ensure_future(self._connection.submit(self._job, self._timeout))
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
