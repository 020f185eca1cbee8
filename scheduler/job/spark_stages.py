"""The Spark stages of a job: vertices whose slots come from workers of the job's own, and whose
coordinators are Spark drivers."""

from __future__ import annotations

from collections.abc import Sequence

from flinkray.core.ids import AllocationID, JobVertexID, ResourceID
from flinkray.scheduler.execution.execution_graph import ExecutionJobVertex
from flinkray.scheduler.job.dedicated_placement import DedicatedPlacement
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.spark_stage import CoordinatorState, SparkStage
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.spark_reports import (
    SparkExecutorInfo,
    SparkFailure,
    SparkProgress,
    SparkResult,
)
from flinkray.scheduler.shared.states import JobStatus


class SparkStages:
    """Events of stages, and of the slots that they run in.

    A stage is a region; its coordinator is one thing more that must end before the region is over.
    Events of coordinators that are not the present ones change nothing.
    """

    def __init__(
        self, execution: JobExecution, job_master_address: str, slot_request_timeout: float
    ) -> None:
        self._execution = execution
        graph = execution.graph
        self._stages = {
            vertex.vertex.vertex_id: SparkStage(graph.job_graph, vertex)
            for vertex in graph.vertices
            if vertex.is_spark_stage
        }
        self._now = 0.0
        self.placement = DedicatedPlacement(
            graph,
            execution.outbox,
            job_master_address,
            slot_request_timeout,
            next_generation=execution.next_generation,
            on_ready=self._deploy,
            on_failed=self._slots_failed,
        )
        execution.placement = self.placement
        execution.stop_coordinators = self._stop_coordinator

    def at(self, now: float) -> SparkStages:
        """The time of the event that is worked on."""
        self._now = now
        return self

    def progress_of(self, vertex_id: JobVertexID) -> SparkProgress | None:
        """Of the attempt of a stage that runs, or ran last."""
        return self._stages[vertex_id].progress

    # slots

    def slots_changed(self, slots: tuple[AllocatedSlot, ...]) -> None:
        """All slots the pool holds now; a used one that is missing is lost."""
        self._lost(self.placement.slots_changed(slots))
        self.placement.try_deploy(self._now)

    def slot_failed(self, allocation_id: AllocationID, cause: str) -> None:
        self.placement.drop(allocation_id)
        self._lost({allocation_id: cause})

    def task_executor_lost(self, resource_id: ResourceID, cause: str) -> None:
        self._lost(self.placement.drop_task_executor(resource_id, cause))

    def pool_lost(self, failure: Failure) -> None:
        """With all slots, and whoever is in them: one failure of the job, and its TaskExecutors are
        left, so that nobody will report the ends of tasks that are being cancelled."""
        lost = self.placement.pool_lost()
        record = self._execution.record
        if record.status is JobStatus.RUNNING and record.suspension is None:
            self._execution.fail(failure, (), self._now, is_global=True)
        else:
            record.add_failure(failure, self._now)
        self._lost(lost)

    def _lost(self, causes: dict[AllocationID, str]) -> None:
        if causes:
            self._execution.failed(self.placement.ends_of(causes), self._now)

    def _slots_failed(self, failure: Failure, vertex: ExecutionJobVertex) -> None:
        self._execution.fail(failure, vertex.ordinals, self._now)

    def _deploy(self, vertex: ExecutionJobVertex, slots: Sequence[AllocatedSlot]) -> None:
        stage = self._stages[vertex.vertex.vertex_id]
        self._execution.outbox.extend(stage.deploy(tuple(slots), self._now))
        self._execution.began(self._region_of(stage))

    # coordinators

    def coordinator_started(self, vertex_id: JobVertexID, attempt_number: int) -> None:
        """The Spark driver's process is there."""
        stage = self._current(vertex_id, attempt_number)
        if stage is not None:
            stage.coordinator_started(self._now)

    def coordinator_lost(self, vertex_id: JobVertexID, attempt_number: int, cause: str) -> None:
        """The Spark driver died, or could not be started; while it is being stopped that is as
        good as stopped."""
        stage = self._stages.get(vertex_id)
        if stage is None or stage.attempt_number != attempt_number:
            return
        if stage.coordinator is CoordinatorState.NONE:
            return
        if stage.coordinator_gone(self._now):
            text = f"the Spark driver of {stage.vertex.vertex.name} was lost: {cause}"
            self._execution.fail(Failure(text), stage.vertex.ordinals, self._now)
        elif stage.vertex.is_finished and not self._execution.is_restarting(self._region_of(stage)):
            self._execution.finished(stage.vertex.executions, self._now)
        self._execution.ended(self._region_of(stage), self._now)

    def _stop_coordinator(self, region: int, now: float) -> None:
        first = self._execution.regions.regions[region].vertices[0]
        vertex = self._execution.graph.subtasks[first].job_vertex
        stage = self._stages[vertex.vertex.vertex_id]
        self._execution.outbox.extend(stage.stop_coordinator(now))

    def executors_changed(
        self, vertex_id: JobVertexID, attempt_number: int, registered: tuple[SparkExecutorInfo, ...]
    ) -> None:
        """The Spark executors that are registered now (all of them)."""
        stage = self._current(vertex_id, attempt_number)
        if stage is not None:
            failures, actions = stage.executors_changed(registered, self._now)
            for failure in failures:
                self._execution.record.add_failure(failure, self._now)
            self._execution.outbox.extend(actions)

    def progress(
        self, vertex_id: JobVertexID, attempt_number: int, progress: SparkProgress
    ) -> None:
        stage = self._current(vertex_id, attempt_number)
        if stage is not None:
            stage.progress = progress

    def finished(self, vertex_id: JobVertexID, attempt_number: int, result: SparkResult) -> None:
        """The user's function is done: every subtask is, and what stands for it is cancelled."""
        stage = self._current(vertex_id, attempt_number)
        if stage is None:
            return
        self._execution.record.result = result
        self._execution.outbox.extend(stage.stop_coordinator(self._now))
        for execution in stage.vertex.executions:
            execution.finish(self._now)
            self._execution.cancel_task(execution)
            self._execution.execution_ended(execution, self._now)

    def failed(self, vertex_id: JobVertexID, attempt_number: int, failure: SparkFailure) -> None:
        """The attempt failed."""
        stage = self._current(vertex_id, attempt_number)
        if stage is None:
            return
        name = stage.vertex.vertex.name
        cause = Failure(failure.text, failure.traceback, failure.suppress_restarts, task=name)
        self._execution.fail(cause, stage.vertex.ordinals, self._now)

    def _current(self, vertex_id: JobVertexID, attempt_number: int) -> SparkStage | None:
        stage = self._stages.get(vertex_id)
        return stage if stage is not None and stage.is_current(attempt_number) else None

    def _region_of(self, stage: SparkStage) -> int:
        return self._execution.regions.of[stage.vertex.first]
