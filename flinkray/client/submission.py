"""Submitting a job so that whoever is interrupted meanwhile can take it back."""

from __future__ import annotations

import asyncio

from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.core.errors import FlinkRayError
from flinkray.scheduler.graph.job_graph import JobGraph


class SubmissionInterrupted(KeyboardInterrupt):
    """Ctrl-C came while a job was being submitted; the text says what has become of the job."""


class Submission:
    """Of one job; on the client's event loop."""

    def __init__(
        self, connection: DispatcherConnection, job: JobGraph, timeout: float | None
    ) -> None:
        self._connection = connection
        self._job = job
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None

    async def make(self) -> None:
        """Returns when the job is stored.  Who stops waiting does not stop the submission, which
        may be in the Dispatcher's hands: a cancel could arrive before it."""
        self._task = asyncio.ensure_future(self._connection.submit(self._job, self._timeout))
        await asyncio.shield(self._task)

    async def may_be_accepted(self) -> bool:
        """When it is over: whether the job can be there because of it."""
        if self._task is None:
            return False
        await asyncio.wait([self._task])
        error = self._task.exception()
        return error is None or (isinstance(error, FlinkRayError) and error.retryable)
