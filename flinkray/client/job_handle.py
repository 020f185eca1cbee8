"""A submitted job, in the hands of the one who submitted it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.job_result import JobExecutionResult
from flinkray.core.config_option import format_duration
from flinkray.core.errors import ConfigurationError, RpcError, RpcTimeoutError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.graph.job_graph import ParallelismBounds
from flinkray.scheduler.reports.job_info import ExceptionEntry, JobDetails, JobProgress, JobResult
from flinkray.scheduler.shared.states import JobStatus

T = TypeVar("T")


class _Client(Protocol):
    """A :class:`~flinkray.client.cluster_client.ClusterClient`, as its handles see it."""

    _connection: DispatcherConnection

    async def ask(self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T: ...
    def _ask(self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T: ...
    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...
    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]: ...


class JobHandle:
    """Blocking methods, and ``await handle`` (on any event loop) for the result.

    Every method raises JobNotFoundError when the cluster does not know the job (any more).  To stop
    waiting, by a timeout or by Ctrl-C, does nothing to the job.
    """

    def __init__(self, client: _Client, job_id: JobID) -> None:
        self._client = client
        self.job_id = job_id

    def status(self) -> JobStatus:
        return self._client._ask(
            f"get the status of job {self.job_id}",
            lambda gateway: gateway.request_job_status(self.job_id),
        )

    def details(self) -> JobDetails:
        """Vertices, executions and where they run, progress, why the job waits, what failed."""
        return self._client._ask(
            f"get the details of job {self.job_id}",
            lambda gateway: gateway.request_job_details(self.job_id),
        )

    async def _progress(self) -> JobProgress:
        return await self._client.ask(
            f"get the progress of job {self.job_id}",
            lambda gateway: gateway.request_job_progress(self.job_id),
        )

    def exceptions(self) -> tuple[ExceptionEntry, ...]:
        """The job's failures so far, oldest first; those that were followed by a restart too."""
        return self._client._ask(
            f"get the failures of job {self.job_id}",
            lambda gateway: gateway.request_job_exceptions(self.job_id),
        )

    def cancel(self) -> None:
        """Begin to cancel; a second time is fine.

        Raises:
            JobStateError: the job has ended otherwise.
        """
        self._client._ask(
            f"cancel job {self.job_id}", lambda gateway: gateway.cancel_job(self.job_id)
        )

    def resize(self, bounds: Mapping[str, tuple[int, int]]) -> None:
        """Let vertices of an elastic job, by their names, run with other parallelisms: with at
        least, and at most, so many subtasks.  Returns when that is stored and will be tried.

        Raises:
            ConfigurationError: the job has no, or more than one, vertex of a name.
            JobStateError: it is not possible, or another change is under way.
        """
        vertices: dict[str, list[JobVertexID]] = {}
        for vertex in self.details().vertices:
            vertices.setdefault(vertex.name, []).append(vertex.vertex_id)
        wanted = []
        for name, (lower, upper) in bounds.items():
            ids = vertices.get(name, [])
            if len(ids) != 1:
                raise ConfigurationError(
                    f"job {self.job_id} has {len(ids)} vertices named {name!r}; it has "
                    f"{', '.join(sorted(map(repr, vertices))) or 'none yet'}"
                )
            wanted.append(ParallelismBounds(ids[0], lower, upper))
        self._client._ask(
            f"resize job {self.job_id}",
            lambda gateway: gateway.resize_job(self.job_id, tuple(wanted)),
        )

    def wait(
        self,
        timeout: float | None = None,
        *,
        on_progress: Callable[[JobProgress], None] | None = None,
        interval: float = 1.0,
    ) -> JobStatus:
        """Wait for the end, whichever it is, and for the job's resources to be back.

        Args:
            timeout: seconds.
            on_progress: called here, in this thread, with how far the job is, every *interval*
                seconds until the end; a look that is not answered is left out.

        Raises:
            RpcTimeoutError: (a TimeoutError) the job goes on after that time.
        """
        if on_progress is None:
            return self._client._run(self._end(timeout)).status
        end = self._client._start(self._end(timeout))
        return self.watched(end, on_progress, interval).status

    def watched(
        self, future: Future[T], on_progress: Callable[[JobProgress], None], interval: float
    ) -> T:
        """The future's result; see :meth:`wait` for what happens until then.  Who stops waiting
        cancels it."""
        try:
            while not futures.wait([future], interval).done:
                look = self._client._start(self._progress())
                both: list[Future[Any]] = [future, look]
                futures.wait(both, return_when=futures.FIRST_COMPLETED)
                if future.done():
                    look.cancel()
                else:
                    with suppress(RpcError):
                        on_progress(look.result())
            return future.result()
        finally:
            future.cancel()

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the job to finish.

        Args:
            timeout: seconds.

        Raises:
            JobExecutionError: it failed; the text is the cause, ``remote_traceback`` says where.
            JobCancelledError, JobNotFinishedError: it ended, but not by finishing.
            RpcTimeoutError: (a TimeoutError) the job goes on after that time.
        """
        return JobExecutionResult.of(self._client._run(self._end(timeout)))

    def __await__(self) -> Generator[Any, None, JobExecutionResult]:
        return self._result().__await__()

    async def _result(self) -> JobExecutionResult:
        return JobExecutionResult.of(
            await asyncio.wrap_future(self._client._start(self._end(None)))
        )

    async def _end(self, timeout: float | None) -> JobResult:
        try:
            return await self._client._connection.ask(
                f"get the result of job {self.job_id}",
                lambda gateway: gateway.request_job_result(self.job_id),
                timeout,
            )
        except RpcTimeoutError:
            if timeout is None:
                raise
            raise RpcTimeoutError(
                f"job {self.job_id} had not ended after {format_duration(timeout)}; it goes on"
            ) from None

    def __repr__(self) -> str:
        return f"<JobHandle {self.job_id}>"
