"""Observes a Spark application: its executors, jobs and stages, as Spark and Ray report them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flinkray.scheduler.shared.spark_reports import (
    SparkExecutorInfo,
    SparkProgress,
    SparkStageProgress,
)
from flinkray.spark.host import SparkHost
from flinkray.spark.ray_cluster import ACTOR_NAME_PREFIX, ActorInfo


class StatusStore:
    """Reads Spark's status store through py4j. One thread uses it. Each call fetches one JSON
    document, because every single value that is fetched through py4j costs a round trip."""

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
        """Wait until the status store contains all events of Spark so far."""
        self._context.listenerBus().waitUntilEmpty()

    def executors(self) -> list[dict[str, Any]]:
        """Return Spark's records of the current and former executors, without the driver."""
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


def join_executors(
    active: Iterable[str], restarted: Mapping[str, str], actors: Mapping[str, ActorInfo]
) -> tuple[SparkExecutorInfo, ...]:
    """Return the executors registered with Spark, in the order of their bundles (that is, by slot).

    An executor is left out if Ray does not (yet) report its actor as alive.

    Args:
        active: Spark's ids of the executors that are registered now.
        restarted: executor id -> previous executor id, for executors whose actor Ray restarted.
            The actor's name contains the first id.
        actors: the actors by name.
    """
    found = []
    for executor_id in active:
        first = executor_id
        while first in restarted:
            first = restarted[first]
        actor = actors.get(ACTOR_NAME_PREFIX + first)
        if actor is not None and actor.is_alive:
            found.append(
                SparkExecutorInfo(
                    subtask_index=actor.bundle_index,
                    executor_id=executor_id,
                    actor_id=actor.actor_id,
                    node_id=actor.node_id,
                    pid=actor.pid,
                    bundle_index=actor.bundle_index,
                )
            )
    return tuple(sorted(found, key=lambda executor: (executor.bundle_index, executor.executor_id)))


def lost_for_good(actors: Collection[ActorInfo]) -> ActorInfo | None:
    """Return an executor actor that is dead and will not be replaced. None: for each dead actor,
    its bundle has another actor that lives or is being restarted."""
    alive = {actor.bundle_index for actor in actors if not actor.is_dead}
    dead = [actor for actor in actors if actor.bundle_index not in alive]
    return min(dead, key=lambda actor: actor.bundle_index, default=None)


class ExecutorView:
    """Observes the executors and the progress of a running Spark application. One thread uses
    it."""

    def __init__(self, store: StatusStore, host: SparkHost) -> None:
        self._store = store
        self._host = host

    def is_stopped(self) -> bool:
        """Return whether the SparkContext has shut down; it does when its host is lost."""
        return self._store.is_stopped()

    def look(self) -> tuple[tuple[SparkExecutorInfo, ...], SparkProgress]:
        """Return the executors that are registered now, and the progress of Spark's jobs and
        stages.
        """
        executors = self._store.executors()
        registered = self._host.executors(e["id"] for e in executors if e["isActive"])
        return registered, self._progress(executors)

    def missed(self) -> str | None:
        """Return a text that says why a slot has no executor and will get none. None: no such slot
        is known, or the application has stopped."""
        why = self._host.missed()
        # asked last: executors end with the application, and then none is missed
        return None if why is None or self.is_stopped() else why

    def final_progress(self) -> SparkProgress:
        """Wait until Spark has processed all events so far, and return the progress."""
        self._store.wait_until_booked()
        return self._progress(self._store.executors())

    def _progress(self, executors: list[dict[str, Any]]) -> SparkProgress:
        return SparkProgress(
            active_stages=progress_of_stages(self._store.active_stages()),
            completed_stages=self._store.completed_stages(),
            completed_tasks=sum(e["completedTasks"] for e in executors),
            failed_tasks=sum(e["failedTasks"] for e in executors),
        )
