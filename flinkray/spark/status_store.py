"""Reads Spark's records of a running application: executors, jobs and stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flinkray.scheduler.shared.spark_reports import SparkStageProgress


class StatusStore:
    """Reads Spark's status store through py4j. Not thread-safe: one thread uses it.

    Each call fetches one JSON document, because every single value that is fetched through py4j
    costs a round trip.
    """

    def __init__(self, gateway: Any, java_context: Any) -> None:
        jvm = gateway.jvm
        self._context = java_context
        self._store = java_context.statusStore()
        self._tracker = java_context.statusTracker()
        self._mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        self._active_status = jvm.java.util.ArrayList()
        self._active_status.add(jvm.org.apache.spark.status.api.v1.StageStatus.ACTIVE)
        self._quantiles = gateway.new_array(jvm.double, 0)
        self._all = jvm.java.util.ArrayList()

    def is_stopped(self) -> bool:
        """Return whether the SparkContext has shut down."""
        return bool(self._context.isStopped())

    def wait_until_booked(self) -> None:
        """Wait until Spark has processed all events so far."""
        self._context.listenerBus().waitUntilEmpty()

    def executors(self) -> list[dict[str, Any]]:
        """Return the current and former executors, without the driver."""
        return [e for e in self._json(self._store.executorList(False)) if e["id"] != "driver"]

    def jobs_tagged(self, tag: str) -> list[int]:
        """Return the ids of the jobs with this tag, as far as Spark still remembers them."""
        return list(self._json(self._tracker.getJobIdsForTag(tag)))

    def job(self, job_id: int) -> dict[str, Any] | None:
        """Return Spark's record of a job. None: Spark has forgotten the job."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        try:
            return dict(self._json(self._store.job(job_id)))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "NoSuchElementException":
                return None
            raise

    def active_stages(self) -> list[dict[str, Any]]:
        return list(
            self._json(
                self._store.stageList(self._active_status, False, False, self._quantiles, self._all)
            )
        )

    def completed_stages(self) -> int:
        return int(self._store.appSummary().numCompletedStages())

    def _json(self, value: Any) -> Any:
        return json.loads(self._mapper.writeValueAsString(value))


def progress_of_stages(stages: Iterable[Mapping[str, Any]]) -> tuple[SparkStageProgress, ...]:
    """Convert Spark's records of stages to progress reports, by rising id."""
    return tuple(
        SparkStageProgress(
            stage_id=stage["stageId"],
            name=stage["name"],
            num_tasks=stage["numTasks"],
            active_tasks=stage["numActiveTasks"],
            completed_tasks=stage["numCompleteTasks"],
            failed_tasks=stage["numFailedTasks"],
        )
        for stage in sorted(stages, key=lambda stage: int(stage["stageId"]))
    )
