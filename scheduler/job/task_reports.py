"""Turns reports of TaskExecutors about tasks into state changes of executions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from flinkray.core.ids import ResultPartitionID
from flinkray.scheduler.checkpoints.events import CheckpointAnswered
from flinkray.scheduler.execution.execution_graph import Execution, ExecutionGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import NoteFinished
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.region_slots import failure_of
from flinkray.scheduler.job.result_partitions import PartitionTracker
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import FinishedTask
from flinkray.scheduler.shared.tasks import TaskExecutionState


class TaskReports:
    """Applies the reports of TaskExecutors about tasks to the execution graph. Reports of attempts
    that are not current or have ended change nothing (EX-11); the partitions of such attempts are
    released."""

    def __init__(
        self,
        graph: ExecutionGraph,
        tracker: PartitionTracker,
        outbox: Outbox,
        epoch_offset: float,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Apply reports to *graph*. *epoch_offset*: wall clock minus monotonic clock, in seconds,
        for the timestamps that users see. *is_stopping* returns whether the job is being stopped
        with a savepoint. Tasks that end with the savepoint are not noted as finished, because the
        next JobMaster restarts from the savepoint."""
        self._graph = graph
        self._tracker = tracker
        self._outbox = outbox
        self._epoch_offset = epoch_offset
        self._is_stopping = is_stopping

    def reported(self, transition: t.TasksReported, now: float) -> Steps:
        """Divide the reports, in their order, into StatesReported (states of tasks to apply) and
        CheckpointAnswered (answers for the CheckpointCoordinator)."""
        reports = groupby(transition.reports, lambda r: isinstance(r, TaskExecutionState))
        steps: list[Step] = []
        for are_states, alike in reports:
            kind = t.StatesReported if are_states else CheckpointAnswered
            steps.append(kind(tuple(alike)))  # type: ignore[arg-type]
        return steps

    def states_reported(self, transition: t.StatesReported, now: float) -> Steps:
        """Apply the reported states, in their order, and return what follows. All failures among
        the reports count as one failure of the job."""
        finished: list[Execution] = []
        finishing: list[TaskExecutionState] = []
        ends: list[tuple[Execution, Failure]] = []
        missing: list[ResultPartitionID] = []
        for state in transition.states:
            execution = self._graph.find(state.attempt_id)
            if execution is None:
                continue
            if state.state is ExecutionState.FINISHED and _is_disowned(execution):
                self._disown(execution)
            if execution.state.is_terminal:
                continue
            if not state.state.is_terminal:
                _proceed(execution, state.state, now)
                continue
            execution.io_metrics = state.io_metrics
            if _is_finish(execution, state):
                execution.finish(transition.finished_at.get(state.attempt_id, now))
                finished.append(execution)
                finishing.append(state)
            else:
                missing += state.missing_partitions
                ends.append((execution, _failure_of(execution, state)))
        steps: list[Step] = []
        if finished:
            noted = [
                finished_task(execution, state, self._epoch_offset)
                for state, execution in zip(finishing, finished, strict=True)
                if execution.slot is not None and not self._is_stopping()
            ]
            if noted:
                steps.append(NoteFinished(tuple(noted)))
            steps += (t.AttemptsOver(tuple(finished)), t.ResultsFinished(tuple(finished)))
        if missing:
            steps.append(t.PartitionsMissing(tuple(missing)))
        if ends:
            steps.append(t.AttemptsFailed(tuple(ends)))
        return steps

    def deployments_failed(self, transition: t.DeploymentsFailed, now: float) -> Steps:
        """Fail the attempts whose deployment could not be sent (EX-02)."""
        ends = []
        for attempt_id in transition.attempts:
            execution = self._graph.find(attempt_id)
            if execution is not None:
                self._disown_unless_ended(execution)
                text = f"{execution.task_name} could not be deployed: {transition.cause}"
                ends.append((execution, failure_of(execution, text)))
        return (t.AttemptsFailed(tuple(ends)),) if ends else ()

    def cancellations_failed(self, transition: t.CancellationsFailed, now: float) -> Steps:
        """Treat the attempts as canceled, because the cancellation could not be sent to their
        TaskExecutor (EX-04)."""
        text = f"its TaskExecutor could not be told to cancel it: {transition.cause}"
        ends = []
        for attempt_id in transition.attempts:
            execution = self._graph.find(attempt_id)
            if execution is not None and execution.state is ExecutionState.CANCELING:
                self._disown_unless_ended(execution)
                ends.append((execution, failure_of(execution, text)))
        return (t.AttemptsFailed(tuple(ends)),) if ends else ()

    def partitions_missing(self, transition: t.PartitionsMissing, now: float) -> Steps:
        """Mark as gone the partitions that a reader could not read. Also tell their TaskExecutors
        to release them, in case only the connection to them has failed."""
        for partition in transition.partitions:
            self._outbox.bulk.release(self._tracker.missing(partition))
        return ()

    def _disown_unless_ended(self, execution: Execution) -> None:
        if not execution.state.is_terminal:
            self._disown(execution)

    def _disown(self, execution: Execution) -> None:
        """Release the blocking partitions of an attempt that counts as failed, because nobody will
        read them."""
        self._outbox.bulk.release(self._tracker.disown(execution))


def finished_task(
    execution: Execution, state: TaskExecutionState, epoch_offset: float
) -> FinishedTask:
    """Create the note about an attempt that has finished in its slot. *epoch_offset*: wall clock
    minus monotonic clock, in seconds."""
    assert execution.slot is not None
    entered = execution.entered
    deployed, finished = entered[ExecutionState.DEPLOYING], entered[ExecutionState.FINISHED]
    return FinishedTask(state, execution.slot, deployed + epoch_offset, finished + epoch_offset)


def _is_disowned(execution: Execution) -> bool:
    """Return whether the attempt is CANCELING, CANCELED or FAILED, so that its results are not
    used."""
    ending = (ExecutionState.CANCELING, ExecutionState.CANCELED, ExecutionState.FAILED)
    return execution.state in ending


def _proceed(execution: Execution, state: ExecutionState, now: float) -> None:
    """Change the attempt's state to a reported INITIALIZING or RUNNING. A late report never brings
    it back to an earlier state. Subtasks of Spark stages are skipped: the stage's driver reports
    when they run."""
    if execution.vertex.job_vertex.is_coordinated:
        return
    if state is ExecutionState.INITIALIZING and execution.state is ExecutionState.DEPLOYING:
        execution.initialize(now)
    elif state is ExecutionState.RUNNING and execution.state in (
        ExecutionState.DEPLOYING,
        ExecutionState.INITIALIZING,
    ):
        execution.run(now)


def _is_finish(execution: Execution, state: TaskExecutionState) -> bool:
    return (
        state.state is ExecutionState.FINISHED
        and execution.state is not ExecutionState.CANCELING
        and execution.slot is not None
        and not execution.vertex.job_vertex.is_coordinated
    )


def _failure_of(execution: Execution, state: TaskExecutionState) -> Failure:
    if state.state is ExecutionState.FAILED:
        text = state.failure or f"{execution.task_name} failed without a cause"
    elif execution.state is ExecutionState.CANCELING:
        text = ""  # canceled as requested
    else:
        text = f"{execution.task_name} was ended by its TaskExecutor ({state.state.name})"
    return Failure(
        text,
        state.traceback,
        state.suppress_restarts,
        execution.task_name,
        execution.location,
        program_error=state.program_error,
    )
