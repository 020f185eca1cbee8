"""JobScheduler: how a job of Spark stages fails and restarts."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import ResourceID
from flinkray.core.recurring_errors import ProgramError
from flinkray.scheduler.graph.job_graph import ExponentialDelayRestart, FixedDelayRestart
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import SparkExecutors
from flinkray.scheduler.job.job_scheduler_actions import JobEnded, StartCoordinator, StopCoordinator
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import ReturnSlots, SlotRequests, SlotsLost
from tests.scheduler.builders import (
    VERTEX,
    allocation,
    group,
    id_of,
    one,
    only,
    spark_job,
    spark_vertex,
)
from tests.scheduler.job.job_under_test import (
    FAILURE,
    NO_RESTART,
    RESULT,
    JobUnderTest,
    attempt,
    driver,
    executor,
)


def test_lost_spark_executor_gets_a_new_attempt_and_the_job_keeps_running() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    actions = job.executors(executor(0))
    assert job.cancelled(actions) == "stage2#0"
    assert job.deployed(actions) == "stage2#1"
    assert job.tasks[attempt(1, 1)].allocation_id == allocation(1)
    assert job.stage_states() == ["RUNNING 0", "DEPLOYING 1"]
    details = job.scheduler.details()
    assert (details.status, details.restarts) == (JobStatus.RUNNING, 0)
    entry = details.exceptions[0]
    assert (entry.task, entry.location) == ("stage (2/2)", "te1-g bundle 1 on 10.0.0.1")
    assert "Spark executor 1 (pid 101) of stage (2/2) was lost" in entry.text
    job.task(1, 0, ExecutionState.CANCELED)
    job.executors(executor(0), executor(1, pid=200))
    assert job.stage_states() == ["RUNNING 0", "RUNNING 1"]
    freed = one(job.finish_stage(), ReturnSlots)
    assert freed.allocations == (allocation(0), allocation(1)), "the new attempt had its slot"


def test_spark_executor_replaced_between_two_reports_is_a_new_attempt() -> None:
    job = JobUnderTest().run()
    job.executors(executor(0, pid=500), executor(1))
    assert job.stage_states() == ["RUNNING 1", "RUNNING 0"]


def test_lost_spark_driver_restarts_its_stage_once_all_tasks_of_the_stage_have_ended() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1, 2.0)).run()
    actions = job.lost()
    assert one(actions, StartTimer).delay == 2.0
    assert job.cancelled(actions) == "stage1#0 stage2#0"
    assert only(actions, StopCoordinator) == []
    assert job.scheduler.status is JobStatus.RESTARTING
    assert job.delay_over() == []
    assert one(job.task(0, 0, ExecutionState.CANCELED), ReturnSlots).allocations == (allocation(0),)
    actions = job.task(1, 0, ExecutionState.FAILED, "killed with its driver")
    assert [r.bundle for r in one(actions, SlotRequests).requests] == [0, 1]
    actions = job.give()
    assert job.deployed(actions) == "stage1#1 stage2#1"
    assert one(actions, StartCoordinator).coordinator.attempt_number == 1
    assert job.scheduler.details().restarts == 1


def test_job_is_restarting_during_the_restart_delay() -> None:
    """EX-17."""
    job = JobUnderTest(strategy=FixedDelayRestart(1, 2.0)).run()
    job.lost()
    assert only(job.confirm_cancellations(), SlotRequests) == []
    assert job.scheduler.status is JobStatus.RESTARTING
    job.delay_over()
    assert job.deployed(job.give()) == "stage1#1 stage2#1"
    assert job.scheduler.details().status is JobStatus.RUNNING


def test_failed_stage_fails_the_job_when_no_restart_is_left() -> None:
    """JM-22."""
    job = JobUnderTest(strategy=NO_RESTART).run()
    actions = job.says(FAILURE)
    assert one(actions, StopCoordinator) == StopCoordinator(driver())
    assert job.scheduler.status is JobStatus.FAILING
    job.confirm_cancellations()
    assert job.ended is None, "the coordinator is still there"
    result = one(job.stopped(), JobEnded).result
    assert result.status is JobStatus.FAILED
    assert (result.failure, result.failure_traceback) == ("ValueError: no", "Traceback ...")


def test_tasks_of_a_failed_spark_stage_show_the_error_of_its_spark_function() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    actions = job.tell(t.CoordinatorTold(driver(), FAILURE))
    assert job.cancelled(actions) == "stage1#0 stage2#0"
    assert job.stage_states() == ["FAILED 0", "FAILED 0"]
    (vertex,) = job.scheduler.details().vertices
    assert [execution.failure for execution in vertex.executions] == 2 * [FAILURE.text]


def test_tasks_being_cancelled_when_the_spark_function_fails_end_as_canceled() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell(t.CancelJob())
    job.tell(t.CoordinatorTold(driver(), FAILURE))
    job.task(0, 0, ExecutionState.CANCELED)
    job.task(1, 0, ExecutionState.CANCELED)
    assert job.stage_states() == ["CANCELED 0", "CANCELED 0"]


def test_user_error_counts_like_any_failure_for_the_restart_strategy() -> None:
    """FO-08."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    assert one(job.says(FAILURE), StartTimer).delay == 1.0


def test_job_without_a_restart_strategy_uses_the_default_of_the_cluster() -> None:
    """FO-14."""
    job = JobUnderTest(strategy=None).run()
    one(job.says(FAILURE), StartTimer)


def test_restart_strategy_none_of_a_job_overrides_the_default_of_the_cluster() -> None:
    """FO-14."""
    job = JobUnderTest(strategy=NO_RESTART).run()
    assert only(job.says(FAILURE), StartTimer) == []


def test_spark_stage_failure_marked_as_unrecoverable_suppresses_restarts() -> None:
    """FO-15."""
    job = JobUnderTest(strategy=FixedDelayRestart(5)).run()
    job.says(replace(FAILURE, suppress_restarts=True))
    assert job.scheduler.status is JobStatus.FAILING
    assert job.scheduler.details().restarts == 0


def test_task_failure_restarts_the_whole_spark_stage() -> None:
    """EX-02."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.task(0, 0, ExecutionState.FAILED, "out of memory")
    assert job.cancelled(actions) == "stage2#0"
    assert one(actions, StopCoordinator).coordinator.attempt_number == 0
    assert job.scheduler.details().exceptions[0].text == "out of memory"


def test_task_that_is_canceled_without_a_cancel_request_counts_as_failed() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.task(0, 0, ExecutionState.CANCELED)
    text = job.scheduler.details().exceptions[0].text
    assert text == "stage (1/2) was ended by its TaskExecutor (CANCELED)"


def test_failed_deployment_fails_the_stage_with_its_cause() -> None:
    """EX-02."""
    job = JobUnderTest(strategy=NO_RESTART).deploy()
    job.tell(t.DeploymentsFailed(ResourceID("te1-g"), (attempt(1),), "connection refused"))
    assert job.scheduler.details().exceptions[0].text == (
        "stage (2/2) could not be deployed: connection refused"
    )


def test_task_whose_cancel_cannot_be_sent_counts_as_canceled() -> None:
    """EX-04."""
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell(t.CancelJob())
    job.tell(t.CancellationsFailed((attempt(0),), "connection refused"))
    assert job.stage_states() == ["CANCELED 0", "CANCELING 0"]


def test_restart_does_not_wait_for_tasks_of_a_lost_task_executor() -> None:
    """JM-04."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.lose_task_executor("te1-g")
    assert job.cancelled(actions) == "stage1#0"
    assert job.stage_states() == ["CANCELING 0", "FAILED 0"]
    entry = job.scheduler.details().exceptions[0]
    assert entry.text == "stage (2/2) lost its slot: killed"
    assert entry.location == "te1-g bundle 1 on 10.0.0.1"
    job.confirm_cancellations()
    assert one(job.stopped(), ReturnSlots).allocations == (allocation(0),)
    job.delay_over()
    assert job.stage_states() == ["SCHEDULED 1", "SCHEDULED 1"]
    job.worker_group = "h"
    started = one(job.give(), StartCoordinator)
    assert {slot.location.worker_group for slot in started.slots} == {group("h")}


def test_two_task_executors_lost_together_count_as_one_restart() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    job.lose_task_executor("te0-g")
    job.lose_task_executor("te1-g")
    assert job.scheduler.status is JobStatus.RESTARTING
    assert job.scheduler.details().restarts == 1


def test_task_whose_slot_was_lost_by_the_slot_pool_fails() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell(t.SlotsTold((SlotsLost((allocation(1),), "killed"),)))
    assert job.stage_states() == ["CANCELING 0", "FAILED 0"]


def test_failure_of_a_task_that_lost_its_slot_is_shown_with_the_cause_of_the_loss() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.tell(t.SlotsTold((SlotsLost((allocation(1),), "disk full"),)))
    assert job.scheduler.details().exceptions[0].text == "stage (2/2) lost its slot: disk full"


def test_late_events_of_an_old_spark_stage_attempt_are_ignored() -> None:
    """EX-11, EX-15."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.lost()
    job.confirm_cancellations()
    job.delay_over()
    before = job.scheduler.details()
    for event in (
        t.DeploymentsFailed(ResourceID("te0-g"), (attempt(0, 0),), "late"),
        t.CancellationsFailed((attempt(0, 0),), "late"),
        t.CoordinatorStarted(driver()),
        t.CoordinatorGone(driver(), "late"),
        t.CoordinatorTold(driver(), SparkExecutors(())),
        t.CoordinatorTold(driver(), RESULT),
        t.CoordinatorTold(driver(), FAILURE),
        one(actions, StartTimer).event,
    ):
        assert job.tell(event) == []
    assert job.task(0, 0, ExecutionState.FAILED, "late") == []
    assert job.scheduler.details() == before


def test_spark_driver_events_of_an_unknown_vertex_are_ignored() -> None:
    job = JobUnderTest().run()
    unknown = driver(0, id_of(type(VERTEX), 77))
    assert job.tell(t.CoordinatorGone(unknown, "killed")) == []
    assert job.tell(t.CoordinatorTold(unknown, FAILURE)) == []


def test_restart_strategy_is_exhausted_by_repeated_failures() -> None:
    """FO-08."""
    job = JobUnderTest(strategy=FixedDelayRestart(2)).run()
    for number in range(2):
        job.lost("killed", number)
        job.confirm_cancellations()
        job.delay_over()
        job.give()
    job.lost("killed again", 2)
    job.confirm_cancellations()
    assert job.ended is not None
    assert job.ended.result.failure == "the Spark driver of stage was lost: killed again"
    assert [e.text for e in job.ended.details.exceptions] == [
        "the Spark driver of stage was lost: killed",
        "the Spark driver of stage was lost: killed",
        "the Spark driver of stage was lost: killed again",
    ]


def test_only_the_failed_spark_stage_is_restarted() -> None:
    """FO-03."""
    second = spark_vertex(2)
    job = JobUnderTest(spark_job(spark_vertex(1), second, restart_strategy=None)).run()
    job.says(RESULT)
    job.stopped()
    job.tell(t.CoordinatorGone(driver(0, second.vertex_id), "killed"))
    assert job.stage_states() == ["FINISHED 0", "FINISHED 0"]
    job.confirm_cancellations()
    job.delay_over()
    assert one(job.give(), StartCoordinator).coordinator == driver(1, second.vertex_id)


def test_error_of_a_spark_driver_counts_once_per_attempt() -> None:
    job = JobUnderTest(strategy=ExponentialDelayRestart(0.1, jitter_factor=0.0)).deploy()
    failure = replace(FAILURE, program_error=ProgramError("KeyError at a.py:1: 'x'"))
    for number in range(2):
        job.started(number)
        for _ in range(3):
            job.says(failure, number)
        assert job.status is JobStatus.RESTARTING
        job.stopped(number)
        job.restart()
        job.says(failure, number)
        assert (job.status, job.scheduler.restarts) == (JobStatus.RUNNING, number + 1)
    job.started(2)
    job.says(failure, 2)
    job.stopped(2)
    assert job.ended is not None
    assert "3 attempts have ended with this error" in str(job.ended.result.failure)
