"""Which differences between a JobMaster and its TaskExecutors count."""

from __future__ import annotations

from flinkray.actors.job_master.deployment_reconciliation import (
    DeploymentReconciliation,
    Differences,
)
from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID, JobVertexID, ResourceID
from tests.actors.resource_cluster import GRAPH

HERE, THERE = ResourceID("here"), ResourceID("there")
ONE, TWO = (
    ExecutionAttemptID(GRAPH, ExecutionVertexID(JobVertexID(bytes(16)), index), 0)
    for index in (0, 1)
)
NONE = Differences((), ())


def deployed(*attempts: ExecutionAttemptID) -> DeploymentReconciliation:
    found = DeploymentReconciliation()
    found.deploying(HERE, attempts)
    found.deployed(HERE, attempts)
    return found


def test_deployed_attempt_that_two_heartbeats_in_a_row_leave_out_counts_as_missing() -> None:
    found = deployed(ONE, TWO)
    assert found.heartbeat(HERE, (ONE, TWO)) == NONE
    assert found.heartbeat(HERE, (ONE,)) == NONE
    assert found.heartbeat(HERE, (ONE,)) == Differences((TWO,), ())


def test_attempt_that_every_other_heartbeat_leaves_out_does_not_count_as_missing() -> None:
    found = deployed(ONE)
    assert found.heartbeat(HERE, ()) == NONE
    assert found.heartbeat(HERE, (ONE,)) == NONE
    assert found.heartbeat(HERE, ()) == NONE


def test_attempt_whose_deployment_is_not_acknowledged_does_not_count_as_missing() -> None:
    found = DeploymentReconciliation()
    found.deploying(HERE, (ONE,))
    assert [found.heartbeat(HERE, ()) for _ in range(3)] == [NONE] * 3


def test_reported_attempt_that_was_never_deployed_to_its_task_executor_is_unknown() -> None:
    found = deployed(ONE)
    assert found.heartbeat(THERE, (ONE,)) == NONE
    assert found.heartbeat(THERE, (ONE,)) == Differences((), (ONE,))


def test_ended_attempt_that_heartbeats_still_report_as_running_counts_as_unknown() -> None:
    found = deployed(ONE)
    found.ended((ONE, TWO))
    assert found.heartbeat(HERE, (ONE,)) == NONE
    assert found.heartbeat(HERE, (ONE,)) == Differences((), (ONE,))


def test_unknown_attempt_is_still_detected_while_other_attempts_come_and_go() -> None:
    """Otherwise the unknown attempt would run on while other attempts come and go."""
    found = DeploymentReconciliation()
    assert found.heartbeat(HERE, (ONE,)) == NONE
    found.deploying(HERE, (TWO,))
    found.ended((TWO,))
    assert found.heartbeat(HERE, (ONE,)) == Differences((), (ONE,))


def test_attempts_on_a_lost_task_executor_do_not_count_as_missing() -> None:
    found = deployed(ONE)
    assert found.heartbeat(HERE, ()) == NONE
    found.task_executor_lost(HERE)
    assert found.heartbeat(HERE, ()) == NONE
