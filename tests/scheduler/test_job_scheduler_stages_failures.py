"""JobScheduler: how a job of Spark stages fails and restarts."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import ResourceID
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTask,
    DeclareRequirements,
    DeployTask,
    JobEnded,
    ScheduleRestart,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.builders import (
    SMALL,
    VERTEX,
    allocated_slot,
    allocation,
    id_of,
    one,
    only,
    requirements,
    spark_job,
    spark_vertex,
)
from tests.scheduler.job_under_test import (
    FAILURE,
    NO_RESTART,
    RESULT,
    JobUnderTest,
    attempt,
    executor,
    slots,
)


def test_lost_executor_is_a_new_attempt_and_the_job_goes_on() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    actions = job.tell("executors_changed", VERTEX, 0, (executor(0),))
    assert only(actions, CancelTask) == [CancelTask(attempt(1, 0), slots()[1])]
    assert one(actions, DeployTask).descriptor.attempt_id == attempt(1, 1)
    assert job.states() == ["RUNNING 0", "DEPLOYING 1"]
    details = job.scheduler.details()
    assert (details.status, details.restarts) == (JobStatus.RUNNING, 0)
    entry = details.exceptions[0]
    assert (entry.task, entry.location) == ("stage (2/2)", "te1-g bundle 1 on 10.0.0.1")
    assert "Spark executor 1 (pid 101) of stage (2/2) was lost" in entry.text
    job.task(1, 0, ExecutionState.CANCELED)
    job.tell("executors_changed", VERTEX, 0, (executor(0), executor(1, pid=200)))
    assert job.states() == ["RUNNING 0", "RUNNING 1"]


def test_executor_that_was_lost_and_is_back_in_one_report_is_a_new_attempt() -> None:
    job = JobUnderTest().run()
    job.tell("executors_changed", VERTEX, 0, (executor(0, pid=500), executor(1)))
    assert job.states() == ["RUNNING 1", "RUNNING 0"]


def test_lost_coordinator_cancels_the_stage_and_restarts_it_when_all_tasks_have_ended() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1, 2.0)).run()
    actions = job.tell("coordinator_lost", VERTEX, 0, "killed")
    assert one(actions, ScheduleRestart).delay == 2.0
    assert [a.attempt_id for a in only(actions, CancelTask)] == [attempt(0), attempt(1)]
    assert only(actions, StopCoordinator) == []
    assert job.scheduler.status is JobStatus.RESTARTING
    generation = one(actions, ScheduleRestart).generation
    assert job.tell("restart_delay_over", generation) == []
    assert job.task(0, 0, ExecutionState.CANCELED) == []
    actions = job.task(1, 0, ExecutionState.FAILED, "killed with its driver")
    assert [d.descriptor.attempt_id for d in only(actions, DeployTask)] == [
        attempt(0, 1),
        attempt(1, 1),
    ]
    assert one(actions, StartCoordinator).attempt_number == 1
    assert job.scheduler.details().restarts == 1


def test_restart_waits_for_its_delay_and_is_told_as_restarting() -> None:
    """EX-17."""
    job = JobUnderTest(strategy=FixedDelayRestart(1, 2.0)).run()
    actions = job.tell("coordinator_lost", VERTEX, 0, "killed")
    assert job.confirm_cancellations() == []
    assert job.scheduler.status is JobStatus.RESTARTING
    actions = job.tell("restart_delay_over", one(actions, ScheduleRestart).generation)
    assert len(only(actions, DeployTask)) == 2
    assert job.scheduler.details().status is JobStatus.RUNNING


def test_failed_stage_fails_the_job_when_no_restart_is_left() -> None:
    """JM-22."""
    job = JobUnderTest(strategy=NO_RESTART).run()
    actions = job.tell("stage_failed", VERTEX, 0, FAILURE)
    assert one(actions, StopCoordinator) == StopCoordinator(VERTEX, 0)
    assert job.scheduler.status is JobStatus.FAILING
    job.confirm_cancellations()
    assert job.ended is None, "the coordinator is still there"
    result = one(job.tell("coordinator_stopped", VERTEX, 0), JobEnded).result
    assert result.status is JobStatus.FAILED
    assert (result.failure, result.failure_traceback) == ("ValueError: no", "Traceback ...")


def test_user_error_counts_like_any_failure_for_the_restart_strategy() -> None:
    """FO-08."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    assert one(job.tell("stage_failed", VERTEX, 0, FAILURE), ScheduleRestart).delay == 1.0


def test_cluster_default_strategy_holds_where_the_job_has_none() -> None:
    """FO-14."""
    job = JobUnderTest(strategy=None).run()
    one(job.tell("stage_failed", VERTEX, 0, FAILURE), ScheduleRestart)


def test_job_without_restarts_beats_the_cluster_default() -> None:
    """FO-14."""
    job = JobUnderTest(strategy=NO_RESTART).run()
    assert only(job.tell("stage_failed", VERTEX, 0, FAILURE), ScheduleRestart) == []


def test_failure_that_would_happen_again_suppresses_restarts() -> None:
    """FO-15."""
    job = JobUnderTest(strategy=FixedDelayRestart(5)).run()
    job.tell("stage_failed", VERTEX, 0, replace(FAILURE, suppress_restarts=True))
    assert job.scheduler.status is JobStatus.FAILING
    assert job.scheduler.details().restarts == 0


def test_task_that_fails_restarts_the_whole_stage() -> None:
    """EX-02."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.task(0, 0, ExecutionState.FAILED, "out of memory")
    assert only(actions, CancelTask) == [CancelTask(attempt(1), slots()[1])]
    assert one(actions, StopCoordinator).attempt_number == 0
    assert job.scheduler.details().exceptions[0].text == "out of memory"


def test_task_that_ends_unasked_has_failed() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.task(0, 0, ExecutionState.CANCELED)
    text = job.scheduler.details().exceptions[0].text
    assert text == "stage (1/2) was ended by its TaskExecutor (CANCELED)"


def test_failed_deployment_fails_the_stage_with_its_cause() -> None:
    """EX-02."""
    job = JobUnderTest(strategy=NO_RESTART).deploy()
    job.tell("deploy_failed", attempt(1), "connection refused")
    assert job.scheduler.details().exceptions[0].text == (
        "stage (2/2) could not be deployed: connection refused"
    )


def test_cancel_that_cannot_be_told_counts_as_canceled() -> None:
    """EX-04."""
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell("cancel")
    job.tell("cancel_failed", attempt(0), "connection refused")
    assert job.states() == ["CANCELED 0", "CANCELING 0"]


def test_lost_task_executor_is_waited_for_no_longer() -> None:
    """JM-04."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.tell("task_executor_lost", ResourceID("te1-g"), "killed")
    assert only(actions, CancelTask) == [CancelTask(attempt(0), slots()[0])]
    assert job.states() == ["CANCELING 0", "FAILED 0"]
    entry = job.scheduler.details().exceptions[0]
    assert entry.text == ("stage (2/2) lost its slot: te1-g bundle 1 on 10.0.0.1 is lost: killed")
    job.tell("slots_changed", slots(1))
    job.task(0, 0, ExecutionState.CANCELED)
    job.tell("coordinator_stopped", VERTEX, 0)
    job.tell("restart_delay_over", one(actions, ScheduleRestart).generation)
    assert job.states() == ["SCHEDULED 1", "SCHEDULED 1"]
    back = (slots()[0], allocated_slot(7, 1, name="replacement"))
    assert one(job.tell("slots_changed", back), StartCoordinator).slots == back


def test_two_task_executors_lost_together_cost_one_restart() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    job.tell("task_executor_lost", ResourceID("te0-g"), "killed")
    job.tell("task_executor_lost", ResourceID("te1-g"), "killed")
    assert job.scheduler.status is JobStatus.RESTARTING
    assert job.scheduler.details().restarts == 1


def test_slot_that_the_pool_lost_fails_its_execution() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell("slots_changed", slots(1))
    assert job.states() == ["CANCELING 0", "FAILED 0"]


def test_failed_slot_tells_its_cause() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell("slot_failed", allocation(1), "disk full")
    assert job.scheduler.details().exceptions[0].text == "stage (2/2) lost its slot: disk full"


def test_lost_slot_pool_restarts_the_job_and_the_new_pool_hears_of_the_requirements() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.tell("slot_pool_lost", "killed")
    assert actions[0] == DeclareRequirements(requirements((SMALL, 2), dedicated=True))
    assert len(only(actions, CancelTask)) == 2
    job.confirm_cancellations()
    job.tell("coordinator_stopped", VERTEX, 0)
    job.tell("restart_delay_over", one(actions, ScheduleRestart).generation)
    actions = job.tell("slots_changed", slots(first=20))
    assert one(actions, StartCoordinator).attempt_number == 1


def test_stage_whose_slot_pool_is_lost_between_its_end_and_its_drivers_runs_again() -> None:
    """It counted as finished and was never scheduled again; found by random deaths."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    job.tell("stage_finished", VERTEX, 0, RESULT)
    job.confirm_cancellations()
    actions = job.tell("slot_pool_lost", "killed")
    job.tell("coordinator_stopped", VERTEX, 0)
    job.tell("restart_delay_over", one(actions, ScheduleRestart).generation)
    actions = job.tell("slots_changed", slots(first=20))
    assert one(actions, StartCoordinator).attempt_number == 1


def test_lost_slot_pool_of_a_job_that_restarts_costs_no_further_restart() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    job.tell("coordinator_lost", VERTEX, 0, "killed")
    assert one(job.tell("slot_pool_lost", "killed"), DeclareRequirements)
    assert job.scheduler.details().restarts == 1


def test_events_of_an_old_attempt_change_nothing() -> None:
    """EX-11, EX-15."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.tell("coordinator_lost", VERTEX, 0, "killed")
    job.confirm_cancellations()
    job.tell("restart_delay_over", one(actions, ScheduleRestart).generation)
    before = job.scheduler.details()
    for event in (
        ("task_state_changed", None),
        ("deploy_failed", attempt(0, 0), "late"),
        ("cancel_failed", attempt(0, 0), "late"),
        ("coordinator_started", VERTEX, 0),
        ("coordinator_lost", VERTEX, 0, "late"),
        ("executors_changed", VERTEX, 0, ()),
        ("stage_finished", VERTEX, 0, RESULT),
        ("stage_failed", VERTEX, 0, FAILURE),
        ("restart_delay_over", one(actions, ScheduleRestart).generation),
    ):
        if event[0] == "task_state_changed":
            assert job.task(0, 0, ExecutionState.FAILED, "late") == []
        else:
            assert job.tell(*event) == []
    assert job.scheduler.details() == before


def test_events_of_an_unknown_vertex_change_nothing() -> None:
    job = JobUnderTest().run()
    unknown = id_of(type(VERTEX), 77)
    assert job.tell("coordinator_lost", unknown, 0, "killed") == []
    assert job.tell("stage_failed", unknown, 0, FAILURE) == []


def test_restart_strategy_is_exhausted_by_repeated_failures() -> None:
    """FO-08."""
    job = JobUnderTest(strategy=FixedDelayRestart(2)).run()
    for number in range(2):
        actions = job.tell("coordinator_lost", VERTEX, number, "killed")
        generation = one(actions, ScheduleRestart).generation
        job.confirm_cancellations()
        job.tell("restart_delay_over", generation)
    job.tell("coordinator_lost", VERTEX, 2, "killed again")
    job.confirm_cancellations()
    assert job.ended is not None
    assert job.ended.result.failure == "the Spark driver of stage was lost: killed again"
    assert [e.text for e in job.ended.details.exceptions] == [
        "the Spark driver of stage was lost: killed",
        "the Spark driver of stage was lost: killed",
        "the Spark driver of stage was lost: killed again",
    ]


def test_only_the_stage_that_failed_is_restarted() -> None:
    """FO-03."""
    second = spark_vertex(2)
    job = JobUnderTest(spark_job(spark_vertex(1), second, restart_strategy=None)).run()
    job.tell("stage_finished", VERTEX, 0, RESULT)
    job.tell("coordinator_stopped", VERTEX, 0)
    actions = job.tell("coordinator_lost", second.vertex_id, 0, "killed")
    assert job.states() == ["FINISHED 0", "FINISHED 0"]
    job.confirm_cancellations()
    actions = job.tell("restart_delay_over", one(actions, ScheduleRestart).generation)
    assert one(actions, StartCoordinator).vertex_id == second.vertex_id
