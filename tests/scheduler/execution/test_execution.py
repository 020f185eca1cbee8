"""Execution attempts: states, times, stories."""

from __future__ import annotations

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID
from flinkray.scheduler.execution.execution_graph import Execution, ExecutionGraph
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState
from tests.scheduler.builders import GRAPH, VERTEX, allocated_slot, spark_job

ATTEMPT = ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, 0), 0)
FAILURE = Failure("it broke")


def execution_in(state: ExecutionState) -> Execution:
    execution = ExecutionGraph(spark_job(), GRAPH, 0.0).subtasks[0].current
    assert execution.attempt_id == ATTEMPT
    if state is ExecutionState.CREATED:
        return execution
    execution.schedule(1.0)
    if state is ExecutionState.SCHEDULED:
        return execution
    execution.deploy(allocated_slot(1), 2.0)
    if state is ExecutionState.DEPLOYING:
        return execution
    execution.run(3.0)
    if state is ExecutionState.CANCELING:
        execution.begin_cancel(4.0)
    return execution


def test_execution_has_a_timestamp_for_each_state_it_has_entered() -> None:
    """EX-01."""
    execution = execution_in(ExecutionState.RUNNING)
    execution.finish(4.0)
    assert execution.entered == {
        ExecutionState.CREATED: 0.0,
        ExecutionState.SCHEDULED: 1.0,
        ExecutionState.DEPLOYING: 2.0,
        ExecutionState.RUNNING: 3.0,
        ExecutionState.FINISHED: 4.0,
    }


def test_deploying_an_execution_twice_raises_an_error_with_its_past_transitions() -> None:
    """EX-01."""
    execution = execution_in(ExecutionState.DEPLOYING)
    with pytest.raises(IllegalTransitionError) as caught:
        execution.deploy(allocated_slot(2), 3.0)
    assert "cannot go from DEPLOYING to DEPLOYING" in str(caught.value)
    assert "2.000 s: SCHEDULED -> DEPLOYING: in te0-g bundle 0 on 10.0.0.1" in str(caught.value)
    assert execution.slot == allocated_slot(1)


@pytest.mark.parametrize("state", [ExecutionState.CREATED, ExecutionState.SCHEDULED])
def test_cancel_before_the_deployment_ends_the_execution_at_once(state: ExecutionState) -> None:
    """EX-03."""
    execution = execution_in(state)
    assert not execution.begin_cancel(5.0)
    assert execution.state is ExecutionState.CANCELED
    assert execution.entered[ExecutionState.CANCELING] == 5.0
    assert execution.failure is None


@pytest.mark.parametrize("state", [ExecutionState.DEPLOYING, ExecutionState.RUNNING])
def test_cancel_after_deployment_waits_for_the_task_executor(state: ExecutionState) -> None:
    """EX-04."""
    execution = execution_in(state)
    assert execution.begin_cancel(5.0)
    assert not execution.begin_cancel(6.0)
    assert execution.state is ExecutionState.CANCELING


def test_failure_while_canceling_ends_as_canceled() -> None:
    """EX-05."""
    execution = execution_in(ExecutionState.CANCELING)
    assert not execution.end(FAILURE, 6.0)
    assert execution.state is ExecutionState.CANCELED
    assert execution.failure is None


def test_deploying_a_canceled_execution_is_an_error() -> None:
    """EX-05."""
    execution = execution_in(ExecutionState.SCHEDULED)
    execution.begin_cancel(5.0)
    with pytest.raises(IllegalTransitionError, match="from CANCELED to DEPLOYING"):
        execution.deploy(allocated_slot(1), 6.0)


def test_first_failure_of_an_execution_is_kept_and_later_failures_change_nothing() -> None:
    """EX-02."""
    execution = execution_in(ExecutionState.DEPLOYING)
    assert execution.end(FAILURE, 6.0)
    assert not execution.end(Failure("again"), 7.0)
    assert execution.failure is FAILURE
    assert execution.entered[ExecutionState.FAILED] == 6.0


def test_new_attempt_requires_the_end_of_the_current_attempt() -> None:
    """EX-16."""
    subtask = ExecutionGraph(spark_job(), GRAPH, 0.0).vertices[0].subtasks[0]
    with pytest.raises(IllegalTransitionError, match="it has not ended"):
        subtask.reset_for_new_execution(1.0)
    subtask.current.begin_cancel(1.0)
    changes = subtask.job_vertex.changes
    attempt = subtask.reset_for_new_execution(2.0)
    assert subtask.job_vertex.changes > changes
    assert attempt.attempt_id.attempt_number == 1
    assert attempt.state is ExecutionState.CREATED


def test_past_attempts_are_not_found_in_the_execution_graph() -> None:
    """EX-11."""
    graph = ExecutionGraph(spark_job(), GRAPH, 0.0)
    subtask = graph.vertices[0].subtasks[1]
    old = subtask.current
    assert graph.find(old.attempt_id) is old
    old.begin_cancel(1.0)
    subtask.reset_for_new_execution(2.0)
    assert graph.find(old.attempt_id) is None
    beyond = ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, 9), 0)
    assert graph.find(beyond) is None
