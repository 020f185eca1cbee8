"""JobScheduler: what is made of the reports of tasks, and what clients see of their job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import ExecutionAttemptID, ResourceID
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import JobEnded
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import ResourceShortage
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import JOB, LARGE, OTHER_GRAPH, SMALL, one
from tests.scheduler.graphs import job, python_vertex
from tests.scheduler.tasks_under_test import TasksUnderTest, stream

TE0 = ResourceID("te0")
SHORTAGE = ResourceShortage(2, SMALL, "Two slots are missing.", False, LARGE, LARGE, LARGE)


def test_report_about_a_task_of_another_graph_does_not_hide_other_reports() -> None:
    """EX-11."""
    tasks = stream(a=2)
    tasks.tell(t.StartJob())
    tasks.give()
    first, second = tasks.attempt("a1"), tasks.attempt("a2")
    foreign = ExecutionAttemptID(OTHER_GRAPH, first.vertex, first.attempt_number)
    tasks.report((first, foreign, second), ExecutionState.RUNNING)
    assert tasks.states() == "a1:RUNNING#0 a2:RUNNING#0"


def test_late_report_of_an_earlier_state_does_not_change_the_state_of_a_task() -> None:
    tasks = stream(a=1)
    tasks.tell(t.StartJob())
    tasks.give()
    states = []
    for told in ("INITIALIZING", "INITIALIZING", "RUNNING", "INITIALIZING", "RUNNING"):
        tasks.report("a1", ExecutionState[told])
        states.append(tasks.states())
    assert states == [*["a1:INITIALIZING#0"] * 2, *["a1:RUNNING#0"] * 3]


def test_failure_reported_without_a_cause_names_the_task() -> None:
    tasks = stream(a=1).run()
    tasks.report("a1", ExecutionState.FAILED)
    (entry,) = tasks.scheduler.details().exceptions
    assert entry.text == "a (1/1) failed without a cause"


def test_report_about_an_ended_task_does_not_hide_other_reports_of_the_message() -> None:
    """EX-11."""
    tasks = stream(a=2).run()
    ended, running = tasks.attempt("a1"), tasks.attempt("a2")
    tasks.finish("a1")
    tasks.report((ended, running), ExecutionState.FINISHED)
    assert tasks.status is JobStatus.FINISHED


def test_finish_report_of_an_undeployed_task_fails_the_task() -> None:
    tasks = stream(0, a=2)
    tasks.tell(t.StartJob())
    tasks.give(1)
    deployed = tasks.attempt("a1")
    other = replace(deployed, vertex=replace(deployed.vertex, subtask_index=1))
    tasks.report((other,), ExecutionState.FINISHED)
    text = "a (2/2) was ended by its TaskExecutor (FINISHED)"
    assert [entry.text for entry in tasks.scheduler.exceptions()] == [text]


def test_of_failures_in_one_message_the_one_suppressing_restarts_is_the_cause() -> None:
    """FO-15: the other failures are listed as concurrent."""
    tasks = stream(a=2).run()
    first, second = tasks.attempt("a1"), tasks.attempt("a2")
    failed = ExecutionState.FAILED
    reports = (
        TaskExecutionState(JOB, first, failed, "passing"),
        TaskExecutionState(JOB, second, failed, "lasting", suppress_restarts=True),
    )
    ended = one(tasks.tell(t.TasksReported(tuple(reports))), JobEnded)
    assert ended.result.failure == "lasting"
    (entry,) = ended.details.exceptions
    assert (entry.text, [beside.text for beside in entry.concurrent]) == ("lasting", ["passing"])


def test_second_failure_of_a_failing_job_is_listed_and_the_first_stays_the_cause() -> None:
    tasks = stream(0, a=2).run()
    tasks.fail("a1", "first")
    assert tasks.status is JobStatus.FAILING
    tasks.tell(t.GlobalFailure(Failure("second")))
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    assert tasks.ended.result.failure == "first"
    assert [entry.text for entry in tasks.ended.details.exceptions] == ["first", "second"]


def test_global_failure_during_the_cancel_fails_the_job() -> None:
    tasks = stream(a=1).run()
    tasks.tell(t.CancelJob())
    tasks.tell(t.GlobalFailure(Failure("the store is gone")))
    assert tasks.status is JobStatus.FAILING
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    assert tasks.ended.result.failure == "the store is gone"


def test_task_failure_during_the_cancel_is_listed_but_fails_no_job() -> None:
    """JM-22."""
    tasks = stream(a=2).run()
    tasks.tell(t.CancelJob())
    tasks.fail("a1", "no time to say goodbye")
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    assert tasks.ended.result.status is JobStatus.CANCELED
    assert tasks.ended.result.failure is None
    assert [entry.text for entry in tasks.ended.details.exceptions] == ["no time to say goodbye"]


def test_job_cancelled_during_a_restart_delay_does_not_restart_after_it() -> None:
    tasks = stream(a=2).run()
    tasks.fail("a1")
    tasks.tell(t.CancelJob())
    assert tasks.tell(one(tasks.log, StartTimer).event) == []
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.CANCELED


def test_suspended_job_shows_no_pending_reason_and_ignores_a_second_suspend() -> None:
    """EX-08."""
    tasks = stream(a=2)
    tasks.tell(t.StartJob())
    tasks.give(1)
    tasks.tell(t.ResourcesShort((SHORTAGE,)))
    assert tasks.scheduler.details().pending_reason is not None
    tasks.tell(t.SuspendJob("the Dispatcher goes"))
    assert tasks.scheduler.details().pending_reason is None
    assert tasks.tell(t.SuspendJob("it goes again")) == []
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    assert tasks.ended.result.status is JobStatus.SUSPENDED


def test_start_end_and_modification_times_of_a_job_are_wall_clock_times() -> None:
    tasks = stream(a=1).run()
    before = tasks.scheduler.overview()
    assert (before.start_time, before.end_time) == (1_000_000.0, None)
    tasks.finish("a1")
    overview, details = tasks.scheduler.overview(), tasks.scheduler.details()
    assert (overview.start_time, overview.end_time) == (1_000_000.0, 1_000_000.0 + tasks.now)
    assert (details.start_time, details.end_time) == (overview.start_time, overview.end_time)
    assert before.last_modified == 1_000_001.0
    assert overview.last_modified == overview.end_time


def test_job_scheduler_refuses_an_invalid_job_graph() -> None:
    with pytest.raises(JobSubmissionError):
        TasksUnderTest(job(vertices=[replace(python_vertex("a"), parallelism=0)]))


def test_task_executor_that_registers_again_is_sent_all_shared_deployment_data_again() -> None:
    """JM-15."""
    tasks = TasksUnderTest(job(a=2), slots_each=2)
    tasks.tell(t.StartJob())
    tasks.give(1)
    tasks.scheduler.forget_parts(TE0)
    tasks.task_executors.clear()  # it has forgotten them
    tasks.give()
    assert tasks.states() == "a1:DEPLOYING#0 a2:DEPLOYING#0"


def test_report_of_a_task_of_another_execution_graph_is_ignored() -> None:
    tasks = stream(a=1).run()
    told = TaskExecutionState(
        JOB,
        ExecutionAttemptID(OTHER_GRAPH, tasks.attempt("a1").vertex, 0),
        ExecutionState.FAILED,
        "not mine",
    )
    assert tasks.tell(t.TasksReported((told,))) == []
    assert tasks.status is JobStatus.RUNNING
