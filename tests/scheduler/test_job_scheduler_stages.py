"""JobScheduler: how a job of Spark stages gets its slots, is deployed and runs to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job.job_scheduler_actions import (
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
from flinkray.scheduler.shared.slots import ResourceShortage
from flinkray.scheduler.shared.spark_reports import SparkProgress, SparkStageProgress
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.builders import (
    LARGE,
    SMALL,
    VERTEX,
    allocated_slot,
    allocation,
    one,
    only,
    requirements,
    spark_job,
    spark_vertex,
)
from tests.scheduler.job_under_test import (
    NO_RESTART,
    RESULT,
    JobUnderTest,
    attempt,
    executor,
    slots,
)


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
