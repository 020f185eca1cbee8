"""JobScheduler: jobs of many vertices that are cancelled or suspended."""

from __future__ import annotations

import pytest

from flinkray.scheduler.elastic.elastic_job_scheduler import ElasticJobScheduler
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    JobEnded,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from tests.scheduler.builders import one, only
from tests.scheduler.graphs import job
from tests.scheduler.tasks_under_test import TasksUnderTest, stream

LOST = Failure("its checkpoints cannot be read")


def test_cancel_sends_one_message_to_each_task_executor_and_waits_for_its_tasks() -> None:
    """EX-04."""
    tasks = TasksUnderTest(job(a=4, b=4, edges=["a -> b"]), slots_each=2).run()
    actions = tasks.tell(t.CancelJob())
    assert [len(c.attempts) for c in only(actions, CancelTasks)] == [4, 4]
    assert tasks.tell(t.CancelJob()) == []
    one(tasks.confirm_cancellations(), JobEnded)
    assert tasks.status is JobStatus.CANCELED
    assert tasks.reserved == {}


@pytest.mark.parametrize("kind", [JobScheduler, ElasticJobScheduler])
@pytest.mark.parametrize("end", [t.CancelJob(), t.SuspendJob("it stops"), t.GlobalFailure(LOST)])
@pytest.mark.parametrize("is_taken_over", [False, True])
def test_job_that_is_ended_before_it_begins_is_over_at_once_and_cannot_begin(
    kind: type[JobScheduler], end: JobEvent, is_taken_over: bool
) -> None:
    """EX-03."""
    tasks = TasksUnderTest(job(a=1), kind=kind)
    if is_taken_over:
        tasks.tell(t.AwaitReports())
    assert one(tasks.tell(end), JobEnded).result.status.is_terminal
    begin = t.TakeOverJob(None, (), (), has_run=True) if is_taken_over else t.StartJob()
    assert tasks.tell(begin) == []


def test_cancel_withdraws_the_slot_requests_of_the_job() -> None:
    """EX-03."""
    tasks = stream(a=2, b=1, edges=["a => b"])
    tasks.tell(t.StartJob())
    tasks.give(1)
    tasks.report("a1", ExecutionState.FAILED, "x")
    ended = one(tasks.tell(t.CancelJob()), JobEnded)
    assert tasks.wanted == {}
    assert {e.state for v in ended.details.vertices for e in v.executions} == {
        ExecutionState.CANCELED,
        ExecutionState.FAILED,
    }


def test_report_of_a_running_task_after_cancel_changes_nothing() -> None:
    """EX-04."""
    tasks = stream(a=1)
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.tell(t.CancelJob())
    assert tasks.report("a1", ExecutionState.RUNNING) == []
    assert tasks.states() == "a1:CANCELING#0"
    one(tasks.finish("a1"), JobEnded)
    assert tasks.states() == "a1:CANCELED#0"


def test_cancel_of_a_restarting_job_waits_for_running_tasks_and_drops_the_restart() -> None:
    """EX-10."""
    tasks = stream(a=2).run()
    restart = one(tasks.fail("a1"), StartTimer)
    assert tasks.cancelled(tasks.tell(t.CancelJob())) == "a2#0"
    assert tasks.status is JobStatus.CANCELLING
    assert tasks.tell(restart.event) == []
    one(tasks.confirm_cancellations(), JobEnded)


@pytest.mark.parametrize("situation", ["created", "waiting", "running", "restarting", "cancelling"])
def test_suspended_job_cancels_running_tasks_once_and_ends_suspended(situation: str) -> None:
    """EX-08."""
    tasks = stream(a=2)
    if situation == "waiting":
        tasks.tell(t.StartJob())
    elif situation != "created":
        tasks.run()
    if situation == "restarting":
        tasks.fail("a1")
    elif situation == "cancelling":
        tasks.tell(t.CancelJob())
    expected = {"running": "a1#0 a2#0", "restarting": "a2#0"}.get(situation, "")
    assert tasks.cancelled(tasks.tell(t.SuspendJob("leadership lost"))) == expected
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.SUSPENDED
    assert tasks.ended is not None
    assert tasks.tell(t.RestartDelayOver(1)) == []


def test_global_failure_of_a_suspended_job_is_not_listed_in_the_jobs_exceptions() -> None:
    """The next JobMaster runs the job, and its exceptions name what has failed the job."""
    tasks = stream(a=1).run()
    tasks.tell(t.SuspendJob("its JobMaster stops"))
    assert tasks.tell(t.GlobalFailure(Failure("a file is not readable"))) == []
    assert tasks.scheduler.exceptions() == ()
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.SUSPENDED


def test_job_with_a_global_failure_while_it_is_being_cancelled_ends_as_failed() -> None:
    """EX-09."""
    tasks = stream(a=1).run()
    tasks.tell(t.CancelJob())
    tasks.tell(t.GlobalFailure(Failure("worse")))
    assert tasks.status is JobStatus.FAILING
    tasks.confirm_cancellations()
    assert tasks.scheduler.details().status is JobStatus.FAILED
