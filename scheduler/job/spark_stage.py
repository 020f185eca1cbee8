"""A Spark stage: a vertex whose subtasks are Spark executors and whose coordinator is a Spark
driver."""

from __future__ import annotations

from enum import Enum

from flinkray.scheduler.execution.execution import Execution
from flinkray.scheduler.execution.execution_graph import ExecutionJobVertex, ExecutionVertex
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTask,
    DeployTask,
    JobSchedulerAction,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.job.placement import failure_of
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.story import Story
from flinkray.scheduler.shared.tasks import TaskDeploymentDescriptor


class CoordinatorState(Enum):
    """NONE: no process of its is there (any more)."""

    NONE = "none"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class SparkStage:
    """One vertex in execution.  Times are monotonic seconds.

    Methods return the actions to be carried out; failures go back to the JobScheduler as values.
    """

    def __init__(self, job_graph: JobGraph, vertex: ExecutionJobVertex) -> None:
        self._job_graph = job_graph
        self.vertex = vertex
        self.vertex_id = vertex.vertex.vertex_id
        self.attempt_number = -1
        """Of the coordinator; it counts starts of the stage."""
        self.coordinator = CoordinatorState.NONE
        self.progress: SparkProgress | None = None
        self.story = Story(f"Spark stage {vertex.vertex.name}")

    def is_current(self, attempt_number: int) -> bool:
        """Whether an event of a coordinator is of the one that is there and wanted."""
        return attempt_number == self.attempt_number and self.coordinator in (
            CoordinatorState.STARTING,
            CoordinatorState.RUNNING,
        )

    def deploy(self, slots: tuple[AllocatedSlot, ...], now: float) -> list[JobSchedulerAction]:
        """Deploy subtask i to slot i and start the coordinator."""
        if self.coordinator is not CoordinatorState.NONE:
            raise self.story.illegal(f"start a coordinator: one is {self.coordinator.value}")
        self.attempt_number += 1
        self.progress = None
        actions: list[JobSchedulerAction] = [
            self._deploy(execution, slot, now)
            for execution, slot in zip(self.vertex.executions, slots, strict=True)
        ]
        self._coordinator_is(CoordinatorState.STARTING, now)
        actions.append(StartCoordinator(self.vertex_id, self.attempt_number, slots))
        return actions

    def _deploy(self, execution: Execution, slot: AllocatedSlot, now: float) -> DeployTask:
        execution.deploy(slot, now)
        descriptor = TaskDeploymentDescriptor(
            job_id=self._job_graph.job_id,
            job_name=self._job_graph.name,
            attempt_id=execution.attempt_id,
            task_name=execution.task_name,
            parallelism=self.vertex.vertex.parallelism,
            allocation_id=slot.allocation_id,
            invokable_kind=self.vertex.vertex.invokable.kind,
            coordinator_attempt=self.attempt_number,
        )
        return DeployTask(descriptor, slot)

    def stop_coordinator(self, now: float) -> list[JobSchedulerAction]:
        """Stop the coordinator that is there; again: nothing."""
        if self.coordinator not in (CoordinatorState.STARTING, CoordinatorState.RUNNING):
            return []
        self._coordinator_is(CoordinatorState.STOPPING, now)
        return [StopCoordinator(self.vertex_id, self.attempt_number)]

    def coordinator_started(self, now: float) -> None:
        self._coordinator_is(CoordinatorState.RUNNING, now)

    def coordinator_gone(self, now: float) -> bool:
        """Its process is gone; whether that was not asked for."""
        was_wanted = self.is_current(self.attempt_number)
        if self.coordinator is not CoordinatorState.NONE:
            self._coordinator_is(CoordinatorState.NONE, now)
        return was_wanted

    def _coordinator_is(self, state: CoordinatorState, now: float) -> None:
        self.story.add(
            now, f"coordinator {self.attempt_number}: {self.coordinator.value} -> {state.value}"
        )
        self.coordinator = state

    def executors_changed(
        self, registered: tuple[SparkExecutorInfo, ...], now: float
    ) -> tuple[list[Failure], list[JobSchedulerAction]]:
        """Execution i runs when its executor is registered; a lost one is followed by a new
        attempt."""
        by_subtask = {info.subtask_index: info for info in registered}
        failures: list[Failure] = []
        actions: list[JobSchedulerAction] = []
        for index, subtask in enumerate(self.vertex.subtasks):
            info = by_subtask.get(index)
            execution = subtask.current
            if execution.state is ExecutionState.RUNNING and (
                info is None or (info.executor_id, info.pid) != _executor_of(execution)
            ):
                failures.append(self._replace(subtask, now, actions))
                execution = subtask.current
            if info is not None and execution.state is ExecutionState.DEPLOYING:
                execution.run(now)
                execution.executor_id = info.executor_id
                execution.executor_actor_id = info.actor_id
                execution.executor_pid = info.pid
        return failures, actions

    def _replace(
        self, subtask: ExecutionVertex, now: float, actions: list[JobSchedulerAction]
    ) -> Failure:
        """The executor of a subtask is lost; Ray restarts it in its bundle, as the next attempt."""
        lost = subtask.current
        slot = lost.slot
        assert slot is not None
        executor_id, pid = _executor_of(lost)
        failure = failure_of(
            lost,
            f"Spark executor {executor_id} (pid {pid}) of {lost.task_name} was lost; "
            "Spark goes on while Ray restarts it in its slot",
        )
        lost.end(failure, now)
        actions.append(CancelTask(lost.attempt_id, slot))
        attempt = subtask.reset_for_new_execution(now)
        attempt.schedule(now)
        actions.append(self._deploy(attempt, slot, now))
        return failure


def _executor_of(execution: Execution) -> tuple[str | None, int | None]:
    return execution.executor_id, execution.executor_pid
