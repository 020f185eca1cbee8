"""The internal interface of a client, which other modules of flinkray use and users do not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.client.attached_jobs import AttachedJobs, ClientSettings
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.embedded_output import EmbeddedOutput
from flinkray.client.loop_thread import LoopEndedError, LoopThread
from flinkray.core.client_options import CLIENT_CLOSE_TIMEOUT
from flinkray.core.config import ReadableConfig
from flinkray.core.durations import format_duration
from flinkray.core.errors import FlinkRayError, JobNotFoundError, JobStateError
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_TIMEOUT = 60.0
"""Seconds to wait for an answer, including a restart of the Dispatcher."""


class ClientClosedError(FlinkRayError):
    """Raised when the client was closed. :func:`flinkray.connect` makes a new client."""


class ClientSession:
    """What a ClusterClient consists of: its event loop, its connection to the Dispatcher, the jobs
    that end with it, and the output of its embedded cluster. Coroutine methods are called on the
    client's event loop, other methods from any thread."""

    def __init__(
        self,
        loop: LoopThread,
        connection: DispatcherConnection,
        cluster_id: str,
        *,
        on_close: Callable[[], Coroutine[Any, Any, None]],
        after_close: Callable[[], None] = lambda: None,
        configuration: ReadableConfig | None = None,
        output: EmbeddedOutput | None = None,
    ) -> None:
        """Create the session of a client, with the arguments of :class:`ClusterClient`.

        *on_close*: coroutine function that leaves the cluster; it runs on the client's event loop
        in :meth:`close`. *after_close*: called after the event loop has ended."""
        self._loop = loop
        self.dispatcher = connection
        """The connection to the Dispatcher. Use it only on the client's event loop."""
        self.cluster_id = cluster_id
        self._on_close = on_close
        self._after_close = after_close
        self._output = output
        self.is_closed = False
        """Whether the client was closed, or belongs to the parent of this forked process."""
        self.settings = ClientSettings.of(configuration or ReadableConfig())
        self._attached = AttachedJobs(connection, self.settings.heartbeat_interval)

    @property
    def rpc_service(self) -> RpcService:
        """The RPC service of the client. Use it only on the client's event loop."""
        return self.dispatcher.rpc_service

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's event loop and return its result.

        Raises:
            ClientClosedError: the client is closed.
        """
        self._check_open(coroutine)
        return self._loop.run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the client's event loop and return its future.

        Raises:
            ClientClosedError: the client is closed.
        """
        self._check_open(coroutine)
        return self._loop.start(coroutine)

    def _check_open(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        if self.is_closed:
            coroutine.close()
            raise ClientClosedError(
                f"the client of cluster {self.cluster_id!r} is closed; "
                "make a new one with flinkray.connect()"
            )

    def ask(
        self,
        question: str,
        call: Callable[[DispatcherGateway], Awaitable[T]],
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> T:
        """Make *call* to the leading Dispatcher, wait for its answer, and return the answer.

        Args:
            question: names the call in error messages.
            timeout: seconds; None: no limit.
        """
        return self.run(self.dispatcher.ask(question, call, timeout))

    async def ask_async(
        self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]
    ) -> T:
        """Make *call* to the leading Dispatcher from code on the client's event loop, and return
        the answer. *question* names the call in error messages."""
        return await self.dispatcher.ask(question, call, ANSWER_TIMEOUT)

    async def source_coordinator(self, job_id: JobID) -> JobMasterId | None:
        """Return the id of the JobMaster that has started the coordinator of the job's sources.
        None: the JobMaster does not answer, or no coordinator was started yet."""
        return await self.ask_async(
            f"find the coordinator of the sources of job {job_id}",
            lambda gateway: gateway.request_source_coordinator(job_id),
        )

    async def job_result(self, job_id: JobID) -> JobResult:
        """Wait until the job has ended, and return its result."""
        return await self.dispatcher.ask(
            f"get the result of job {job_id}",
            lambda gateway: gateway.request_job_result(job_id),
            None,
        )

    async def end_job(self, job_id: JobID) -> None:
        """Cancel a job if it still runs, and wait for its end."""
        with suppress(JobStateError):  # the job has ended
            await self.ask_async(f"cancel job {job_id}", lambda gateway: gateway.cancel_job(job_id))
        await self.job_result(job_id)

    # --- jobs that end with the client

    def ending_with_client(self, job: JobGraph, reason: str) -> JobGraph:
        """Return a copy of *job* that the cluster cancels, with the cause *reason*, when this
        client is closed or lost."""
        return replace(job, client=self.settings.attached_client(reason))

    def attach(self, job_id: JobID) -> None:
        """Begin to send heartbeats for a job, so that the cluster does not cancel the job as
        abandoned. Called on the client's event loop, before the job is submitted."""
        self._attached.add(job_id)
        self._attached.begin_heartbeats()

    def detach(self, job_id: JobID) -> None:
        """Stop sending heartbeats for a job that has ended, or that shall outlive the client.
        Idempotent.
        """
        self._attached.discard(job_id)

    def end_attached(self, job_id: JobID) -> None:
        """Begin to cancel an attached job, because the object that reads its results was dropped.
        Returns at once. An error is logged, because no caller waits for the end."""
        if not self.is_closed:
            with suppress(LoopEndedError):  # the client was closed: it ends such jobs
                self._loop.start(self._end_attached(job_id))

    async def _end_attached(self, job_id: JobID) -> None:
        try:
            with suppress(JobNotFoundError):  # the job was never accepted
                await self.end_job(job_id)
        except FlinkRayError as error:
            log.warning("job %s may go on without its reader: %s", job_id, error)
        finally:
            self.detach(job_id)

    # --- the output of an embedded cluster

    def show_output(self) -> None:
        """Show everything that jobs of an embedded cluster have printed until now."""
        if self._output is not None:
            self._output.show()

    def clear_before_output(self, clear: Callable[[], None]) -> None:
        """Set a function to be called before the output of jobs of an embedded cluster is shown."""
        if self._output is not None:
            self._output.clear_before(clear)

    # --- the end

    def close(self) -> None:
        """Leave the cluster: cancel the attached jobs, disconnect, and end the event loop. An
        embedded cluster is shut down. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            self._loop.run(self._close())
        finally:
            self._loop.close()
            if self._output is not None:
                self._output.close()
            self._after_close()

    def abandon(self) -> None:
        """Mark the session as closed, without ending anything. Called in a forked process, which
        has no event loop: the client belongs to the parent process."""
        self.is_closed = True

    async def _close(self) -> None:
        try:
            await self._end_all_attached()
        finally:
            await self._on_close()

    async def _end_all_attached(self) -> None:
        ends = {asyncio.ensure_future(self._end_attached(each)): each for each in self._attached}
        if not ends:
            return
        timeout = self.settings.close_timeout
        _, late = await asyncio.wait(ends, timeout=timeout)
        for end in late:
            end.cancel()
            log.warning(
                "left job %s: it was told to end and has not within %s (%s); look with: "
                "flinkray info %s",
                ends[end],
                format_duration(timeout),
                CLIENT_CLOSE_TIMEOUT.key,
                ends[end],
            )


class _Client(Protocol):
    _session: ClientSession


def session_of(client: _Client) -> ClientSession:
    """Return the session of a ClusterClient."""
    return client._session
