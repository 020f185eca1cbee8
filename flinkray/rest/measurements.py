"""What tasks have done between two looks at their job."""

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
"""Seconds.  Rates of what was longer ago than that would not be of now."""

_Totals = Mapping[tuple[JobVertexID, int, int], IOMetrics]
"""By vertex, subtask and attempt."""


@dataclass(frozen=True)
class Measured:
    """What one subtask has done.

    *before* is what it had done at the look before this one; None: nobody had looked within
    :data:`WINDOW`, or it was another attempt.
    """

    subtask: int
    attempt: int
    is_running: bool
    now: IOMetrics
    before: IOMetrics | None

    def per_second(self, total: Callable[[IOMetrics], int | None]) -> float | None:
        """How fast a total has grown, by the task's own time; None: that is not known."""
        if self.before is None or (elapsed := self.now.elapsed_ms - self.before.elapsed_ms) <= 0:
            return None
        now, before = total(self.now), total(self.before)
        if now is None or before is None or now < before:  # of an attempt that was begun anew
            return None
        return (now - before) * 1000 / elapsed


class JobLook:
    """A job, and what its tasks had done at the look before."""

    def __init__(self, job: JobDetails, before: _Totals, taken_at: float) -> None:
        self.job = job
        self.taken_at = taken_at
        """Seconds since the epoch."""
        self.totals: _Totals = {
            (vertex.vertex_id, one.subtask_index, one.attempt_number): one.io_metrics
            for vertex in job.vertices
            for one in vertex.executions
            if one.io_metrics is not None
        }
        self._before = before

    def subtasks(self, vertex: VertexInfo) -> tuple[Measured, ...]:
        """Those that are measured."""
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
    """Use on one event loop."""

    def __init__(self, cluster: ClusterView, now: Callable[[], float]) -> None:
        """*now*: seconds since the epoch, by the cluster's clocks."""
        self._cluster = cluster
        self._now = now
        self._looks: dict[JobID, tuple[JobLook, asyncio.TimerHandle]] = {}
        """The last of each job, until it is too old.  One may be of megabytes."""

    async def look(self, job_id: JobID) -> JobLook:
        """
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
