"""Observes the executors of a stage: Spark's information joined with Ray's about their actors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress
from flinkray.spark.host import SparkHost
from flinkray.spark.ray_cluster import ACTOR_NAME_PREFIX, ActorInfo
from flinkray.spark.status_store import StatusStore, progress_of_stages


def join_executors(
    active: Iterable[str], restarted: Mapping[str, str], actors: Mapping[str, ActorInfo]
) -> tuple[SparkExecutorInfo, ...]:
    """Return the executors registered with Spark, in the order of their bundles.

    An executor whose actor Ray does not (yet) report as alive is left out of this result.

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
    """Return a dead actor in a bundle without an actor that lives or restarts; None: there
    is none.
    """
    alive = {actor.bundle_index for actor in actors if not actor.is_dead}
    dead = [actor for actor in actors if actor.bundle_index not in alive]
    return min(dead, key=lambda actor: actor.bundle_index, default=None)


class ExecutorView:
    """Observes the executors and the progress of a running Spark application.

    Not thread-safe: one thread uses it.
    """

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
        """Return why a slot has no executor and will get none; None: no such slot is known.

        None once the application has stopped.
        """
        why = self._host.missed()
        # asked last: executors end with the application, and then none is missed
        return None if why is None or self.is_stopped() else why

    def final_progress(self) -> SparkProgress:
        """Return the progress when Spark has processed all events so far."""
        self._store.wait_until_booked()
        return self._progress(self._store.executors())

    def _progress(self, executors: list[dict[str, Any]]) -> SparkProgress:
        return SparkProgress(
            active_stages=progress_of_stages(self._store.active_stages()),
            completed_stages=self._store.completed_stages(),
            completed_tasks=sum(e["completedTasks"] for e in executors),
            failed_tasks=sum(e["failedTasks"] for e in executors),
        )
