"""A submitted job, in the hands of the one who submitted it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotType
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.job_result import JobExecutionResult
from flinkray.client.savepoint_locations import absolute_location
from flinkray.core.config_option import format_duration
from flinkray.core.errors import ConfigurationError, RpcError, RpcTimeoutError
from flinkray.core.ids import JobID, JobVertexID, TriggerID
from flinkray.scheduler.graph.job_graph import ParallelismBounds, ParallelismRange
from flinkray.scheduler.reports.job_info import ExceptionEntry, JobDetails, JobProgress, JobResult
from flinkray.scheduler.shared.states import JobStatus

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Client(Protocol):
    """A :class:`~flinkray.client.cluster_client.ClusterClient`, as its handles see it."""

    _connection: DispatcherConnection

    async def ask(self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T: ...
    def _ask(self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T: ...
    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...
    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]: ...
    def show_output(self) -> None: ...


class JobHandle:
    """Blocking methods, and ``await handle`` (on any event loop) for the result.

    Every method raises JobNotFoundError when the cluster does not know the job (any more).  To stop
    waiting, by a timeout or by Ctrl-C, does nothing to the job.
    """

    def __init__(self, client: _Client, job_id: JobID) -> None:
        self._client = client
        self.job_id = job_id

    def status(self) -> JobStatus:
        """The present status; ``is_terminal`` of it says whether the job has ended."""
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
        """The job's failures so far, oldest first, including those after which it was restarted."""
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

    def resize(
        self,
        bounds: Mapping[str, tuple[int, int]] | None = None,
        *,
        others: tuple[int, int] | None = None,
    ) -> None:
        """Let vertices of an elastic job, by their names, run with other parallelisms: with at
        least, and at most, so many subtasks.  Returns when that is stored and will be tried.

        Args:
            others: for all vertices that are not named and can have more than one subtask.

        Raises:
            ConfigurationError: the job has no, or more than one, vertex of a name.
            JobStateError: it is not possible, or another change is under way.
        """
        vertices: dict[str, list[JobVertexID]] = {}
        for vertex in self.details().vertices:
            vertices.setdefault(vertex.name, []).append(vertex.vertex_id)
        wanted = []
        for name, (lower, upper) in (bounds or {}).items():
            ids = vertices.get(name, [])
            if len(ids) != 1:
                raise ConfigurationError(
                    f"job {self.job_id} has {len(ids)} vertices named {name!r}; it has "
                    f"{', '.join(sorted(map(repr, vertices))) or 'none yet'}"
                )
            wanted.append(ParallelismBounds(ids[0], lower, upper))
        self._client._ask(
            f"resize job {self.job_id}",
            lambda gateway: gateway.resize_job(
                self.job_id, tuple(wanted), None if others is None else ParallelismRange(*others)
            ),
        )

    def trigger_savepoint(
        self, directory: str | None = None, *, timeout: float | None = None
    ) -> str:
        """Take a savepoint, and wait until it is complete; the job goes on.  Returns its directory.

        Args:
            directory: below which it gets one; a path or a URI that all nodes can reach.  None:
                what ``execution.checkpointing.savepoint-dir`` says.
            timeout: seconds.

        Raises:
            CheckpointError: it is not taken; the text says why.
            JobStateError: the job has ended.
            JobError, CheckpointStorageError: the directory cannot be used.
            RpcTimeoutError: (a TimeoutError) it is not complete after that time, and goes on.
        """
        return self._client._run(self._take(SnapshotType.SAVEPOINT, directory, timeout))

    async def trigger_savepoint_async(
        self, directory: str | None = None, *, timeout: float | None = None
    ) -> str:
        """:meth:`trigger_savepoint` for code that runs on an event loop."""
        return await self._taken(SnapshotType.SAVEPOINT, directory, timeout)

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Take a savepoint, let the job finish with it, and wait for both.  What its sinks have
        written is committed.  Returns the savepoint's directory.

        Args:
            directory: as of :meth:`trigger_savepoint`.
            timeout: as of :meth:`trigger_savepoint`.
            drain: whether event time ends before: all windows and timers fire then.  Without it
                they are in the savepoint, and come when a job goes on from it.

        Raises:
            StopWithSavepointError: (a CheckpointError) the savepoint is complete, but a task failed
                before all had ended: the job goes on from the savepoint, or has failed.
            CheckpointError, JobStateError, JobError, CheckpointStorageError, RpcTimeoutError: as of
                :meth:`trigger_savepoint`.
        """
        return self._client._run(self._take(_stop(drain), directory, timeout))

    async def stop_with_savepoint_async(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        timeout: float | None = None,
    ) -> str:
        """:meth:`stop_with_savepoint` for code that runs on an event loop."""
        return await self._taken(_stop(drain), directory, timeout)

    def trigger_checkpoint(self, *, timeout: float | None = None) -> str:
        """Take a checkpoint now, and wait until it is complete.  Returns its directory, which
        belongs to the job: it is deleted when later checkpoints are complete.

        Args:
            timeout: seconds.

        Raises:
            CheckpointError, JobStateError, RpcTimeoutError: as of :meth:`trigger_savepoint`.
        """
        return self._client._run(self._take(SnapshotType.CHECKPOINT, None, timeout))

    async def trigger_checkpoint_async(self, *, timeout: float | None = None) -> str:
        """:meth:`trigger_checkpoint` for code that runs on an event loop."""
        return await self._taken(SnapshotType.CHECKPOINT, None, timeout)

    async def _taken(self, kind: SnapshotType, directory: str | None, timeout: float | None) -> str:
        return await asyncio.wrap_future(self._client._start(self._take(kind, directory, timeout)))

    async def _take(self, kind: SnapshotType, directory: str | None, timeout: float | None) -> str:
        """One request, however often it has to be asked."""
        target = None if directory is None else absolute_location(directory)
        request = SnapshotRequest(TriggerID.generate(), kind, target)
        try:
            taken = await self._client._connection.ask(
                f"take a {kind.value} of job {self.job_id}",
                lambda gateway: gateway.take_snapshot(self.job_id, request),
                timeout,
            )
        except RpcTimeoutError:
            if timeout is None:
                raise
            raise RpcTimeoutError(
                f"the {kind.value} of job {self.job_id} was not complete after "
                f"{format_duration(timeout)}; it goes on"
            ) from None
        if taken.without_uid and kind is not SnapshotType.CHECKPOINT:
            log.warning(
                "savepoint %s has state of operators without a uid: %s. They are known by their "
                "place in the program: set a uid before you change it.",
                taken.path,
                ", ".join(map(repr, taken.without_uid)),
            )
        return taken.path

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
            on_progress: called in this thread with the job's progress, every *interval* seconds
                until the end; left out when the cluster does not answer.
            interval: seconds.

        Raises:
            RpcTimeoutError: (a TimeoutError) the job goes on after that time.
        """
        return self.until_end(timeout, on_progress=on_progress, interval=interval).status

    def until_end(
        self,
        timeout: float | None = None,
        *,
        on_progress: Callable[[JobProgress], None] | None = None,
        interval: float = 1.0,
    ) -> JobResult:
        """As :meth:`wait`, for who needs more than the status: a cluster may have forgotten the job
        when it is asked again."""
        if on_progress is None:
            result = self._client._run(self._end(timeout))
        else:
            end = self._client._start(self._end(timeout))
            result = self.watched(end, on_progress, interval)
        self._client.show_output()
        return result

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
        return JobExecutionResult.of(self.until_end(timeout))

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


def _stop(drain: bool) -> SnapshotType:
    return SnapshotType.TERMINATE_WITH_SAVEPOINT if drain else SnapshotType.SUSPEND_WITH_SAVEPOINT
