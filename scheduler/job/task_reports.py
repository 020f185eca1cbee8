"""What TaskExecutors say of tasks, as ends and steps of executions."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.core.ids import ExecutionAttemptID, ResultPartitionID
from flinkray.scheduler.execution.execution import Execution
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.placement import failure_of
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState


class TaskReports:
    """Reports of attempts that are not current, or have ended, change nothing (EX-11); what such
    an attempt has left is released."""

    def __init__(self, execution: JobExecution) -> None:
        self._job = execution

    def states_changed(self, states: Iterable[TaskExecutionState], now: float) -> None:
        """Reports in their order; failures among them are one failure."""
        ends: list[tuple[Execution, Failure]] = []
        for state in states:
            execution = self._job.graph.find(state.attempt_id)
            if execution is None:
                continue
            if state.state is ExecutionState.FINISHED and _is_disowned(execution):
                self._job.tracker.disown(execution)
            if execution.state.is_terminal:
                continue
            if not state.state.is_terminal:
                _proceed(execution, state.state, now)
                continue
            execution.io_metrics = state.io_metrics
            if _is_finish(execution, state):
                execution.finish(now)
                self._job.execution_ended(execution, now)
                self._job.finished((execution,), now)
            else:
                for missing in state.missing_partitions:
                    self._partition_missing(missing)
                ends.append((execution, _failure_of(execution, state)))
        if ends:
            self._job.failed(ends, now)

    def _partition_missing(self, missing: ResultPartitionID) -> None:
        """A task could not read it: if that is how its producer left it, it is gone (FO-04)."""
        if missing.graph_id != self._job.graph.graph_id:
            return
        result = self._job.graph.result(missing.data_set_id)
        if result is None or result.is_pipelined:
            return
        if 0 <= missing.partition < result.producer.parallelism:
            producer = result.producer.subtasks[missing.partition]
            if producer.current.attempt_number == missing.attempt_number:
                result.lose(missing.partition)

    def deployments_failed(
        self, attempts: Iterable[ExecutionAttemptID], cause: str, now: float
    ) -> None:
        """They could not be sent (EX-02)."""
        ends = []
        for attempt_id in attempts:
            execution = self._job.graph.find(attempt_id)
            if execution is not None:
                self._disown_unless_ended(execution)
                text = f"{execution.task_name} could not be deployed: {cause}"
                ends.append((execution, failure_of(execution, text)))
        self._job.failed(ends, now)

    def cancel_failed(self, attempt_id: ExecutionAttemptID, cause: str, now: float) -> None:
        """The attempt counts as canceled (EX-04)."""
        execution = self._job.graph.find(attempt_id)
        if execution is not None and execution.state is ExecutionState.CANCELING:
            self._disown_unless_ended(execution)
            text = f"its TaskExecutor could not be told to cancel it: {cause}"
            self._job.failed(((execution, failure_of(execution, text)),), now)

    def _disown_unless_ended(self, execution: Execution) -> None:
        """It may run there all the same."""
        if not execution.state.is_terminal:
            self._job.tracker.disown(execution)


def _is_disowned(execution: Execution) -> bool:
    """Whether it counts as ended otherwise than by finishing, or is going to."""
    ending = (ExecutionState.CANCELING, ExecutionState.CANCELED, ExecutionState.FAILED)
    return execution.state in ending


def _proceed(execution: Execution, state: ExecutionState, now: float) -> None:
    """Forward only: a report may be late.  A Spark executor runs when Spark says so."""
    if execution.vertex.job_vertex.is_spark_stage:
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
        and not execution.vertex.job_vertex.is_spark_stage
    )


def _failure_of(execution: Execution, state: TaskExecutionState) -> Failure:
    if state.state is ExecutionState.FAILED:
        text = state.failure or f"{execution.task_name} failed without a cause"
    elif execution.state is ExecutionState.CANCELING:
        text = ""  # as it was told to
    else:
        text = f"{execution.task_name} was ended by its TaskExecutor ({state.state.name})"
    return Failure(
        text,
        state.traceback,
        state.suppress_restarts,
        execution.task_name,
        execution.location,
    )
