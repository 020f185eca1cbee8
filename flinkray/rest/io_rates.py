"""Computes the rates of tasks (records, bytes and time per second) from their I/O metrics at two
requests, which it keeps from one request to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flinkray.core.ids import JobID, JobVertexID
from flinkray.rest.cluster import ClusterView
from flinkray.scheduler.reports.job_info import JobDetails, VertexInfo
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState

WINDOW = 60.0
"""Seconds. An older measurement is not used, so that rates are current."""

_Totals = Mapping[tuple[JobVertexID, int, int], IOMetrics]
"""The I/O metrics by (vertex, subtask, attempt)."""


@dataclass(frozen=True)
class Measured:
    """The I/O metrics of one subtask: *now* at this request, *before* at the previous request.
    *before* is None if there was no request within :data:`WINDOW`, or if another attempt of the
    subtask ran at that time."""

    subtask: int
    attempt: int
    is_running: bool
    now: IOMetrics
    before: IOMetrics | None

    def per_second(self, total: Callable[[IOMetrics], int | None]) -> float | None:
        """Return the growth of the number *total* per second between the two requests. None: it is
        not known. Seconds are those that the task has counted (busy, idle and back-pressured), not
        wall-clock time."""
        if self.before is None or (elapsed := self.now.elapsed_ms - self.before.elapsed_ms) <= 0:
            return None
        now, before = total(self.now), total(self.before)
        if now is None or before is None or now < before:  # another attempt began anew
            return None
        return (now - before) * 1000 / elapsed


class JobLook:
    """A job's details at one request, and the I/O metrics of its tasks at the previous request."""

    def __init__(self, job: JobDetails, before: _Totals, taken_at: float) -> None:
        self.job = job
        self.taken_at = taken_at
        """The time of the request, in seconds since the epoch."""
        self.totals: _Totals = {
            (vertex.vertex_id, one.subtask_index, one.attempt_number): one.io_metrics
            for vertex in job.vertices
            for one in vertex.executions
            if one.io_metrics is not None
        }
        self._before = before

    def subtasks(self, vertex: VertexInfo) -> tuple[Measured, ...]:
        """Return the measurements of those subtasks of a vertex that report I/O metrics."""
        return tuple(
            Measured(
                one.subtask_index,
                one.attempt_number,
                one.state is ExecutionState.RUNNING,
                one.io_metrics,
                self._before.get((vertex.vertex_id, one.subtask_index, one.attempt_number)),
            )
            for one in vertex.executions
            if one.io_metrics is not None
        )


class Measurements:
    """The I/O metrics of each job at the last request for the job, from which the next request
    computes rates. Use it on one event loop."""

    def __init__(self, cluster: ClusterView, now: Callable[[], float]) -> None:
        """Create the collection of measurements, without jobs.
        *now* returns seconds since the epoch, by the cluster's clocks.
        """
        self._cluster = cluster
        self._now = now
        self._looks: dict[JobID, tuple[JobLook, asyncio.TimerHandle]] = {}
        """Each job's last details and metrics, until they are older than WINDOW.
        They may be megabytes.
        """

    async def look(self, job_id: JobID) -> JobLook:
        """Return a job with the I/O metrics of its tasks, now and at the previous request for the
        job (if that was in the last 60 s). Raises JobNotFoundError: there is no such job."""
        job = await self._cluster.details(job_id)
        before: _Totals = {}
        if job_id in self._looks:
            last, expiry = self._looks[job_id]
            if last.job is job:
                return last
            before = last.totals
            expiry.cancel()
        look = JobLook(job, before, self._now())
        loop = asyncio.get_running_loop()
        self._looks[job_id] = look, loop.call_later(WINDOW, self._looks.pop, job_id)
        return look
