"""Coordinates a Spark stage: the coordinator is a Spark driver, the subtasks are its executors."""

from __future__ import annotations

from flinkray.core.ids import WorkerGroupId
from flinkray.scheduler.execution.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionJobVertex,
    ExecutionVertex,
    ProcessOfTask,
)
from flinkray.scheduler.execution.pending_restarts import PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    CoordinatorInput,
    CoordinatorKind,
    CoordinatorResult,
    SparkExecutors,
)
from flinkray.scheduler.job.deployment import partition_locations
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import NoteFinished
from flinkray.scheduler.job.operator_coordinators import RegionCoordinator
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.region_slots import RegionSlots, failure_of
from flinkray.scheduler.job.task_reports import finished_task
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress, SparkResult
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import FinishedTask
from flinkray.scheduler.shared.tasks import TaskExecutionState

_DEPLOYED = (ExecutionState.DEPLOYING, ExecutionState.RUNNING)


class SparkDriverCoordinator(RegionCoordinator):
    """Coordinates a vertex that is a Spark stage, through the stage's Spark driver. Subtask i runs
    when its executor is registered, and is FINISHED when the user's function has returned.  Its
    slot is free, and its result finished, when the driver's process has ended."""

    def __init__(
        self,
        graph: ExecutionGraph,
        regions: PipelinedRegions,
        vertex: ExecutionJobVertex,
        record: JobRecord,
        restarts: PendingRestarts,
        execution: JobExecution,
        region_slots: RegionSlots,
        outbox: Outbox,
    ) -> None:
        """Make the coordinator of *vertex*, without a driver. *restarts*: the regions that wait for
        their restart.
        """
        name = f"the Spark driver of {vertex.vertex.name}"
        super().__init__(CoordinatorKind.SPARK_DRIVER, vertex.vertex.vertex_id, name)
        self._name = name
        self._graph = graph
        self._regions = regions
        self._vertex = vertex
        self._record = record
        self._restarts = restarts
        self._execution = execution
        self._region_slots = region_slots
        self._outbox = outbox
        self._unheard: set[int] = set()
        """Subtasks adopted as deployed whose executors the driver has not reported yet."""
        self.region = regions.of[vertex.first]

    @property
    def worker_group(self) -> WorkerGroupId | None:
        slots = (execution.slot for execution in self._vertex.executions)
        return next((slot.location.worker_group for slot in slots if slot is not None), None)

    # --- attempts of the driver -------------------------------------------------------------------

    def slots_of(self, slots: tuple[AllocatedSlot, ...]) -> tuple[AllocatedSlot, ...]:
        first = self._regions.regions[self.region].vertices.index(self._vertex.first)
        return slots[first : first + self._vertex.parallelism]

    def deployed(self, slots: tuple[AllocatedSlot, ...], now: float) -> Steps:
        self.progress = None
        self._unheard.clear()
        graph = self._graph
        results = self._results()
        steps = self.start(now, slots, self._inputs(), results, graph.restores, graph.graph_id)
        self._vertex.coordinator_attempt = self.attempt_number
        self._vertex.coordinator_is_there = True
        self._execution.coordinator_began(self.region)
        return steps

    def adopted(
        self, attempt_number: int, now: float, *, is_there: bool, finished_at: float | None
    ) -> Steps:
        """Continue with the driver that an earlier JobMaster started, and with its attempts up to
        *attempt_number*. The driver sends all its events again to this JobMaster."""
        vertex = self._vertex
        vertex.coordinator_attempt = attempt_number
        steps: list[Step] = []
        if is_there:
            self.adopt(attempt_number, now)
            vertex.coordinator_is_there = True
            self._execution.coordinator_began(self.region)
        else:
            self.attempt_number = attempt_number
        if finished_at is None:
            self._unheard = set(range(vertex.parallelism))
            return steps
        executions = vertex.executions
        for execution in executions:
            execution.finish(finished_at)
        noted = NoteFinished(tuple(map(self._noted, executions)))
        steps += [noted, *self.stop(now), t.AttemptsOver(executions)]
        return steps if is_there else [*steps, t.ResultsFinished(executions)]

    def _inputs(self) -> tuple[CoordinatorInput, ...]:
        inputs = []
        for edge in self._vertex.inputs:
            data_set_id, producer = edge.result.data_set_id, edge.result.producer.vertex
            if data_set_id is not None:
                inputs += [
                    CoordinatorInput(
                        data_set_id,
                        producer.vertex_id,
                        producer.invokable.kind,
                        edge.pattern,
                        partition_locations(self._graph, group),
                    )
                    for group in edge.groups
                ]
        return tuple(inputs)

    def _results(self) -> tuple[CoordinatorResult, ...]:
        return tuple(
            CoordinatorResult(self._graph.graph_id, result.data_set_id)
            for result in self._vertex.results
            if result.data_set_id is not None
        )

    def _on_lost(self, cause: str, now: float) -> Steps:
        failure = Failure(f"{self._name} was lost: {cause}")
        return [t.SubtasksFailed(((self._vertex.ordinals, failure),)), self._ended()]

    def _on_stopped(self, now: float) -> Steps:
        """Return CoordinatorEnded. If all subtasks have finished and the stage will not run again,
        ResultsFinished for the stage's results comes first."""
        ended = self._ended()
        if not self._vertex.is_finished or self.region in self._restarts:
            return (ended,)
        # first, so that vertices that share the slots can take them over
        return [t.ResultsFinished(self._vertex.executions), ended]

    def _ended(self) -> t.CoordinatorEnded:
        self._vertex.coordinator_is_there = False
        return t.CoordinatorEnded(self.region, self._vertex.executions)

    # --- events of the driver ---------------------------------------------------------------------

    def _on_told(self, event: CoordinatorEvent, now: float) -> Steps:
        match event:
            case SparkExecutors():
                self._executors_changed(event, now)
            case SparkProgress():
                self.progress = event
            case SparkResult():
                return self._finished(event, now)
            case CoordinatorFailure():
                return self._failed(event, now)
        return ()

    def _executors_changed(self, event: SparkExecutors, now: float) -> None:
        """Mark the subtasks as running whose executors have registered. A subtask whose executor is
        lost gets a new attempt."""
        by_subtask = {info.subtask_index: info for info in event.registered}
        self._unheard -= by_subtask.keys()
        for index in self._unheard & set(event.missing):
            self._unheard.remove(index)
            self._replace(self._vertex.subtasks[index], now)
        for index, subtask in enumerate(self._vertex.subtasks):
            info = by_subtask.get(index)
            execution = subtask.current
            if execution.state is ExecutionState.RUNNING and (
                info is None or _process_of(info) != execution.process
            ):
                self._replace(subtask, now)
                execution = subtask.current
            if info is not None and execution.state is ExecutionState.DEPLOYING:
                execution.run(now)
                execution.process = _process_of(info)

    def _replace(self, subtask: ExecutionVertex, now: float) -> None:
        """Start the next attempt of a subtask whose executor is lost; Ray restarts the executor."""
        lost = subtask.current
        slot, process = lost.slot, lost.process
        assert slot is not None
        which = "" if process is None else f" {process.name} (pid {process.pid})"
        failure = failure_of(
            lost,
            f"Spark executor{which} of {lost.task_name} was lost; "
            "Spark goes on while Ray restarts it in its slot",
        )
        lost.end(failure, now)
        self._record.add_failure(failure, now)
        attempt = subtask.reset_for_new_execution(now)
        attempt.schedule(now)
        attempt.deploy(slot, now)
        self._region_slots.pass_on(lost, attempt)
        self._outbox.bulk.cancel((lost,))
        self._outbox.deploy((attempt,))

    def _finished(self, result: SparkResult, now: float) -> Steps:
        """Finish all subtasks, because the user's function has returned.
        The tasks that occupy the slots for the executors are canceled."""
        if not self._vertex.vertex.results:
            self._record.result = result
        executions = self._vertex.executions
        for execution in executions:
            execution.finish(now)
        self._outbox.bulk.cancel(executions)
        noted = NoteFinished(tuple(map(self._noted, executions)))
        return [noted, *self.stop(now), t.AttemptsOver(executions)]

    def _noted(self, execution: Execution) -> FinishedTask:
        job_id, finished = self._graph.job_graph.job_id, ExecutionState.FINISHED
        state = TaskExecutionState(job_id, execution.attempt_id, finished)
        return finished_task(execution, state, self._record.epoch_offset)

    def _failed(self, event: CoordinatorFailure, now: float) -> Steps:
        """Fail the subtasks; tasks that occupy their slots are canceled, as after success.
        Subtasks that are already being canceled end as CANCELED."""
        text, name = event.text, self._vertex.vertex.name
        failure = Failure(
            text,
            event.traceback or None,
            event.suppress_restarts,
            task=name,
            program_error=event.program_error,
        )
        executions = self._vertex.executions
        failed = tuple(e for e in executions if e.state in _DEPLOYED and e.end(failure, now))
        steps: list[Step] = [t.SubtasksFailed(((self._vertex.ordinals, failure),))]
        if event.missing_partitions:
            steps.insert(0, t.PartitionsMissing(event.missing_partitions))
        self._outbox.bulk.cancel(failed)
        return [*steps, t.AttemptsOver(failed)] if failed else steps


def _process_of(info: SparkExecutorInfo) -> ProcessOfTask:
    return ProcessOfTask(info.executor_id, info.actor_id, info.pid)
