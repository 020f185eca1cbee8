"""The progress of tasks between two requests for their job."""

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
"""Seconds. The previous measurement must not be older, so that rates are current."""

_Totals = Mapping[tuple[JobVertexID, int, int], IOMetrics]
"""The I/O metrics by (vertex, subtask, attempt)."""


@dataclass(frozen=True)
class Measured:
    """The measurements of one subtask.

    *before* is the measurement at the previous request; None: there was no request within
    :data:`WINDOW`, or the attempt was another one.
    """

    subtask: int
    attempt: int
    is_running: bool
    now: IOMetrics
    before: IOMetrics | None

    def per_second(self, total: Callable[[IOMetrics], int | None]) -> float | None:
        """Return the growth of a total per second of the task's own time; None: it is not known."""
        if self.before is None or (elapsed := self.now.elapsed_ms - self.before.elapsed_ms) <= 0:
            return None
        now, before = total(self.now), total(self.before)
        if now is None or before is None or now < before:  # another attempt began anew
            return None
        return (now - before) * 1000 / elapsed


class JobLook:
    """A job at one request, and the measurements of its tasks at the request before."""

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
        """Return the measurements of the subtasks that report any."""
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
    """Keeps the last measurements of each job to compute rates. Use it on one event loop."""

    def __init__(self, cluster: ClusterView, now: Callable[[], float]) -> None:
        """*now* returns the seconds since the epoch, by the cluster's clocks."""
        self._cluster = cluster
        self._now = now
        self._looks: dict[JobID, tuple[JobLook, asyncio.TimerHandle]] = {}
        """The last look at each job, until it is too old. A look may take megabytes."""

    async def look(self, job_id: JobID) -> JobLook:
        """Return a job with its current and previous measurements.

        Raises:
            JobNotFoundError: there is no such job.
        """
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
