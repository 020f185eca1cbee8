"""The Python client of a running cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.savepoint_disposal import disposal
from flinkray.client.attached_jobs import AttachedJobs, ClientSettings
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.embedded_output import EmbeddedOutput
from flinkray.client.job_handle import JobHandle
from flinkray.client.loop_thread import LoopEndedError, LoopThread
from flinkray.client.process_end import not_at_process_end
from flinkray.client.savepoint_locations import absolute_location
from flinkray.client.submission import Submission, SubmissionInterrupted
from flinkray.core.client_options import CLIENT_CLOSE_TIMEOUT
from flinkray.core.config import Configuration
from flinkray.core.config_option import format_duration
from flinkray.core.errors import (
    FlinkRayError,
    JobNotFoundError,
    JobStateError,
)
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import ClusterOverview, JobOverview, JobResult

log = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_TIMEOUT = 60.0
"""Seconds to wait for an answer, including a restart of the Dispatcher."""


class ClientClosedError(FlinkRayError):
    """Raised when the client was closed. :func:`flinkray.connect` makes a new client."""


class ClusterClient:
    """Client of one cluster, made by :func:`flinkray.connect`.

    The client submits jobs and asks for their state.

    Its methods block and can be called from any thread. Ctrl-C ends the waiting at once. It is a
    context manager, plain and async, that closes the client at the end.

    If the Dispatcher dies during a call, the client repeats the call to the next Dispatcher.
    """

    def __init__(
        self,
        loop: LoopThread,
        connection: DispatcherConnection,
        cluster_id: str,
        *,
        on_close: Callable[[], Coroutine[Any, Any, None]],
        after_close: Callable[[], None] = lambda: None,
        dashboard_url: str | None = None,
        configuration: Configuration | None = None,
        output: EmbeddedOutput | None = None,
    ) -> None:
        """Create the client of a cluster that *connection* has found.

        *configuration*: only ``client.*`` and ``execution.*`` are used. *output*: output of an
        embedded cluster; it has begun, and is closed with the client.
        """
        self._loop = loop
        self._connection = connection
        self._on_close = on_close
        self._after_close = after_close
        self._closed = False
        self._output = output
        self.settings = ClientSettings.of(configuration or Configuration())
        self._attached = AttachedJobs(connection, self.settings.heartbeat_interval)
        self.cluster_id = cluster_id
        self.dashboard_url = dashboard_url
        """URL of the Ray dashboard. None if the URL is unknown."""

    def submit(self, job: JobGraph, *, timeout: float | None = _ANSWER_TIMEOUT) -> JobHandle:
        """Submit a job (see :func:`flinkray.spark_job`). On return the job is stored and will run.

        Args:
            timeout: seconds to wait until the cluster has stored the job, restarts of the
                Dispatcher included; None: for as long as there is a Dispatcher.

        Raises:
            DuplicateJobSubmissionError: the cluster has or had a job of that id.
            JobSubmissionError: the job is refused; the text says why.
            RpcTimeoutError: (a TimeoutError) no answer within that time; the job may have been
                submitted.
            RpcConnectionError: no Dispatcher could be reached for a minute.
            SubmissionInterrupted: (a KeyboardInterrupt) Ctrl-C came; the job was cancelled, or
                never submitted. A second Ctrl-C leaves the job as it is.
        """
        submission = Submission(self._connection, job, timeout)
        try:
            self._run(self._submit(job, submission))
        except KeyboardInterrupt:
            raise SubmissionInterrupted(self._withdraw(job, submission)) from None
        return JobHandle(self, job.job_id)

    async def submit_async(
        self, job: JobGraph, *, timeout: float | None = _ANSWER_TIMEOUT
    ) -> JobHandle:
        """Submit a job as :meth:`submit` does, from code on an event loop.

        If the caller is cancelled, the job is cancelled in the background if it was accepted.
        """
        submission = Submission(self._connection, job, timeout)
        try:
            await asyncio.wrap_future(self._start(self._submit(job, submission)))
        except asyncio.CancelledError:
            self._start(self._end_submitted(job.job_id, submission))
            raise
        return JobHandle(self, job.job_id)

    async def _submit(self, job: JobGraph, submission: Submission) -> None:
        if job.client is not None:
            self._attached.add(job.job_id)
            self._attached.begin_heartbeats()
        try:
            await submission.make()
        except FlinkRayError:
            self.detach(job.job_id)
            raise

    def _withdraw(self, job: JobGraph, submission: Submission) -> str:
        """Cancel a job after Ctrl-C, if it was accepted. Return a text about the job's state."""
        try:
            log.warning("withdrawing %s (Ctrl-C again leaves at once)", job.text)
            was_there = self._run(self._end_submitted(job.job_id, submission))
        except KeyboardInterrupt:
            return f"{job.text} may have been submitted; look with: flinkray info {job.job_id}"
        except FlinkRayError as error:
            return f"{job.text} may have been submitted and goes on: {error}"
        return f"{job.text} was {'cancelled' if was_there else 'not submitted'}"

    async def _end_submitted(self, job_id: JobID, submission: Submission) -> bool:
        """Cancel the job if it was accepted. Return whether it was accepted."""
        if not await submission.may_be_accepted():
            return False
        try:
            await self.end_job(job_id)
        except JobNotFoundError:
            return False
        finally:
            self.detach(job_id)
        return True

    def job(self, job_id: JobID | str) -> JobHandle:
        """Return the handle of a job that was submitted before. The job's existence is not checked.

        Raises:
            ValueError: the text is not a job id.
        """
        return JobHandle(self, job_id if isinstance(job_id, JobID) else JobID.from_hex(job_id))

    def list_jobs(self) -> tuple[JobOverview, ...]:
        """Return running and ended jobs, oldest first."""
        return self._ask("list the jobs", lambda gateway: gateway.list_jobs())

    def cancel(self, job_id: JobID | str) -> None:
        """Cancel a job, as :meth:`JobHandle.cancel` does."""
        self.job(job_id).cancel()

    def dispose_savepoint(self, path: str, *, timeout: float | None = None) -> None:
        """Delete a savepoint, given by its directory or its metadata file.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            CheckpointStorageError: there is no savepoint, or it cannot be deleted.
            JobStateError: a running job has started from the savepoint and has taken no checkpoint
                yet.
        """
        location = absolute_location(path)
        self._ask(f"dispose of savepoint {location}", disposal(location), timeout)

    def cluster_overview(self) -> ClusterOverview:
        """Return the workers, slots and resources of the cluster."""
        return self._ask(
            "get the overview of the cluster", lambda gateway: gateway.request_cluster_overview()
        )

    def close(self) -> None:
        """Leave the cluster. Idempotent.

        An embedded cluster that this client started is shut down, with its running jobs. Jobs that
        end with their client are cancelled; ``client.close-timeout`` limits the wait for their end.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._close())
        finally:
            self._loop.close()
            if self._output is not None:
                self._output.close()
            self._after_close()
            not_at_process_end(self)

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed, or belongs to the parent of this forked process."""
        return self._closed

    def abandon(self) -> None:
        """Drop the client without closing it.
        Called in a forked process, which has no event loop: the client belongs to the parent.
        """
        self._closed = True

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

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> ClusterClient:
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __repr__(self) -> str:
        state = "closed, " if self._closed else ""
        return f"<ClusterClient {state}cluster {self.cluster_id!r}>"

    # --- for the API of streams

    def show_output(self) -> None:
        """Show everything that jobs of an embedded cluster have printed until now."""
        if self._output is not None:
            self._output.show()

    def clear_before_output(self, clear: Callable[[], None]) -> None:
        """Set a function to be called before the output of jobs of an embedded cluster is shown."""
        if self._output is not None:
            self._output.clear_before(clear)

    @property
    def dispatcher(self) -> DispatcherConnection:
        """The connection to the Dispatcher. Use it only on the client's event loop."""
        return self._connection

    @property
    def rpc_service(self) -> RpcService:
        """The RPC service of the client. Use it only on the client's event loop."""
        return self._connection.rpc_service

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's event loop and return its result."""
        return self._run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the client's event loop and return its future."""
        return self._start(coroutine)

    async def ask(self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T:
        """Make *call* to the leading Dispatcher and return its answer.
        *question* names the call in error messages. Called on the client's event loop.
        """
        return await self._connection.ask(question, call, _ANSWER_TIMEOUT)

    async def source_coordinator(self, job_id: JobID) -> JobMasterId | None:
        """Return the JobMaster that has started the coordinator of the job's sources.

        None: the coordinator is not known at present. Called on the client's event loop.
        """
        return await self.ask(
            f"find the coordinator of the sources of job {job_id}",
            lambda gateway: gateway.request_source_coordinator(job_id),
        )

    async def job_result(self, job_id: JobID) -> JobResult:
        """Return the job's result when the job has ended; called on the client's event loop."""
        return await self._connection.ask(
            f"get the result of job {job_id}",
            lambda gateway: gateway.request_job_result(job_id),
            None,
        )

    async def end_job(self, job_id: JobID) -> None:
        """Cancel a job if it still runs, and wait for its end.

        Called on the client's event loop.
        """
        with suppress(JobStateError):  # the job has ended
            await self.ask(f"cancel job {job_id}", lambda gateway: gateway.cancel_job(job_id))
        await self.job_result(job_id)

    def ending_with_it(self, job: JobGraph, reason: str) -> JobGraph:
        """Return a copy of *job* that is cancelled when this client ends.

        If the client is closed or lost, the job is cancelled for *reason*.
        """
        return replace(job, client=self.settings.attached_client(reason))

    def detach(self, job_id: JobID) -> None:
        """Send no more heartbeats for a job.
        Call this when the job has ended, or when it is not to end with the client any more.

        Can be called from any thread. Idempotent.
        """
        self._attached.discard(job_id)

    def end_attached(self, job_id: JobID) -> None:
        """Begin to cancel a job, because its reader in this process is gone.
        Called from any thread.
        """
        if not self._closed:
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

    # --- for JobHandle

    def _ask(
        self,
        question: str,
        call: Callable[[DispatcherGateway], Awaitable[T]],
        timeout: float | None = _ANSWER_TIMEOUT,
    ) -> T:
        return self._run(self._connection.ask(question, call, timeout))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._check_open(coroutine)
        return self._loop.run(coroutine)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        self._check_open(coroutine)
        return self._loop.start(coroutine)

    def _check_open(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        if self._closed:
            coroutine.close()
            raise ClientClosedError(
                f"the client of cluster {self.cluster_id!r} is closed; "
                "make a new one with flinkray.connect()"
            )
