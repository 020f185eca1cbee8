"""JobScheduler: what restarts when a task of a job of many vertices fails, and from what state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import ResourceID, ResultPartitionID
from flinkray.core.recurring_errors import ProgramError
from flinkray.rpc.wire import codec
from flinkray.scheduler.execution.pending_restarts import PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import ExponentialDelayRestart, FixedDelayRestart
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import JobEnded, JobRestarts
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.job.result_partitions import PartitionTracker
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import GRAPH, one, only
from tests.scheduler.graphs import data_set_id, execution_graph, job
from tests.scheduler.tasks_under_test import (
    RESTARTS,
    TasksUnderTest,
    stream,
)

TE0 = ResourceID("te0")


# --- failures -------------------------------------------------------------------------------------


def test_task_failure_restarts_only_its_region() -> None:
    """FO-03."""
    tasks = stream(a=3, b=3, edges=["a --> b"]).run()
    actions = tasks.fail("b2", "out of luck")
    assert tasks.cancelled(actions) == "a2#0"
    assert tasks.status is JobStatus.RESTARTING
    assert tasks.deployed(tasks.restart()) == "a2#1 b2#1"
    details = tasks.scheduler.details()
    assert details.status is JobStatus.RUNNING
    assert tasks.states().count("RUNNING#0") == 4
    entry = details.exceptions[0]
    assert (entry.text, entry.task) == ("out of luck", "b (2/3)")


def test_job_is_restarting_as_long_as_one_of_its_regions_waits_to_restart() -> None:
    """EX-17."""
    tasks = stream(a=2).run()
    tasks.fail("a1")
    tasks.fail("a2")
    first, second = only(tasks.log, StartTimer)
    tasks.tell(first.event)
    assert tasks.status is JobStatus.RESTARTING
    tasks.tell(second.event)
    details = tasks.scheduler.details()
    assert (details.status, details.restarts) == (JobStatus.RUNNING, 2)


def test_loss_of_a_task_executor_is_one_failure_with_its_other_tasks_as_concurrent() -> None:
    """JM-04."""
    tasks = TasksUnderTest(job(a=4, restart_strategy=FixedDelayRestart(1)), slots_each=2).run()
    tasks.lose_task_executor("te0")
    details = tasks.scheduler.details()
    assert (details.status, details.restarts) == (JobStatus.RESTARTING, 1)
    (entry,) = details.exceptions
    assert entry.text == "a (1/4) lost its slot: killed"
    assert [e.task for e in entry.concurrent] == ["a (2/4)"]
    assert tasks.deployed(tasks.restart()) == "a1#1 a2#1"


def test_failure_during_the_restart_delay_counts_to_the_same_restart() -> None:
    """FO-10."""
    strategy = ExponentialDelayRestart(initial_backoff=5.0, jitter_factor=0.0, attempts=1)
    tasks = TasksUnderTest(job(a=2, restart_strategy=strategy)).run()
    assert one(tasks.fail("a1", "first"), StartTimer).delay == 5.0
    assert one(tasks.fail("a2", "second"), StartTimer).delay == 4.0
    details = tasks.scheduler.details()
    assert (details.status, details.restarts) == (JobStatus.RESTARTING, 1)
    assert [e.text for e in details.exceptions] == ["first"]
    assert [e.text for e in details.exceptions[0].concurrent] == ["second"]


def test_jitter_of_the_restart_delay_comes_from_the_given_random_function() -> None:
    """FO-11."""
    strategy = ExponentialDelayRestart(initial_backoff=10.0, jitter_factor=0.5)
    tasks = TasksUnderTest(job(a=1, restart_strategy=strategy), random=lambda: 0.0).run()
    assert one(tasks.fail("a1"), StartTimer).delay == 5.0


def test_failure_of_a_task_that_is_cancelled_for_a_restart_is_listed_as_concurrent() -> None:
    """EX-05."""
    tasks = stream(a=1, b=1, edges=["a -> b"]).run()
    tasks.fail("a1", "first")
    tasks.fail("b1", "connection to a1 lost")
    (entry,) = tasks.scheduler.details().exceptions
    assert [e.text for e in entry.concurrent] == ["connection to a1 lost"]
    assert tasks.scheduler.details().restarts == 1


def test_exception_history_and_concurrent_failures_are_bounded() -> None:
    tasks = stream(restarts=100, a=40).run()
    for _ in range(20):
        tasks.report([tasks.attempt(f"a{i + 1}") for i in range(40)], ExecutionState.FAILED, "x")
        tasks.restart()
    exceptions = tasks.scheduler.details().exceptions
    assert len(exceptions) == 16
    assert {len(entry.concurrent) for entry in exceptions} == {16}


def test_partition_that_a_reader_cannot_read_restarts_its_producer() -> None:
    """FO-04."""
    tasks = stream(a=2, b=2, edges=["a => b"]).run()
    tasks.finish("a1 a2")
    tasks.give()
    missing = ResultPartitionID(GRAPH, data_set_id(1), 0, 0)
    actions = tasks.fail("b1", "not found", missing_partitions=(missing,))
    assert tasks.cancelled(actions) == "b2#0"
    assert tasks.released(actions) == ["1.0#0 on te0"], "perhaps only the connection has failed"
    assert tasks.deployed(tasks.restart()) == "a1#1"
    assert tasks.states() == "a1:DEPLOYING#1 a2:FINISHED#0 b1:CREATED#1 b2:CREATED#1"
    tasks.finish("a1")
    assert tasks.deployed(tasks.give()) == "b1#1 b2#1"


def test_partition_of_an_old_attempt_that_cannot_be_read_restarts_only_its_reader() -> None:
    """FO-04."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.fail("b1", missing_partitions=(ResultPartitionID(GRAPH, data_set_id(1), 0, 7),))
    assert tasks.deployed(tasks.restart()) == "b1#1"


def test_results_lost_with_a_task_executor_are_reproduced_although_nobody_read_them() -> None:
    """FO-05."""
    tasks = stream(restarts=1, a=2, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    actions = tasks.lose_task_executor("te0")
    assert one(actions, StartTimer).delay == 1.0
    text = tasks.scheduler.details().exceptions[0].text
    assert text == "the results of a (1/2) were lost: killed"
    tasks.finish("a2")
    assert tasks.wanted == {}, "the reader does not begin before its input is there again"
    assert tasks.deployed(tasks.restart()) == "a1#1"
    tasks.finish("a1")
    assert tasks.deployed(tasks.give()) == "b1#0"


def test_task_executor_with_tasks_and_results_is_lost_as_one_failure() -> None:
    """FO-05."""
    tasks = TasksUnderTest(
        job(a=2, b=1, edges=["a => b"], restart_strategy=FixedDelayRestart(1)), slots_each=2
    ).run()
    tasks.finish("a1")
    tasks.lose_task_executor("te0")
    details = tasks.scheduler.details()
    assert (details.restarts, len(details.exceptions)) == (1, 1)
    assert sorted(tasks.deployed(tasks.restart()).split()) == ["a1#1", "a2#1"]


def test_partitions_reported_missing_together_are_produced_again_together() -> None:
    """FO-04."""
    tasks = stream(restarts=1, a=3, b=1, edges=["a => b"]).run()
    tasks.finish("a1 a2 a3")
    tasks.give()
    missing = tuple(ResultPartitionID(GRAPH, data_set_id(1), index, 0) for index in (0, 2))
    tasks.fail("b1", "not found", missing_partitions=missing)
    assert tasks.deployed(tasks.restart()) == "a1#1 a3#1"


def test_loss_of_unneeded_results_causes_no_restart() -> None:
    tasks = stream(a=1, b=1, c=1, edges=["a => b", "b => c"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.finish("b1")
    tasks.give()
    assert tasks.lose_task_executor("te0") == []


def test_late_events_of_old_task_attempts_are_ignored() -> None:
    """EX-11."""
    tasks = stream(a=2, b=2, edges=["a -> b"]).run()
    old = [tasks.attempt(name) for name in ("a1", "b2")]
    tasks.fail("a1")
    tasks.restart()
    before = tasks.scheduler.details()
    assert tasks.report(old, ExecutionState.FAILED, "late") == []
    assert tasks.tell(t.DeploymentsFailed(TE0, tuple(old), "late")) == []
    assert tasks.tell(t.CancellationsFailed((old[0],), "late")) == []
    assert tasks.scheduler.details() == before


def test_restart_timer_of_an_earlier_failure_does_nothing_after_a_later_failure() -> None:
    """EX-15."""
    tasks = stream(a=2).run()
    first = one(tasks.fail("a1"), StartTimer)
    second = one(tasks.tell(t.GlobalFailure(Failure("all"))), StartTimer)
    tasks.confirm_cancellations()
    assert tasks.tell(first.event) == []
    actions = tasks.tell(second.event)
    assert tasks.deployed(actions + tasks.give()) == "a1#1 a2#1"


def test_global_failure_restarts_every_task_that_was_started() -> None:
    """FO-06."""
    tasks = stream(a=1, b=1, c=1, edges=["a => b", "b => c"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.tell(t.GlobalFailure(Failure("all")))
    assert tasks.deployed(tasks.restart()) == "a1#1"
    assert tasks.states() == "a1:DEPLOYING#1 b1:CREATED#1 c1:CREATED#0"


def test_global_failure_whose_cause_suppresses_restarts_fails_the_job() -> None:
    """FO-15."""
    tasks = stream(a=1, b=1, edges=["a -> b"]).run()
    wrapped = Failure("outer", cause=Failure("inner", suppress_restarts=True))
    tasks.tell(t.GlobalFailure(wrapped))
    assert tasks.status is JobStatus.FAILING
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    assert (tasks.ended.result.failure, tasks.ended.details.restarts) == ("outer", 0)


def test_task_failure_that_suppresses_restarts_fails_the_job_at_once() -> None:
    """FO-15."""
    tasks = stream(a=1).run()
    assert one(tasks.fail("a1", suppress_restarts=True), JobEnded).result.failure == "it broke"


def test_restart_all_option_restarts_all_tasks_after_one_task_failure() -> None:
    """FO-07."""
    graph = replace(job(a=3, restart_strategy=RESTARTS), restart_all=True)
    tasks = TasksUnderTest(graph).run()
    assert tasks.cancelled(tasks.fail("a1")) == "a2#0 a3#0"


def test_job_without_a_restart_strategy_restarts_only_the_failed_region() -> None:
    """FO-07, FO-14."""
    tasks = TasksUnderTest(job(a=2, restart_strategy=None)).run()
    assert tasks.cancelled(tasks.fail("a1")) == ""
    assert tasks.deployed(tasks.restart()) == "a1#1"


def test_failed_deployment_without_restarts_fails_the_job_with_the_deployment_error() -> None:
    """EX-02."""
    tasks = stream(restarts=0, a=1)
    tasks.tell(t.StartJob())
    tasks.give()
    ended = one(tasks.tell(t.DeploymentsFailed(TE0, (tasks.attempt("a1"),), "refused")), JobEnded)
    assert ended.result.failure == "a (1/1) could not be deployed: refused"


def test_archived_job_has_the_states_and_the_failure_of_every_attempt() -> None:
    """EX-01, DI-08."""
    tasks = stream(a=1).run()
    tasks.fail("a1", "first")
    tasks.restart()
    ended = one(tasks.finish("a1"), JobEnded)
    assert codec.decode(codec.encode(ended.details)) == ended.details
    (vertex,) = ended.details.vertices
    (execution,), (prior,) = vertex.executions, vertex.prior_executions
    assert (execution.attempt_number, execution.failure) == (1, None)
    assert (prior.attempt_number, prior.failure, prior.state.name) == (0, "first", "FAILED")
    assert list(prior.state_timestamps) == [
        "CREATED",
        "SCHEDULED",
        "DEPLOYING",
        "RUNNING",
        "FAILED",
    ]
    assert list(execution.state_timestamps)[-1] == "FINISHED"
    assert '"description":"a"' in ended.details.plan


def test_ending_a_region_twice_raises_an_error() -> None:
    graph = execution_graph(a=1)
    record = JobRecord(graph.job_graph, 0.0, 0.0)
    regions, outbox = PipelinedRegions(graph), Outbox()
    outbox.open(graph, record)
    slots, tracker = RegionSlots(graph, regions), PartitionTracker(graph, regions)
    execution = JobExecution(graph, regions, record, PendingRestarts(), slots, tracker, outbox)
    with pytest.raises(IllegalTransitionError, match="region 0 has ended twice"):
        execution.coordinator_ended(t.CoordinatorEnded(0, ()), 1.0)


PROGRAM_ERROR = ProgramError("KeyError at a.py:1: 'x'")
FOR_EVER = ExponentialDelayRestart(initial_backoff=0.1, jitter_factor=0.0)


def test_program_error_repeated_after_every_restart_fails_the_job() -> None:
    tasks = TasksUnderTest(job(a=1, b=1, restart_strategy=FOR_EVER)).run()
    for _ in range(2):
        tasks.fail("a1", program_error=PROGRAM_ERROR)
        assert tasks.status is JobStatus.RESTARTING
        tasks.restart()
    tasks.fail("a1", "KeyError: 'x'", program_error=PROGRAM_ERROR)
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    failure = tasks.ended.result.failure
    assert failure is not None
    assert failure.startswith("KeyError: 'x'\nThe job is not restarted any more: 3 attempts")


def test_repeated_error_about_a_file_fails_the_job_only_after_a_minimum_time() -> None:
    tasks = TasksUnderTest(job(a=1, restart_strategy=FOR_EVER)).run()
    missing = ProgramError("FileNotFoundError at a.py:1: 'x'", may_pass=True)
    begun, attempts = tasks.now, 0
    while tasks.ended is None:
        tasks.fail("a1", program_error=missing)
        attempts += 1
        if tasks.ended is None:
            tasks.restart()
            tasks.now += 2.0
    assert attempts > 3
    assert 30.0 <= tasks.now - begun < 40.0
    failure = tasks.ended.result.failure
    assert f"{attempts} attempts have ended with this error" in str(failure)


def test_failures_that_are_not_program_errors_are_restarted_without_limit() -> None:
    tasks = TasksUnderTest(job(a=1, restart_strategy=FOR_EVER)).run()
    for _ in range(9):
        tasks.fail("a1")
        tasks.restart()
    assert tasks.scheduler.restarts == 9


def test_bounded_restart_strategy_is_not_cut_short_by_repeated_program_errors() -> None:
    tasks = stream(restarts=5, a=1).run()
    for _ in range(5):
        tasks.fail("a1", program_error=PROGRAM_ERROR)
        tasks.restart()
    assert one(tasks.fail("a1", program_error=PROGRAM_ERROR), JobEnded).result.failure == "it broke"


def test_each_restart_is_reported_with_number_task_and_cause() -> None:
    tasks = TasksUnderTest(job(a=2, restart_strategy=FOR_EVER)).run()
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1'
    tasks.fail("a2", f"{traceback}\nin operator 'a'")
    tasks.restart()
    tasks.fail("a1", "no connection")
    told = [action for action in tasks.log if isinstance(action, JobRestarts)]
    assert [(each.number, each.cause) for each in told] == [
        (1, "a (2/2): KeyError: 1; in operator 'a'"),
        (2, "a (1/2): no connection"),
    ]
    assert tasks.scheduler.progress().restart_causes == tuple(each.cause for each in told)
