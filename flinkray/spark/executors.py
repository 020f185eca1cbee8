"""Who executes a stage: Spark's view of its executors joined with Ray's view of their actors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flinkray.scheduler.shared.spark_reports import (
    SparkExecutorInfo,
    SparkProgress,
    SparkStageProgress,
)
from flinkray.spark.host import SparkHost
from flinkray.spark.ray_cluster import ACTOR_NAME_PREFIX, ActorInfo


def join_executors(
    active: Iterable[str], restarted: Mapping[str, str], actors: Mapping[str, ActorInfo]
) -> tuple[SparkExecutorInfo, ...]:
    """The executors registered with Spark, in order of their bundles.

    Args:
        active: Spark's ids of the executors that are registered now.
        restarted: id -> the id before, for executors whose actor Ray restarted: the actor's name
            is that of the first id.
        actors: by name.

    One whose actor Ray does not (yet) report as alive is left out; the next look has it.
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


class ExecutorView:
    """Looks at a running Spark application; not thread-safe, one thread looks.

    Spark is asked through its status store, one JSON document per call, because each single value
    that is fetched through py4j costs a round trip.
    """

    def __init__(
        self,
        gateway: Any,
        java_context: Any,
        host: SparkHost,
    ) -> None:
        jvm = gateway.jvm
        self._context = java_context
        self._store = java_context.statusStore()
        self._mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        self._active_status = jvm.java.util.ArrayList()
        self._active_status.add(jvm.org.apache.spark.status.api.v1.StageStatus.ACTIVE)
        self._quantiles = gateway.new_array(jvm.double, 0)
        self._no_tasks = jvm.java.util.ArrayList()
        self._host = host

    def is_stopped(self) -> bool:
        """Whether the SparkContext has shut down (it does when its host is lost)."""
        return bool(self._context.isStopped())

    def look(self) -> tuple[tuple[SparkExecutorInfo, ...], SparkProgress]:
        """The registered executors and the progress, now."""
        executors = [e for e in self._json(self._store.executorList(False)) if e["id"] != "driver"]
        registered = self._host.executors(e["id"] for e in executors if e["isActive"])
        return registered, self._progress(executors)

    def final_progress(self) -> SparkProgress:
        """The progress, once Spark has booked all that has happened so far."""
        self._context.listenerBus().waitUntilEmpty()
        executors = self._json(self._store.executorList(False))
        return self._progress([e for e in executors if e["id"] != "driver"])

    def _progress(self, executors: list[dict[str, Any]]) -> SparkProgress:
        stages = self._json(
            self._store.stageList(
                self._active_status, False, False, self._quantiles, self._no_tasks
            )
        )
        return SparkProgress(
            active_stages=tuple(
                SparkStageProgress(
                    stage_id=stage["stageId"],
                    name=stage["name"],
                    num_tasks=stage["numTasks"],
                    active_tasks=stage["numActiveTasks"],
                    completed_tasks=stage["numCompleteTasks"],
                    failed_tasks=stage["numFailedTasks"],
                )
                for stage in sorted(stages, key=lambda stage: stage["stageId"])
            ),
            completed_stages=self._store.appSummary().numCompletedStages(),
            completed_tasks=sum(e["completedTasks"] for e in executors),
            failed_tasks=sum(e["failedTasks"] for e in executors),
        )

    def _json(self, value: Any) -> Any:
        return json.loads(self._mapper.writeValueAsString(value))
