"""JobScheduler: a job of Spark stages that is cancelled or suspended, or fails as a whole."""

from __future__ import annotations

import pytest

from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import (
    JobEnded,
    StopCoordinator,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import one
from tests.scheduler.job.job_under_test import NO_RESTART, JobUnderTest


def test_cancelled_job_ends_when_its_tasks_and_its_spark_driver_have_ended() -> None:
    """EX-04, JM-22."""
    job = JobUnderTest().run()
    actions = job.tell(t.CancelJob())
    assert len(job.cancelled(actions).split()) == 2
    assert one(actions, StopCoordinator).coordinator.attempt_number == 0
    assert job.tell(t.CancelJob()) == []
    assert job.confirm_cancellations() == []
    result = one(job.stopped(), JobEnded).result
    assert (result.status, result.failure) == (JobStatus.CANCELED, None)
    assert job.tell(t.CancelJob()) == []


def test_cancel_stops_a_coordinator_that_is_still_starting() -> None:
    job = JobUnderTest().deploy()
    assert one(job.tell(t.CancelJob()), StopCoordinator).coordinator.attempt_number == 0
    assert job.started() == []
    job.confirm_cancellations()
    one(job.stopped(), JobEnded)


def test_cancel_of_a_job_that_waits_for_slots_ends_the_job_at_once() -> None:
    """EX-03."""
    ended = one(JobUnderTest().start().tell(t.CancelJob()), JobEnded)
    assert ended.result.status is JobStatus.CANCELED


def test_cancel_of_a_restarting_job_ends_it_and_the_restart_timer_then_does_nothing() -> None:
    """EX-10."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    job.lost()
    job.confirm_cancellations()
    assert one(job.tell(t.CancelJob()), JobEnded).result.status is JobStatus.CANCELED
    assert job.delay_over() == []


def test_cancel_of_a_restarting_job_waits_for_tasks_that_still_run() -> None:
    """EX-10."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    job.lost()
    assert job.tell(t.CancelJob()) == []
    assert job.scheduler.status is JobStatus.CANCELLING
    job.confirm_cancellations()
    assert job.scheduler.details().status is JobStatus.CANCELED


def test_job_that_is_cancelled_while_it_is_failing_ends_as_canceled() -> None:
    """EX-09."""
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.lost()
    job.tell(t.CancelJob())
    job.confirm_cancellations()
    assert job.scheduler.status is JobStatus.CANCELED


def test_job_with_a_global_failure_while_it_is_being_cancelled_ends_as_failed() -> None:
    """EX-09."""
    job = JobUnderTest().run()
    job.tell(t.CancelJob())
    job.tell(t.GlobalFailure(Failure("lost leadership of everything")))
    job.confirm_cancellations()
    result = one(job.stopped(), JobEnded).result
    assert (result.status, result.failure) == (JobStatus.FAILED, "lost leadership of everything")


def test_task_that_fails_after_cancel_leaves_the_job_canceled() -> None:
    """EX-09."""
    job = JobUnderTest(strategy=FixedDelayRestart(5)).run()
    job.tell(t.CancelJob())
    job.task(0, 0, ExecutionState.FAILED, "killed")
    job.task(1, 0, ExecutionState.FINISHED)
    one(job.lost(), JobEnded)
    assert job.scheduler.status is JobStatus.CANCELED


def test_global_failure_restarts_the_job_if_the_restart_strategy_allows_it() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    actions = job.tell(t.GlobalFailure(Failure("something")))
    assert len(job.cancelled(actions).split()) == 2
    one(actions, StartTimer)


@pytest.mark.parametrize("situation", ["waiting", "running", "restarting", "failing", "cancelling"])
def test_suspend_ends_a_waiting_running_restarting_failing_or_cancelling_job(
    situation: str,
) -> None:
    """EX-08."""
    restarts = FixedDelayRestart(0 if situation == "failing" else 1)
    job = JobUnderTest(strategy=restarts)
    if situation == "waiting":
        job.start()
    else:
        job.run()
    if situation in ("restarting", "failing"):
        job.lost()
    elif situation == "cancelling":
        job.tell(t.CancelJob())
    already_cancelled = len(job.cancelled(job.log).split())
    actions = job.tell(t.SuspendJob("the Dispatcher goes"))
    expected = 2 if situation == "running" else 0
    assert len(job.cancelled(actions).split()) == expected
    assert job.tell(t.CancelJob()) == []
    assert len(job.cancelled(job.log).split()) == already_cancelled + expected
    job.confirm_cancellations()
    job.stopped()
    assert job.ended is not None
    assert job.ended.result.status is JobStatus.SUSPENDED
    assert job.tell(t.RestartDelayOver(2)) == []


def test_suspend_after_the_end_of_the_job_changes_nothing() -> None:
    """EX-08."""
    job = JobUnderTest().start()
    job.tell(t.CancelJob())
    assert job.tell(t.SuspendJob("late")) == []
    assert job.scheduler.status is JobStatus.CANCELED


def test_event_log_of_a_job_has_the_cause_of_its_change_to_failing() -> None:
    job = JobUnderTest(strategy=NO_RESTART).run()
    job.lost()
    assert "RUNNING -> FAILING: the Spark driver of stage was lost: killed" in job.scheduler.story()
