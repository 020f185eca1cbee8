"""The Python client of a running cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.job_handle import JobHandle
from flinkray.client.loop_thread import LoopThread
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import IntermediateDataSetID, JobID
from flinkray.rpc import RpcService
from flinkray.scheduler.cluster_partitions import ClusterDataSet
from flinkray.scheduler.job_graph import JobGraph
from flinkray.scheduler.job_info import ClusterOverview, JobOverview, JobResult

T = TypeVar("T")

_ANSWER_TIMEOUT = 60.0
"""Seconds that a question waits, a restart of the Dispatcher in between included."""


class ClientClosedError(FlinkRayError):
    """The client was closed; make a new one with :func:`flinkray.connect`."""


class ClusterClient:
    """Submits jobs to one cluster and asks after them; made by :func:`flinkray.connect`.

    Its methods block and can be called from any thread; Ctrl-C ends the waiting at once.  A context
    manager, plain and async: leaving closes it.

    Questions survive the Dispatcher's death: they are put to its successor.
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
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._on_close = on_close
        self._after_close = after_close
        self._closed = False
        self.cluster_id = cluster_id
        self.dashboard_url = dashboard_url
        """Of the Ray dashboard, where it is known."""

    def submit(self, job: JobGraph, *, timeout: float | None = _ANSWER_TIMEOUT) -> JobHandle:
        """Submit a job (see :func:`flinkray.spark_job`); on return it is stored and will run.

        Args:
            timeout: seconds.

        Raises:
            DuplicateJobSubmissionError: the cluster has or had a job of that id.
            JobSubmissionError: the job is refused; the text says why.
        """
        self._run(self._connection.submit(job, timeout))
        return JobHandle(self, job.job_id)

    async def submit_async(
        self, job: JobGraph, *, timeout: float | None = _ANSWER_TIMEOUT
    ) -> JobHandle:
        """:meth:`submit` for code that runs on an event loop."""
        await asyncio.wrap_future(self._start(self._connection.submit(job, timeout)))
        return JobHandle(self, job.job_id)

    def job(self, job_id: JobID | str) -> JobHandle:
        """The handle of a job that was submitted before; whether it exists is not asked here.

        Raises:
            ValueError: the text is not a job id.
        """
        return JobHandle(self, job_id if isinstance(job_id, JobID) else JobID.from_hex(job_id))

    def list_jobs(self) -> tuple[JobOverview, ...]:
        """Running and ended jobs, oldest first."""
        return self._ask("list the jobs", lambda gateway: gateway.list_jobs())

    def cancel(self, job_id: JobID | str) -> None:
        """See :meth:`JobHandle.cancel`."""
        self.job(job_id).cancel()

    def cluster_overview(self) -> ClusterOverview:
        """Workers, slots and resources."""
        return self._ask(
            "get the overview of the cluster", lambda gateway: gateway.request_cluster_overview()
        )

    def list_data_sets(self) -> tuple[ClusterDataSet, ...]:
        """The persistent results that finished jobs have left; what has been promoted, lost or
        released shows with the next heartbeat of its TaskExecutor."""
        return self._ask(
            "list the persistent results", lambda gateway: gateway.list_cluster_data_sets()
        )

    def release_data_set(self, data_set_id: IntermediateDataSetID | str) -> None:
        """Have a persistent result deleted; returns when that has begun.  Idempotent.

        Raises:
            ValueError: the text is not the id of a data set.
        """
        if isinstance(data_set_id, str):
            data_set_id = IntermediateDataSetID.from_hex(data_set_id)
        self._ask(
            f"release data set {data_set_id}",
            lambda gateway: gateway.release_cluster_data_set(data_set_id),
        )

    def close(self) -> None:
        """Leave the cluster.  An embedded cluster that this client started is shut down, and its
        running jobs with it.  Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._on_close())
        finally:
            self._loop.close()
            self._after_close()

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

    @property
    def rpc_service(self) -> RpcService:
        """To be used on the client's event loop."""
        return self._connection.rpc_service

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result, from the client's event loop."""
        return self._run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the client's event loop."""
        return self._start(coroutine)

    async def ask(self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T:
        """The Dispatcher's answer; on the client's event loop."""
        return await self._connection.ask(question, call, _ANSWER_TIMEOUT)

    async def job_result(self, job_id: JobID) -> JobResult:
        """When the job has ended; on the client's event loop."""
        return await self._connection.ask(
            f"get the result of job {job_id}",
            lambda gateway: gateway.request_job_result(job_id),
            None,
        )

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
