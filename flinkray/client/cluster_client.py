"""The Python client of a running cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from flinkray.actors.gateways.savepoint_disposal import disposal
from flinkray.client.client_session import ANSWER_TIMEOUT, ClientClosedError, ClientSession
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.embedded_output import EmbeddedOutput
from flinkray.client.job_handle import JobHandle
from flinkray.client.loop_thread import LoopThread
from flinkray.client.process_end import not_at_process_end
from flinkray.client.savepoint_locations import absolute_location
from flinkray.client.submission import Submission, SubmissionInterrupted
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import FlinkRayError, JobNotFoundError
from flinkray.core.ids import JobID
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import ClusterOverview, JobOverview, ModelInfo

__all__ = ["ClientClosedError", "ClusterClient"]

log = logging.getLogger(__name__)


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
        configuration: ReadableConfig | None = None,
        output: EmbeddedOutput | None = None,
    ) -> None:
        """Create the client of a cluster that *connection* has found.

        *on_close*: coroutine function that leaves the cluster; it runs on the client's event loop
        when the client is closed. *after_close*: called after the event loop has ended.
        *configuration*: only ``client.*``, ``execution.*`` and ``blob.offload.minsize`` are used.
        *output*: the running output of an embedded cluster, which is closed with the client."""
        self._session = ClientSession(
            loop,
            connection,
            cluster_id,
            on_close=on_close,
            after_close=after_close,
            configuration=configuration,
            output=output,
        )
        self.cluster_id = cluster_id
        self.dashboard_url = dashboard_url
        """URL of the Ray dashboard. None if the URL is unknown."""

    def submit(self, job: JobGraph, *, timeout: float | None = ANSWER_TIMEOUT) -> JobHandle:
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
        submission = self._submission(job, timeout)
        try:
            self._session.run(self._submit(job, submission))
        except KeyboardInterrupt:
            raise SubmissionInterrupted(self._withdraw(job, submission)) from None
        return JobHandle(self._session, job.job_id)

    async def submit_async(
        self, job: JobGraph, *, timeout: float | None = ANSWER_TIMEOUT
    ) -> JobHandle:
        """Submit a job from code on an event loop, and return its handle when the cluster has
        stored the job. Arguments and errors are those of :meth:`submit`. If the caller is
        cancelled, the job is cancelled in the background if it was accepted."""
        submission = self._submission(job, timeout)
        try:
            await asyncio.wrap_future(self._session.start(self._submit(job, submission)))
        except asyncio.CancelledError:
            self._session.start(self._end_submitted(job.job_id, submission))
            raise
        return JobHandle(self._session, job.job_id)

    def _submission(self, job: JobGraph, timeout: float | None) -> Submission:
        session = self._session
        return Submission(session.dispatcher, job, timeout, session.settings.offload_min_size)

    async def _submit(self, job: JobGraph, submission: Submission) -> None:
        if job.client is not None:
            self._session.attach(job.job_id)
        try:
            await submission.make()
        except FlinkRayError:
            self._session.detach(job.job_id)
            raise

    def _withdraw(self, job: JobGraph, submission: Submission) -> str:
        """Cancel a job after Ctrl-C, if it was accepted. Return a text that says what became of the
        job."""
        try:
            log.warning("withdrawing %s (Ctrl-C again leaves at once)", job.text)
            was_there = self._session.run(self._end_submitted(job.job_id, submission))
        except KeyboardInterrupt:
            return f"{job.text} may have been submitted; look with: flinkray info {job.job_id}"
        except FlinkRayError as error:
            return f"{job.text} may have been submitted and goes on: {error}"
        return f"{job.text} was {'cancelled' if was_there else 'not submitted'}"

    async def _end_submitted(self, job_id: JobID, submission: Submission) -> bool:
        """Cancel the job if the cluster has accepted it. Return whether it has."""
        if not await submission.may_be_accepted():
            return False
        try:
            await self._session.end_job(job_id)
        except JobNotFoundError:
            return False
        finally:
            self._session.detach(job_id)
        return True

    def job(self, job_id: JobID | str) -> JobHandle:
        """Return the handle of a job that was submitted before. Whether there is such a job is not
        checked.

        Raises:
            ValueError: the text is not a job id.
        """
        return JobHandle(
            self._session, job_id if isinstance(job_id, JobID) else JobID.from_hex(job_id)
        )

    def list_jobs(self) -> tuple[JobOverview, ...]:
        """Return running and ended jobs, oldest first."""
        return self._session.ask("list the jobs", lambda gateway: gateway.list_jobs())

    def list_models(self) -> tuple[ModelInfo, ...]:
        """Return the models whose replicas run or start (``DataStream.infer``), oldest first."""
        return self._session.ask("list the models", lambda gateway: gateway.list_models())

    def cancel(self, job_id: JobID | str) -> None:
        """Begin to cancel a job. Idempotent. Raises what :meth:`JobHandle.cancel` raises."""
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
        self._session.ask(f"dispose of savepoint {location}", disposal(location), timeout)

    def cluster_overview(self) -> ClusterOverview:
        """Return the workers, slots and resources of the cluster."""
        return self._session.ask(
            "get the overview of the cluster", lambda gateway: gateway.request_cluster_overview()
        )

    def close(self) -> None:
        """Leave the cluster. Idempotent.

        An embedded cluster that this client started is shut down, with its running jobs. Jobs that
        end with their client are cancelled; ``client.close-timeout`` limits the wait for their end.
        """
        try:
            self._session.close()
        finally:
            not_at_process_end(self)

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
        state = "closed, " if self._session.is_closed else ""
        return f"<ClusterClient {state}cluster {self.cluster_id!r}>"
