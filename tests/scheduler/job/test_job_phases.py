"""What of a job is told as spans: each event of these tests takes a second."""

from __future__ import annotations

from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.properties import savepoint
from flinkray.scheduler.graph.job_graph import NoRestart
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.reports.checkpoint_statistics import (
    CheckpointStatistics,
    CheckpointStatus,
)
from flinkray.scheduler.reports.spans import Span, SpanBook, checkpoint_span
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.elastic.test_elastic_checkpoints import ElasticCheckpoints, running_with
from tests.scheduler.elastic.test_elastic_checkpoints import graph as elastic_graph
from tests.scheduler.graphs import job
from tests.scheduler.job.checkpointed_job import CheckpointedJob, checkpointed_graph
from tests.scheduler.job.taken_over_job import TakenOverJob
from tests.scheduler.tasks_under_test import RESTARTS, TasksUnderTest

EPOCH = 1_000_000.0
RUNNING = ExecutionState.RUNNING


def taken(tasks: TasksUnderTest) -> list[tuple[str, float, float]]:
    """Name, begin and end of each span, in seconds of the test."""
    return [(s.name, s.begin - EPOCH, s.end - EPOCH) for s in tasks.scheduler.take_spans()]


def test_initialization_span_ends_when_the_last_task_runs() -> None:
    tasks = CheckpointedJob()
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.report("a1 a2 b1", RUNNING)
    assert taken(tasks) == []
    tasks.report("b2", RUNNING)
    assert taken(tasks) == [("JobInitialization", 1.0, 4.0)]
    tasks.report("b2", RUNNING)
    assert taken(tasks) == []


def test_initialization_span_ends_if_the_last_task_finishes_unreported_as_running() -> None:
    tasks = CheckpointedJob()
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.report("a1 a2 b1", RUNNING)
    tasks.finish("b2")
    assert taken(tasks) == [("JobInitialization", 1.0, 4.0)]


def test_failover_span_ends_once_all_its_tasks_run_again() -> None:
    tasks = CheckpointedJob()
    tasks.run()
    tasks.scheduler.take_spans()
    failed_at = tasks.now + 1
    tasks.fail("b1", "b1 broke")
    tasks.restart()
    tasks.report("a1 a2 b1", RUNNING)
    assert taken(tasks) == []
    tasks.report("b2", RUNNING)
    (span,) = tasks.scheduler.take_spans()
    assert (span.name, span.begin, span.end) == ("Failover", EPOCH + failed_at, EPOCH + tasks.now)
    assert span.attributes["numRestarts"] == 1
    assert "b1 broke" in str(span.attributes["cause"])
    assert span.failure is None


def test_failure_during_a_restart_prolongs_the_failover_span() -> None:
    tasks = CheckpointedJob()
    tasks.run()
    tasks.scheduler.take_spans()
    failed_at = tasks.now + 1
    tasks.fail("b1")
    tasks.restart()
    tasks.fail("a1")
    tasks.restart()
    tasks.report("a1 a2 b1 b2", RUNNING)
    assert taken(tasks) == [("Failover", failed_at, tasks.now)]


def test_running_report_of_an_old_attempt_does_not_end_the_failover_span() -> None:
    tasks = CheckpointedJob()
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.report("a1 a2 b1", RUNNING)
    tasks.fail("b1")
    failed_at = tasks.now
    tasks.report("b2", RUNNING)
    assert [name for name, *_ in taken(tasks)] == ["JobInitialization"]
    tasks.restart()
    tasks.report("a1 a2 b1 b2", RUNNING)
    assert taken(tasks) == [("Failover", failed_at, tasks.now)]


def test_failover_span_does_not_wait_for_old_attempts() -> None:
    tasks = CheckpointedJob()
    tasks.run()
    tasks.scheduler.take_spans()
    tasks.fail("b1")
    old = [attempt for attempt in tasks.tasks if tasks.name(attempt) == "b2"]
    tasks.restart()
    tasks.report("a1 a2 b1", RUNNING)
    tasks.report(old, RUNNING)
    assert taken(tasks) == []


def test_initialization_span_of_a_job_that_fails_contains_the_failure() -> None:
    tasks = CheckpointedJob(checkpointed_graph(restart_strategy=NoRestart()))
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.fail("b1", "b1 broke")
    (span,) = tasks.scheduler.take_spans()
    assert (span.name, span.end) == ("JobInitialization", EPOCH + tasks.now)
    assert "b1 broke" in str(span.failure)


def test_restart_during_initialization_is_followed_by_a_failover_span() -> None:
    tasks = CheckpointedJob()
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.fail("b1", "b1 broke")
    tasks.restart()
    tasks.report("a1 a2 b1 b2", RUNNING)
    first, second = tasks.scheduler.take_spans()
    assert (first.name, first.failure is None) == ("JobInitialization", False)
    assert (second.name, second.failure is None) == ("Failover", True)
    assert first.end == second.begin


def test_cancel_ends_the_initialization_span() -> None:
    tasks = CheckpointedJob()
    tasks.tell(t.StartJob())
    tasks.tell(t.CancelJob())
    assert taken(tasks) == [("JobInitialization", 1.0, 2.0)]


def test_failover_span_of_a_shrunk_elastic_job_awaits_its_fewer_tasks() -> None:
    tasks = ElasticCheckpoints(graph=elastic_graph())
    tasks.tell(t.StartJob())
    tasks.has(4)
    tasks.fail("b1")
    tasks.has(2)
    tasks.timer(tasks.restarted())
    tasks.report(list(tasks.tasks), RUNNING)
    begun, failover = tasks.scheduler.take_spans()
    assert (begun.name, failover.name) == ("JobInitialization", "Failover")
    assert failover.end == EPOCH + tasks.now


def test_growth_of_an_elastic_job_is_recorded_as_a_rescale_span() -> None:
    tasks = running_with(2)
    tasks.scheduler.take_spans()
    tasks.now += 100.0
    began = tasks.now + 1
    tasks.has(4)
    assert tasks.status is JobStatus.RESTARTING
    tasks.stopped()
    tasks.report(list(tasks.tasks), RUNNING)
    (span,) = tasks.scheduler.take_spans()
    assert (span.name, span.begin, span.end) == ("Rescale", EPOCH + began, EPOCH + tasks.now)
    assert "to be scaled" in str(span.attributes["cause"])


def test_growth_during_initialization_is_followed_by_a_rescale_span() -> None:
    tasks = ElasticCheckpoints(graph=elastic_graph())
    tasks.tell(t.StartJob())
    tasks.timer(tasks.has(2))
    tasks.now += 100.0
    tasks.has(4)
    assert tasks.status is JobStatus.RESTARTING
    tasks.stopped()
    tasks.report(list(tasks.tasks), RUNNING)
    first, second = tasks.scheduler.take_spans()
    assert (first.name, second.name) == ("JobInitialization", "Rescale")
    assert "to be scaled" in str(first.failure)
    assert first.end == second.begin


def test_take_over_span_ends_once_the_job_master_has_decided_which_tasks_continue() -> None:
    tasks = TakenOverJob(job(a=2, restart_strategy=RESTARTS))
    tasks.run()
    tasks.next_job_master()
    tasks.tell(t.AwaitReports())
    began = tasks.now
    tasks.take_over()
    (span,) = tasks.scheduler.take_spans()
    assert (span.name, span.begin, span.end) == ("TakeOver", EPOCH + began, EPOCH + tasks.now)
    assert "2 running" in str(span.attributes["summary"])
    assert span.failure is None
    tasks.report(list(tasks.tasks), RUNNING)
    tasks.tell(t.CancelJob())
    assert taken(tasks) == []


def test_take_over_without_recovery_notes_records_a_failed_span_and_a_new_start() -> None:
    tasks = TakenOverJob(job(a=2, restart_strategy=RESTARTS))
    tasks.run()
    tasks.next_job_master()
    tasks.notes = None
    tasks.tell(t.AwaitReports())
    tasks.take_over()
    tasks.confirm_cancellations()
    (take_over,) = tasks.scheduler.take_spans()
    assert (take_over.name, take_over.end) == ("TakeOver", EPOCH + tasks.now - 1)
    assert "begins from its last checkpoint" in str(take_over.failure)
    tasks.give()
    tasks.report(list(tasks.tasks), RUNNING)
    assert [name for name, *_ in taken(tasks)] == ["JobInitialization"]


def test_each_checkpoint_and_savepoint_is_recorded_as_a_span() -> None:
    tasks = CheckpointedJob()
    tasks.run()
    tasks.scheduler.take_spans()
    tasks.take()
    tasks.take(savepoint())
    tasks.trigger()
    tasks.decline(3, "b1", CheckpointFailureReason.CHECKPOINT_DECLINED)
    spans = tasks.scheduler.take_spans()
    assert [_told(span) for span in spans] == [
        (1, "Checkpoint", "COMPLETED"),
        (2, "Savepoint", "COMPLETED"),
        (3, "Checkpoint", "FAILED"),
    ]
    assert all(span.name == "Checkpoint" and span.end > span.begin > EPOCH for span in spans)
    assert spans[0].attributes["fullSize"]
    assert [span.failure is None for span in spans] == [True, True, False]


def test_span_of_a_checkpoint_lasts_from_its_trigger_to_its_end_in_seconds() -> None:
    over = CheckpointStatistics(7, CheckpointStatus.COMPLETED, False, 5000, 1.5, 2, 2)
    span = checkpoint_span(over)
    assert (span.begin, span.end) == (5.0, 6.5)


def _told(span: Span) -> tuple[object, ...]:
    names = ("checkpointId", "checkpointType", "checkpointStatus")
    return tuple(span.attributes[name] for name in names)


def test_number_of_unfetched_spans_is_bounded() -> None:
    book = SpanBook()
    for number in range(5000):
        book.add(Span("Checkpoint", 0.0, float(number), {}))
    spans = book.take()
    assert (len(spans), spans[-1].end) == (1000, 4999.0)
    assert book.take() == []
