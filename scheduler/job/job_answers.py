"""What a JobScheduler answers to clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flinkray.core.ids import ExecutionAttemptID, ResourceID
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionJobVertex
from flinkray.scheduler.execution.job_archive import (
    NO_METRICS,
    places_of_streams,
    task_counts,
    vertex_info,
    vertex_progress,
)
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.spark_stages import SparkStages
from flinkray.scheduler.reports.job_info import ExceptionEntry, JobDetails, JobOverview, JobProgress
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import ResourceShortage
from flinkray.scheduler.shared.spark_reports import SparkProgress
from flinkray.scheduler.shared.states import JobStatus


class JobAnswers:
    """The part of a JobScheduler that changes nothing."""

    _execution: JobExecution
    _graph: ExecutionGraph
    _job: JobRecord
    _shortages: tuple[ResourceShortage, ...]
    _spark: SparkStages | None

    @property
    def status(self) -> JobStatus:
        """The job's status."""
        return self._job.status

    def details(self, running: Mapping[ExecutionAttemptID, IOMetrics] = NO_METRICS) -> JobDetails:
        """All that a client may want to know; *running*: what TaskExecutors say of stream tasks."""
        vertices = tuple(
            vertex_info(vertex, self._job.epoch_offset, progress, running)
            for vertex, progress in self._with_spark_progress()
        )
        group = None if self._spark is None else self._spark.placement.worker_group
        return self._job.details(vertices, self._why_pending(), group)

    def places_of_streams(self) -> tuple[ResourceID, ...]:
        """The TaskExecutors of stream tasks that may run: to be asked before :meth:`details`."""
        return places_of_streams(self._graph.vertices)

    def progress(self) -> JobProgress:
        """How far the job is."""
        return JobProgress(
            self._graph.job_graph.job_id,
            self._graph.job_graph.name,
            self.status,
            self._job.restarts,
            self._why_pending(),
            tuple(vertex_progress(*each) for each in self._with_spark_progress()),
        )

    def exceptions(self) -> tuple[ExceptionEntry, ...]:
        """The job's failures so far, oldest first."""
        return self._job.exceptions

    def overview(self) -> JobOverview:
        """The same in a few numbers."""
        return self._job.overview(task_counts(self._graph.vertices))

    def _with_spark_progress(self) -> Iterator[tuple[ExecutionJobVertex, SparkProgress | None]]:
        spark = self._spark
        for vertex in self._graph.vertices:
            yield vertex, None if spark is None else spark.progress_of(vertex.vertex.vertex_id)

    def _why_pending(self) -> str | None:
        if self.status is not JobStatus.RUNNING or self._job.suspension is not None:
            return None
        reason = self._execution.placement.why_pending()
        return reason and (" ".join(s.reason for s in self._shortages) or reason)
