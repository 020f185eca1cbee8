"""What a JobScheduler hears of Spark drivers."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.core.ids import JobVertexID
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_scheduler_actions import JobSchedulerAction
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.spark_stages import SparkStages
from flinkray.scheduler.shared.spark_reports import (
    SparkExecutorInfo,
    SparkFailure,
    SparkProgress,
    SparkResult,
)


class SparkDriverEvents:
    """The part of a JobScheduler that has to do with Spark stages; jobs without any ignore it.

    Events of coordinators that are not the present ones change nothing.
    """

    _execution: JobExecution
    _outbox: Outbox
    _spark: SparkStages | None
    _now: float

    def coordinator_started(
        self, vertex_id: JobVertexID, attempt_number: int, now: float
    ) -> list[JobSchedulerAction]:
        """The Spark driver's process is there."""
        return self._spark_event(now, lambda s: s.coordinator_started(vertex_id, attempt_number))

    def coordinator_stopped(
        self, vertex_id: JobVertexID, attempt_number: int, now: float
    ) -> list[JobSchedulerAction]:
        """A StopCoordinator is carried out."""
        return self.coordinator_lost(vertex_id, attempt_number, "it ended", now)

    def coordinator_lost(
        self, vertex_id: JobVertexID, attempt_number: int, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """The Spark driver died, or could not be started."""
        return self._spark_event(
            now, lambda s: s.coordinator_lost(vertex_id, attempt_number, cause)
        )

    def executors_changed(
        self,
        vertex_id: JobVertexID,
        attempt_number: int,
        registered: tuple[SparkExecutorInfo, ...],
        now: float,
    ) -> list[JobSchedulerAction]:
        """The Spark executors that are registered now (all of them)."""
        return self._spark_event(
            now, lambda s: s.executors_changed(vertex_id, attempt_number, registered)
        )

    def stage_progress(
        self, vertex_id: JobVertexID, attempt_number: int, progress: SparkProgress, now: float
    ) -> list[JobSchedulerAction]:
        """Shown in :meth:`details`; never an action."""
        return self._spark_event(now, lambda s: s.progress(vertex_id, attempt_number, progress))

    def stage_finished(
        self, vertex_id: JobVertexID, attempt_number: int, result: SparkResult, now: float
    ) -> list[JobSchedulerAction]:
        """The user's function is done."""
        return self._spark_event(now, lambda s: s.finished(vertex_id, attempt_number, result))

    def stage_failed(
        self, vertex_id: JobVertexID, attempt_number: int, failure: SparkFailure, now: float
    ) -> list[JobSchedulerAction]:
        """The attempt failed."""
        return self._spark_event(now, lambda s: s.failed(vertex_id, attempt_number, failure))

    def _spark_event(
        self, now: float, event: Callable[[SparkStages], None]
    ) -> list[JobSchedulerAction]:
        self._at(now)
        if self._spark is not None:
            event(self._spark)
        return self._outbox.take()

    def _at(self, now: float) -> JobExecution:
        """The execution, at the time of the event that is worked on."""
        self._now = now
        if self._spark is not None:
            self._spark.at(now)
        return self._execution
