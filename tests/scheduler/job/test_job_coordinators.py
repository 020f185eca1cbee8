"""JobScheduler: the coordinator of a stream job's sources, and what its failures lead to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.recurring_errors import ProgramError
from flinkray.rpc.wire import codec
from flinkray.scheduler.graph.job_graph import (
    STREAM,
    ExponentialDelayRestart,
    FixedDelayRestart,
    Invokable,
    RestartStrategy,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorFailure,
    CoordinatorID,
    CoordinatorKind,
)
from flinkray.scheduler.job.coordinator_kinds import SourceEnumerators
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import JobEnded, StartCoordinator, StopCoordinator
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from flinkray.scheduler.slots.slot_requests import SlotsLost
from tests.scheduler.builders import one, only
from tests.scheduler.graphs import job, python_vertex
from tests.scheduler.tasks_under_test import TasksUnderTest

FAILURE = CoordinatorFailure("OperatorError", "no such topic", "Traceback ...", is_user_error=True)
FOR_EVER = ExponentialDelayRestart(initial_backoff=0.1, jitter_factor=0.0)


def enumerators(number: int = 0) -> CoordinatorID:
    return CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, number)


def streams(restarts: int = 5, strategy: RestartStrategy | None = None) -> TasksUnderTest:
    """A source of two subtasks and tasks that read it, all in one region."""
    source = replace(python_vertex("s", 2), invokable=Invokable(STREAM, b""))
    graph = job(
        vertices=(source, python_vertex("b", 1)),
        edges=["s -> b"],
        restart_strategy=strategy or FixedDelayRestart(restarts, 1.0),
    )
    return TasksUnderTest(graph)


def test_source_coordinator_is_started_with_the_job_and_stopped_at_its_end() -> None:
    tasks = streams()
    assert one(tasks.tell(t.StartJob()), StartCoordinator) == StartCoordinator(enumerators())
    tasks.tell(t.CoordinatorStarted(enumerators()))
    tasks.give()
    actions = tasks.finish("s1 s2 b1")
    assert one(actions, StopCoordinator) == StopCoordinator(enumerators())
    assert one(actions, JobEnded).result.status is JobStatus.FINISHED
    assert actions[-1] == one(actions, JobEnded)


def test_job_without_stream_sources_has_no_source_coordinator() -> None:
    assert only(TasksUnderTest(job(a=1)).tell(t.StartJob()), StartCoordinator) == []


def test_loss_of_the_source_coordinator_restarts_the_job_with_a_new_coordinator() -> None:
    tasks = streams().run()
    tasks.tell(t.CoordinatorStarted(enumerators()))
    actions = tasks.tell(t.CoordinatorGone(enumerators(), "killed"))
    assert sorted(tasks.cancelled(actions).split()) == ["b1#0", "s1#0", "s2#0"]
    assert only(actions, StartCoordinator) == [], "not before the delay of the restart"
    text = "the coordinator of the job's sources died: killed"
    assert tasks.scheduler.exceptions()[-1].text == text
    tasks.confirm_cancellations()
    actions = tasks.tell(one(actions, StartTimer).event)
    assert one(actions, StartCoordinator) == StartCoordinator(enumerators(1))
    assert sorted(tasks.deployed(tasks.give()).split()) == ["b1#1", "s1#1", "s2#1"]


def test_failed_source_coordinator_is_replaced_only_once_it_has_ended() -> None:
    tasks = streams().run()
    tasks.tell(t.CoordinatorStarted(enumerators()))
    actions = tasks.tell(t.CoordinatorTold(enumerators(), FAILURE))
    assert one(actions, StopCoordinator) == StopCoordinator(enumerators())
    entry = tasks.scheduler.exceptions()[-1]
    assert (entry.text, entry.traceback) == ("no such topic", "Traceback ...")
    tasks.confirm_cancellations()
    actions = tasks.tell(one(actions, StartTimer).event)
    assert only(actions, StartCoordinator) == [], "the one before is there yet"
    actions = tasks.tell(t.CoordinatorGone(enumerators()))
    assert one(actions, StartCoordinator) == StartCoordinator(enumerators(1))


def test_replacement_of_an_ended_source_coordinator_starts_only_with_the_job_restart() -> None:
    tasks = streams().run()
    for number in range(2):
        tasks.tell(t.CoordinatorStarted(enumerators(number)))
        actions = tasks.tell(t.CoordinatorTold(enumerators(number), FAILURE))
        assert tasks.tell(t.CoordinatorGone(enumerators(number))) == []
        tasks.confirm_cancellations()
        actions = tasks.tell(one(actions, StartTimer).event)
        assert one(actions, StartCoordinator) == StartCoordinator(enumerators(number + 1))
        tasks.give()


def test_source_coordinator_that_fails_again_before_the_job_runs_is_not_replaced() -> None:
    tasks = streams().run()
    tasks.tell(t.CoordinatorStarted(enumerators()))
    actions = tasks.tell(t.CoordinatorTold(enumerators(), FAILURE))
    tasks.confirm_cancellations()
    tasks.tell(one(actions, StartTimer).event)
    tasks.tell(t.CoordinatorGone(enumerators()))
    tasks.give()
    tasks.tell(t.CoordinatorStarted(enumerators(1)))
    tasks.tell(t.CoordinatorTold(enumerators(1), FAILURE))
    assert tasks.tell(t.CoordinatorGone(enumerators(1))) == [], "the job does not run yet"


def test_source_coordinator_is_not_replaced_if_the_job_is_cancelled_before_it_ends() -> None:
    tasks = streams().run()
    tasks.tell(t.CoordinatorStarted(enumerators()))
    actions = tasks.tell(t.CoordinatorTold(enumerators(), FAILURE))
    tasks.confirm_cancellations()
    tasks.tell(one(actions, StartTimer).event)
    tasks.tell(t.CancelJob())
    tasks.confirm_cancellations()
    assert tasks.tell(t.CoordinatorGone(enumerators())) == []
    assert tasks.status is JobStatus.CANCELED


def test_coordinator_id_text_has_kind_vertex_and_attempt() -> None:
    of_job, vertex_id = enumerators(2), python_vertex("s").vertex_id
    assert str(of_job) == "source-enumerators #2"
    of_vertex = CoordinatorID(CoordinatorKind.SPARK_DRIVER, vertex_id, 0)
    assert str(of_vertex) == f"spark-driver of {vertex_id.short()} #0"


def test_coordinator_that_fails_for_ever_fails_the_job_when_no_restart_is_left() -> None:
    """Otherwise the coordinator and the job would be started again every half second."""
    tasks = streams(restarts=1).run()
    for number in range(2):
        tasks.tell(t.CoordinatorStarted(enumerators(number)))
        actions = tasks.tell(t.CoordinatorGone(enumerators(number), "cannot start"))
        tasks.confirm_cancellations()
        if only(actions, StartTimer):
            tasks.tell(one(actions, StartTimer).event)
            tasks.give()
    assert tasks.ended is not None
    assert tasks.ended.result.status is JobStatus.FAILED
    assert len(only(tasks.log, StartCoordinator)) == 2


def test_error_of_the_source_coordinator_counts_once_per_attempt() -> None:
    tasks = streams(strategy=FOR_EVER).run()
    failure = replace(FAILURE, program_error=ProgramError("KeyError at a.py:1: 'x'"))
    for number in range(2):
        for _ in range(3):
            tasks.tell(t.CoordinatorTold(enumerators(number), failure))
        assert tasks.status is JobStatus.RESTARTING
        tasks.tell(t.CoordinatorGone(enumerators(number)))
        tasks.restart()
        tasks.tell(t.CoordinatorTold(enumerators(number), failure))
        assert (tasks.status, tasks.scheduler.restarts) == (JobStatus.RUNNING, number + 1)
    tasks.tell(t.CoordinatorTold(enumerators(2), failure))
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    assert "3 attempts have ended with this error" in str(tasks.ended.result.failure)


def test_no_task_is_deployed_before_the_source_coordinator_started() -> None:
    tasks = streams()
    tasks.sources_start = False
    tasks.tell(t.StartJob())
    assert tasks.deployed(tasks.give()) == ""
    actions = tasks.tell(t.CoordinatorStarted(enumerators()))
    assert sorted(tasks.deployed(actions).split()) == ["b1#0", "s1#0", "s2#0"]


def test_slot_lost_while_the_source_coordinator_starts_is_requested_again() -> None:
    tasks = streams()
    tasks.sources_start = False
    tasks.tell(t.StartJob())
    tasks.give()
    lost = next(iter(tasks.reserved))
    tasks.tell(t.SlotsTold((SlotsLost((lost,), "killed"),)))
    assert tasks.deployed(tasks.tell(t.CoordinatorStarted(enumerators()))) == ""
    assert sorted(tasks.deployed(tasks.give()).split()) == ["b1#0", "s1#0", "s2#0"]


def test_job_cancelled_while_the_source_coordinator_starts_deploys_no_task() -> None:
    tasks = streams()
    tasks.sources_start = False
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.tell(t.CancelJob())
    assert tasks.deployed(tasks.tell(t.CoordinatorStarted(enumerators()))) == ""
    assert tasks.reserved == {}
    assert tasks.status is JobStatus.CANCELED


def test_task_failure_does_not_restart_the_source_coordinator() -> None:
    tasks = streams().run()
    tasks.tell(t.CoordinatorStarted(enumerators()))
    tasks.fail("b1")
    assert only(tasks.restart(), StartCoordinator) == []
    assert only(tasks.log, StopCoordinator) == []


@pytest.mark.parametrize("order", [t.CancelJob(), t.SuspendJob("why")])
def test_loss_of_the_source_coordinator_while_the_job_is_ending_changes_nothing(
    order: JobEvent,
) -> None:
    tasks = streams().run()
    tasks.tell(order)
    assert tasks.tell(t.CoordinatorGone(enumerators(), "killed")) == []
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    assert tasks.ended.result.failure is None


def test_events_of_an_earlier_coordinator_attempt_change_nothing() -> None:
    """EX-11."""
    tasks = streams().run()
    actions = tasks.tell(t.CoordinatorGone(enumerators(), "killed"))
    tasks.confirm_cancellations()
    tasks.tell(one(actions, StartTimer).event)
    before = tasks.scheduler.details()
    assert tasks.tell(t.CoordinatorStarted(enumerators())) == []
    assert tasks.tell(t.CoordinatorGone(enumerators())) == []
    assert tasks.tell(t.CoordinatorGone(enumerators(), "late")) == []
    assert tasks.tell(t.CoordinatorTold(enumerators(), FAILURE)) == []
    assert tasks.scheduler.details() == before


def test_starting_a_coordinator_twice_raises_an_error_with_its_past_transitions() -> None:
    coordinator = SourceEnumerators(job(a=1), JobRecord(job(a=1), 0.0, 0.0))
    coordinator.start(1.0)
    with pytest.raises(IllegalTransitionError) as caught:
        coordinator.start(2.0)
    assert "1.000 s: attempt 0: none -> starting" in str(caught.value)


def test_source_coordinator_that_is_no_longer_needed_is_not_replaced_when_it_ends() -> None:
    coordinator = SourceEnumerators(job(a=1), JobRecord(job(a=1), 0.0, 0.0))
    coordinator.ensure(1.0)
    coordinator.stop(2.0)
    coordinator.ensure(3.0)
    assert coordinator.give_up(4.0) == ()
    assert coordinator.gone("it ended", 5.0) == ()


def test_coordinator_failure_with_any_text_survives_encoding() -> None:
    failure = CoordinatorFailure("E", "half \udc80", "x" * 100_000)
    assert failure.text == "half \\udc80"
    assert len(failure.traceback) < 20_000
    assert codec.decode(codec.encode(failure)) == failure
