"""The handle of a submitted job, with which users wait for the job or control it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotType
from flinkray.client.client_session import ClientSession
from flinkray.client.job_result import JobExecutionResult
from flinkray.client.savepoint_locations import absolute_location
from flinkray.core.durations import format_duration
from flinkray.core.errors import ConfigurationError, FlinkRayError, RpcError, RpcTimeoutError
from flinkray.core.ids import JobID, JobVertexID, TriggerID
from flinkray.scheduler.graph.job_graph import ParallelismBounds, ParallelismRange
from flinkray.scheduler.reports.job_info import ExceptionEntry, JobDetails, JobProgress, JobResult
from flinkray.scheduler.shared.states import JobStatus

log = logging.getLogger(__name__)

T = TypeVar("T")

_LAST_LOOK = 2.0
"""Seconds to wait for the last progress from a cluster that may be ending."""


class JobHandle:
    """Handle of one job with blocking methods. ``await handle`` gives the result on any event loop.

    Every method raises JobNotFoundError when the cluster does not know the job (any more). When a
    caller stops waiting, by a timeout or by Ctrl-C, the job is not affected.
    """

    def __init__(self, session: ClientSession, job_id: JobID) -> None:
        self._session = session
        self.job_id = job_id

    def status(self) -> JobStatus:
        """Return the present status; its ``is_terminal`` says whether the job has ended."""
        return self._session.ask(
            f"get the status of job {self.job_id}",
            lambda gateway: gateway.request_job_status(self.job_id),
        )

    def details(self) -> JobDetails:
        """Return details of the job: vertices, executions with their places, progress, the reason
        for waiting, and failures."""
        return self._session.ask(
            f"get the details of job {self.job_id}",
            lambda gateway: gateway.request_job_details(self.job_id),
        )

    async def _progress(self) -> JobProgress:
        return await self._session.ask_async(
            f"get the progress of job {self.job_id}",
            lambda gateway: gateway.request_job_progress(self.job_id),
        )

    def exceptions(self) -> tuple[ExceptionEntry, ...]:
        """Return the job's failures so far, oldest first. Failures before restarts are included."""
        return self._session.ask(
            f"get the failures of job {self.job_id}",
            lambda gateway: gateway.request_job_exceptions(self.job_id),
        )

    def cancel(self) -> None:
        """Begin to cancel the job. Idempotent.

        Raises:
            JobStateError: the job has ended, but was not cancelled.
        """
        self._session.ask(
            f"cancel job {self.job_id}", lambda gateway: gateway.cancel_job(self.job_id)
        )

    def resize(
        self,
        bounds: Mapping[str, tuple[int, int]] | None = None,
        *,
        others: tuple[int, int] | None = None,
    ) -> None:
        """Set the bounds (least, most) of the number of subtasks of vertices of an elastic job, by
        vertex name.

        Returns when the request is stored; the cluster then tries to fulfil it.

        Args:
            others: bounds of all vertices that are not named and can have more than one subtask.

        Raises:
            ConfigurationError: no vertex, or more than one, has one of the given names.
            JobStateError: the change is not possible, or another change is under way.
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
        self._session.ask(
            f"resize job {self.job_id}",
            lambda gateway: gateway.resize_job(
                self.job_id, tuple(wanted), None if others is None else ParallelismRange(*others)
            ),
        )

    def trigger_savepoint(
        self, directory: str | None = None, *, timeout: float | None = None
    ) -> str:
        """Take a savepoint, wait until it is complete, and return its directory. The job goes on.

        Args:
            directory: parent of the savepoint's directory; a path or a URI that all nodes can
                reach. None: the value of ``execution.checkpointing.savepoint-dir``.
            timeout: seconds; None: no limit.

        Raises:
            CheckpointError: the savepoint is not taken; the text says why.
            JobStateError: the job has ended.
            JobError, CheckpointStorageError: the directory cannot be used.
            RpcTimeoutError: (a TimeoutError) the savepoint is not complete after that time, and
                goes on.
        """
        return self._session.run(self._take(SnapshotType.SAVEPOINT, directory, timeout))

    async def trigger_savepoint_async(
        self, directory: str | None = None, *, timeout: float | None = None
    ) -> str:
        """Take a savepoint from code on an event loop, and return its directory when it is
        complete. Arguments and errors are those of :meth:`trigger_savepoint`."""
        return await self._taken(SnapshotType.SAVEPOINT, directory, timeout)

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Take a savepoint and let the job finish with it.

        Return the savepoint's directory when the job has finished.

        Everything that the job's sinks have written is committed.

        Args:
            directory: as for :meth:`trigger_savepoint`.
            timeout: as for :meth:`trigger_savepoint`.
            drain: whether event time ends before the savepoint, so that all windows and timers
                fire. Without it they are in the savepoint, and fire in a job that goes on from it.

        Raises:
            StopWithSavepointError: (a CheckpointError) the savepoint is complete, but a task failed
                before all had ended: the job goes on from the savepoint, or has failed.
            CheckpointError, JobStateError, JobError, CheckpointStorageError, RpcTimeoutError: as
                for :meth:`trigger_savepoint`.
        """
        return self._session.run(self._take(_stop(drain), directory, timeout))

    async def stop_with_savepoint_async(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Take a savepoint and let the job finish with it, from code on an event loop. Return the
        savepoint's directory when the job has finished. Arguments and errors are those of
        :meth:`stop_with_savepoint`."""
        return await self._taken(_stop(drain), directory, timeout)

    def trigger_checkpoint(self, *, timeout: float | None = None) -> str:
        """Take a checkpoint now, wait until it is complete, and return its directory.

        The directory belongs to the job: it is deleted when later checkpoints are complete.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            CheckpointError, JobStateError, RpcTimeoutError: as for :meth:`trigger_savepoint`.
        """
        return self._session.run(self._take(SnapshotType.CHECKPOINT, None, timeout))

    async def trigger_checkpoint_async(self, *, timeout: float | None = None) -> str:
        """Take a checkpoint from code on an event loop, and return its directory when it is
        complete. Arguments and errors are those of :meth:`trigger_checkpoint`."""
        return await self._taken(SnapshotType.CHECKPOINT, None, timeout)

    async def _taken(self, kind: SnapshotType, directory: str | None, timeout: float | None) -> str:
        return await asyncio.wrap_future(self._session.start(self._take(kind, directory, timeout)))

    async def _take(self, kind: SnapshotType, directory: str | None, timeout: float | None) -> str:
        """Take one checkpoint or savepoint, and return its path. If the request is repeated, it
        carries the same id, so the cluster takes only one."""
        target = None if directory is None else absolute_location(directory)
        request = SnapshotRequest(TriggerID.generate(), kind, target)
        try:
            taken = await self._session.dispatcher.ask(
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
        """Wait until the job has ended and has returned its resources; return its final status. A
        job that failed raises no error here.

        Args:
            timeout: seconds; None: no limit.
            on_progress: called in this thread with the job's progress, every *interval* seconds
                until the end; not called while the cluster does not answer.
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
        """Wait for the job's end as :meth:`wait` does, and return the whole result: a later request
        could fail, because the cluster may have forgotten the job by then."""
        if on_progress is None:
            result = self._session.run(self._end(timeout))
        else:
            end = self._session.start(self._end(timeout))
            result = self.watched(end, on_progress, interval)
            self.look_once_more(on_progress)
        self._session.show_output()
        return result

    def watched(
        self, future: Future[T], on_progress: Callable[[JobProgress], None], interval: float
    ) -> T:
        """Wait for *future* and return its result. Until then call *on_progress* every *interval*
        seconds with the job's progress. An interrupted wait cancels the future."""
        try:
            while not futures.wait([future], interval).done:
                look = self._session.start(self._progress())
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

    def look_once_more(self, on_progress: Callable[[JobProgress], None]) -> None:
        """Call *on_progress* a last time after the end of a job that was restarted, so that its
        last restarts are shown. Does nothing if the cluster does not answer."""
        look = self._session.start(self._progress())
        with suppress(FlinkRayError, futures.TimeoutError):
            progress = look.result(_LAST_LOOK)
            if progress.restarts:
                on_progress(progress)

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the job to finish and return its result.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            JobExecutionError: the job failed; the text is the cause, ``remote_traceback`` has the
                place.
            JobCancelledError, JobNotFinishedError: the job was cancelled, or suspended.
            RpcTimeoutError: (a TimeoutError) the job goes on after that time.
        """
        return JobExecutionResult.of(self.until_end(timeout))

    def __await__(self) -> Generator[Any, None, JobExecutionResult]:
        return self._result().__await__()

    async def _result(self) -> JobExecutionResult:
        return JobExecutionResult.of(
            await asyncio.wrap_future(self._session.start(self._end(None)))
        )

    async def _end(self, timeout: float | None) -> JobResult:
        try:
            return await self._session.dispatcher.ask(
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
