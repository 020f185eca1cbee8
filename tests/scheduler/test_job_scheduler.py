"""JobScheduler: how a job of Spark stages is deployed, fails, restarts and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import ResourceID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.failure import Failure
from flinkray.scheduler.job_graph import FixedDelayRestart, NoRestart
from flinkray.scheduler.job_scheduler_actions import (
    CancelTask,
    DeclareRequirements,
    DeployTask,
    JobEnded,
    ReleaseSlots,
    ScheduleRestart,
    ScheduleSlotRequestTimeout,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.slots import ResourceShortage
from flinkray.scheduler.states import ExecutionState, JobStatus
from flinkray.spark.gateway import SparkProgress, SparkStageProgress
from tests.scheduler.builders import (
    LARGE,
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
    RESULT,
    JobUnderTest,
    attempt,
    executor,
    slots,
)

NO_RESTART = NoRestart()


def shortage(unfulfillable: bool) -> ResourceShortage:
    nothing = ResourceProfile(0.0)
    return ResourceShortage(
        2, SMALL, "2 slots are missing.", unfulfillable, nothing, nothing, LARGE
    )


# --- the way to the end ---------------------------------------------------------------------------


def test_started_job_declares_all_its_slots_and_waits_for_them() -> None:
    job = JobUnderTest()
    assert job.tell("start") == [
        DeclareRequirements(requirements((SMALL, 2), dedicated=True)),
        ScheduleSlotRequestTimeout(300.0, 1),
    ]
    assert job.states() == ["SCHEDULED 0", "SCHEDULED 0"]
    assert job.tell("slots_changed", slots(1)) == []
    assert job.scheduler.details().pending_reason == (
        "1 of 2 slots (1 CPU, 1g memory each) are there."
    )


def test_starting_twice_is_an_error() -> None:
    job = JobUnderTest().start()
    with pytest.raises(IllegalTransitionError, match="cannot go from RUNNING to RUNNING"):
        job.tell("start")


def test_subtasks_are_deployed_to_the_slot_of_their_bundle_when_all_are_there() -> None:
    job = JobUnderTest().start()
    first, second = slots()
    actions = job.tell("slots_changed", (second, first))
    deployed = only(actions, DeployTask)
    assert [(d.descriptor.attempt_id, d.slot) for d in deployed] == [
        (attempt(0), first),
        (attempt(1), second),
    ]
    assert deployed[0].descriptor.task_name == "stage (1/2)"
    assert one(actions, StartCoordinator) == StartCoordinator(VERTEX, 0, (first, second))
    assert job.scheduler.details().pending_reason is None


def test_execution_runs_when_its_executor_is_registered() -> None:
    job = JobUnderTest().deploy()
    job.tell("coordinator_started", VERTEX, 0)
    job.task(0, 0, ExecutionState.RUNNING)
    assert job.states() == ["DEPLOYING 0", "DEPLOYING 0"]
    job.tell("executors_changed", VERTEX, 0, (executor(1),))
    assert job.states() == ["DEPLOYING 0", "RUNNING 0"]
    info = job.scheduler.details().vertices[0].executions[1]
    assert (info.executor_actor_id, info.executor_pid) == ("actor1", 101)
    assert info.location == "te1-g bundle 1 on 10.0.0.1"


def test_job_is_finished_when_its_stage_is_and_the_coordinator_is_gone() -> None:
    """EG-11."""
    job = JobUnderTest().run()
    actions = job.tell("stage_finished", VERTEX, 0, RESULT)
    assert only(actions, StopCoordinator) == [StopCoordinator(VERTEX, 0)]
    assert len(only(actions, CancelTask)) == 2
    assert job.states() == ["FINISHED 0", "FINISHED 0"]
    assert job.scheduler.status is JobStatus.RUNNING
    result = one(job.tell("coordinator_stopped", VERTEX, 0), JobEnded).result
    assert result.status is JobStatus.FINISHED
    assert (result.result_location, result.num_rows) == ("file:///result", 42)
    assert result.net_runtime == job.now


def test_details_have_times_of_people_and_of_every_status() -> None:
    job = JobUnderTest().run()
    job.tell("stage_finished", VERTEX, 0, RESULT)
    details = one(job.tell("coordinator_stopped", VERTEX, 0), JobEnded).details
    assert details.start_time == 1_000_000.0
    assert details.end_time == 1_000_000.0 + job.now
    assert list(details.status_timestamps) == ["INITIALIZING", "CREATED", "RUNNING", "FINISHED"]
    assert details.worker_group == allocated_slot(0).location.worker_group


def test_progress_is_shown_and_ends_with_its_attempt() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    running = SparkStageProgress(3, "count", 8, 2, 4, 0)
    job.tell("stage_progress", VERTEX, 0, SparkProgress((running,), 2, 20, 1))
    vertex = job.scheduler.details().vertices[0]
    assert vertex.active_stages[0].completed_tasks == 4
    assert (vertex.completed_stages, vertex.completed_tasks, vertex.failed_tasks) == (2, 20, 1)
    job.tell("stage_progress", VERTEX, 1, SparkProgress())
    assert job.scheduler.details().vertices[0].completed_stages == 2


def test_stages_run_one_after_another_in_the_same_slots() -> None:
    second = spark_vertex(2)
    job = JobUnderTest(spark_job(spark_vertex(1), second)).run()
    job.tell("stage_finished", VERTEX, 0, RESULT)
    actions = job.tell("coordinator_stopped", VERTEX, 0)
    assert only(actions, DeclareRequirements) == []
    assert one(actions, StartCoordinator) == StartCoordinator(second.vertex_id, 0, slots())
    last = replace(RESULT, num_rows=7)
    job.tell("stage_finished", second.vertex_id, 0, last)
    result = one(job.tell("coordinator_stopped", second.vertex_id, 0), JobEnded).result
    assert (result.status, result.num_rows) == (JobStatus.FINISHED, 7)


# --- slots ----------------------------------------------------------------------------------------


def test_slots_of_an_older_group_are_released_when_they_stand_in_the_way() -> None:
    job = JobUnderTest().start()
    mixed = (allocated_slot(1, 1, "old"), allocated_slot(2, 1, "new"))
    assert job.tell("slots_changed", mixed) == [
        ReleaseSlots((allocation(1),), "not of the job's present worker group")
    ]
    actions = job.tell("slots_changed", (mixed[1], allocated_slot(3, 0, "new")))
    assert [d.slot.allocation_id for d in only(actions, DeployTask)] == [
        allocation(3),
        allocation(2),
    ]


def test_replacement_in_the_same_bundle_wins_over_the_slot_before_it() -> None:
    job = JobUnderTest().start()
    held = (*slots(), allocated_slot(9, 0, name="replacement"))
    actions = job.tell("slots_changed", held)
    assert one(actions, StartCoordinator).slots[0].allocation_id == allocation(9)


def test_shortage_is_the_reason_for_waiting_until_it_is_over() -> None:
    job = JobUnderTest().start()
    assert job.tell("resources_short", (shortage(False),)) == []
    assert job.scheduler.details().pending_reason == "2 slots are missing."
    job.tell("resources_short", ())
    assert "0 of 2 slots" in (job.scheduler.details().pending_reason or "")


def test_unfulfillable_shortage_fails_the_job_at_once() -> None:
    """FO-15."""
    job = JobUnderTest(strategy=FixedDelayRestart(5)).start()
    ended = one(job.tell("resources_short", (shortage(True),)), JobEnded)
    assert ended.result.status is JobStatus.FAILED
    assert ended.result.failure == "UnfulfillableSlotRequestError: 2 slots are missing."
    assert ended.details.restarts == 0


def test_unfulfillable_shortage_while_the_job_runs_changes_nothing() -> None:
    job = JobUnderTest().run()
    assert job.tell("resources_short", (shortage(True),)) == []


def test_slot_request_timeout_fails_the_job_with_the_reason() -> None:
    """EX-18."""
    job = JobUnderTest(strategy=NO_RESTART).start()
    job.tell("resources_short", (shortage(False),))
    result = one(job.tell("slot_request_timed_out", 1), JobEnded).result
    assert result.failure == (
        "NoResourceAvailableError: Could not allocate the required slot within slot request "
        "timeout. 2 slots are missing."
    )


def test_slot_request_timeout_counts_as_a_failure_and_is_tried_again() -> None:
    """JM-11."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).start()
    restart = one(job.tell("slot_request_timed_out", 1), ScheduleRestart)
    actions = job.tell("restart_delay_over", restart.generation)
    assert one(actions, ScheduleSlotRequestTimeout).generation > restart.generation
    actions = job.tell("slots_changed", slots(first=5))
    assert only(actions, DeployTask)[0].descriptor.allocation_id == allocation(5)


def test_old_slot_request_timeout_changes_nothing() -> None:
    """EX-15."""
    assert JobUnderTest().deploy().tell("slot_request_timed_out", 1) == []
    assert JobUnderTest().start().tell("slot_request_timed_out", 0) == []


# --- failures -------------------------------------------------------------------------------------


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
    assert job.scheduler.status is JobStatus.RUNNING


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


# --- cancel, suspend, global failures -------------------------------------------------------------


def test_cancelled_job_ends_when_tasks_and_coordinator_have_ended() -> None:
    """EX-04, JM-22."""
    job = JobUnderTest().run()
    actions = job.tell("cancel")
    assert len(only(actions, CancelTask)) == 2
    assert one(actions, StopCoordinator).attempt_number == 0
    assert job.tell("cancel") == []
    assert job.confirm_cancellations() == []
    result = one(job.tell("coordinator_stopped", VERTEX, 0), JobEnded).result
    assert (result.status, result.failure) == (JobStatus.CANCELED, None)
    assert job.tell("cancel") == []


def test_cancel_stops_a_coordinator_that_is_still_starting() -> None:
    job = JobUnderTest().deploy()
    assert one(job.tell("cancel"), StopCoordinator).attempt_number == 0
    assert job.tell("coordinator_started", VERTEX, 0) == []
    job.confirm_cancellations()
    one(job.tell("coordinator_stopped", VERTEX, 0), JobEnded)


def test_cancel_of_a_job_that_waits_for_slots_ends_it_at_once() -> None:
    """EX-03."""
    ended = one(JobUnderTest().start().tell("cancel"), JobEnded)
    assert ended.result.status is JobStatus.CANCELED


def test_cancel_before_the_start_ends_the_job_and_a_start_then_does_nothing() -> None:
    """EX-03."""
    job = JobUnderTest()
    one(job.tell("cancel"), JobEnded)
    assert job.tell("start") == []


def test_cancel_while_restarting_ends_the_job_and_the_restart_does_nothing() -> None:
    """EX-10."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.tell("coordinator_lost", VERTEX, 0, "killed")
    job.confirm_cancellations()
    assert one(job.tell("cancel"), JobEnded).result.status is JobStatus.CANCELED
    assert job.tell("restart_delay_over", one(actions, ScheduleRestart).generation) == []


def test_cancel_while_restarting_waits_for_tasks_that_still_run() -> None:
    """EX-10."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    job.tell("coordinator_lost", VERTEX, 0, "killed")
    assert job.tell("cancel") == []
    assert job.scheduler.status is JobStatus.CANCELLING
    job.confirm_cancellations()
    assert job.scheduler.status is JobStatus.CANCELED


def test_cancel_while_failing_ends_as_canceled() -> None:
    """EX-09."""
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell("coordinator_lost", VERTEX, 0, "killed")
    job.tell("cancel")
    job.confirm_cancellations()
    assert job.scheduler.status is JobStatus.CANCELED


def test_global_failure_while_cancelling_ends_as_failed() -> None:
    """EX-09."""
    job = JobUnderTest().run()
    job.tell("cancel")
    job.tell("global_failure", Failure("lost leadership of everything"))
    job.confirm_cancellations()
    result = one(job.tell("coordinator_stopped", VERTEX, 0), JobEnded).result
    assert (result.status, result.failure) == (JobStatus.FAILED, "lost leadership of everything")


def test_task_that_fails_after_cancel_leaves_the_job_canceled() -> None:
    """EX-09."""
    job = JobUnderTest(strategy=FixedDelayRestart(5)).run()
    job.tell("cancel")
    job.task(0, 0, ExecutionState.FAILED, "killed")
    job.task(1, 0, ExecutionState.FINISHED)
    one(job.tell("coordinator_lost", VERTEX, 0, "killed"), JobEnded)
    assert job.scheduler.status is JobStatus.CANCELED


def test_global_failure_restarts_by_the_strategy() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.tell("global_failure", Failure("something"))
    assert len(only(actions, CancelTask)) == 2
    one(actions, ScheduleRestart)


@pytest.mark.parametrize("situation", ["waiting", "running", "restarting", "failing", "cancelling"])
def test_suspended_job_ends_suspended_whatever_it_was_doing(situation: str) -> None:
    """EX-08."""
    restarts = FixedDelayRestart(0 if situation == "failing" else 1)
    job = JobUnderTest(strategy=restarts)
    if situation == "waiting":
        job.start()
    else:
        job.run()
    if situation in ("restarting", "failing"):
        job.tell("coordinator_lost", VERTEX, 0, "killed")
    elif situation == "cancelling":
        job.tell("cancel")
    already_cancelled = len(only(job.log, CancelTask))
    actions = job.tell("suspend", "the Dispatcher goes")
    expected = 2 if situation == "running" else 0
    assert len(only(actions, CancelTask)) == expected
    assert job.tell("cancel") == []
    assert len(only(job.log, CancelTask)) == already_cancelled + expected
    job.confirm_cancellations()
    job.tell("coordinator_stopped", VERTEX, 0)
    assert job.ended is not None
    assert job.ended.result.status is JobStatus.SUSPENDED
    assert job.tell("restart_delay_over", 2) == []


def test_suspend_after_the_end_changes_nothing() -> None:
    """EX-08."""
    job = JobUnderTest().start()
    job.tell("cancel")
    assert job.tell("suspend", "late") == []
    assert job.scheduler.status is JobStatus.CANCELED


def test_story_tells_every_status_with_its_cause() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell("coordinator_lost", VERTEX, 0, "killed")
    assert "RUNNING -> FAILING: the Spark driver of stage was lost: killed" in job.scheduler.story()
