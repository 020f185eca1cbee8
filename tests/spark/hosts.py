"""Test doubles and hosts for Spark stages on a real Ray cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flinkray.core.ids import JobID, JobMasterId, JobVertexID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.spark.gateway import (
    SparkExecutorInfo,
    SparkFailure,
    SparkProgress,
    SparkResult,
    SparkStageDescriptor,
)
from flinkray.spark.ray_cluster import current_ray_context
from flinkray.spark.stage import SparkStage
from flinkray.spark.user_code import dump_function

SLOT = ResourceProfile(cpu=1.0, memory=2**30)


class RecordingListener:
    """Keeps a stage's events, in order; waits for the first of a kind."""

    def __init__(self) -> None:
        self.executors: list[tuple[SparkExecutorInfo, ...]] = []
        self.progresses: list[SparkProgress] = []
        self.outcomes: list[SparkResult | SparkFailure] = []
        self._changed = threading.Condition()

    def executors_changed(self, registered: tuple[SparkExecutorInfo, ...]) -> None:
        self._add(self.executors, registered)

    def progress(self, progress: SparkProgress) -> None:
        self._add(self.progresses, progress)

    def finished(self, result: SparkResult) -> None:
        self._add(self.outcomes, result)

    def failed(self, failure: SparkFailure) -> None:
        self._add(self.outcomes, failure)

    def wait(self, condition: Callable[[RecordingListener], Any], timeout: float) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout):
                raise TimeoutError(
                    f"nothing of the kind in {timeout} s; outcomes: {self.outcomes}, "
                    f"executors: {self.executors}"
                )
            return condition(self)

    def _add(self, events: list[Any], event: object) -> None:
        with self._changed:
            events.append(event)
            self._changed.notify_all()


@ray.remote(num_cpus=0, max_concurrency=4)
class StageHost:
    """A process of its own for one stage, as the SparkDriver's is."""

    def __init__(self, stage: SparkStageDescriptor) -> None:
        self._listener = RecordingListener()
        self._stage = SparkStage(stage, current_ray_context(), self._listener)

    def start(self) -> None:
        self._stage.start()

    def outcome(self, timeout: float = 120.0) -> SparkResult | SparkFailure:
        outcome: SparkResult | SparkFailure = self._listener.wait(
            lambda seen: seen.outcomes and seen.outcomes[0], timeout
        )
        return outcome

    def executors(self, history: int = 1, timeout: float = 90.0) -> list[Any]:
        """The reported lists of executors, once there are *history* complete ones."""
        count = self._stage._stage.parallelism

        def complete(seen: RecordingListener) -> list[Any] | None:
            lists = [e for e in seen.executors if len(e) == count]
            return seen.executors if len(lists) >= history else None

        found: list[Any] = self._listener.wait(complete, timeout)
        return found

    def progresses(self) -> list[SparkProgress]:
        return self._listener.progresses

    def has_jvm(self) -> bool:
        return self._stage._application is not None

    def jvm_pid(self) -> int:
        assert self._stage._application is not None
        return self._stage._application.jvm.pid

    def pid(self) -> int:
        return ray.get_runtime_context().get_node_id() and __import__("os").getpid()

    def timings(self) -> dict[str, float]:
        return self._stage.timings

    def stop(self) -> None:
        self._stage.stop()


def descriptor(
    group: PlacementGroup,
    function: Callable[[Any], Any],
    result_location: str,
    attempt: int = 0,
    configuration: dict[str, str] | None = None,
) -> SparkStageDescriptor:
    return SparkStageDescriptor(
        job_id=JobID.generate(),
        job_name="test",
        vertex_id=JobVertexID.generate(),
        attempt_number=attempt,
        listener_address="JobMaster-test/jobmaster",
        job_master_id=JobMasterId.generate(),
        worker_group=WorkerGroupId(group.id.hex()),
        parallelism=group.bundle_count,
        slot_profile=SLOT,
        code=dump_function(function),
        configuration=configuration or {},
        result_location=result_location,
    )


def host(stage: SparkStageDescriptor, group: PlacementGroup) -> Any:
    """Start a stage in bundle 0 of its group."""
    actor = StageHost.options(
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    ).remote(stage)
    ray.get(actor.start.remote())
    return actor
