"""JobScheduler: formats that are initialised and finalised once per job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import AttemptDisposedError
from flinkray.core.recurring_errors import ProgramError
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FixedDelayRestart,
    JobGraph,
    MasterFormat,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorFailure,
    CoordinatorID,
    CoordinatorKind,
    FinalizeFormat,
    FormatFailed,
    FormatFinalized,
    FormatInitialized,
    InitializeFormat,
)
from flinkray.scheduler.job.job_scheduler_actions import (
    AskCoordinator,
    JobEnded,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import SlotRequests
from tests.scheduler.builders import OTHER_GRAPH, one, only
from tests.scheduler.graphs import job, python_vertex, vertex_id
from tests.scheduler.tasks_under_test import TasksUnderTest

FORMATS = CoordinatorID(CoordinatorKind.MASTER_FORMATS, None, 0)
FORMAT = MasterFormat(b"format", finalizes=True)


def with_format(restarts: int = 5) -> JobGraph:
    vertices = (python_vertex("a", 2, master_format=FORMAT), python_vertex("b", 2))
    return job(vertices=vertices, restart_strategy=FixedDelayRestart(restarts))


def started() -> TasksUnderTest:
    tasks = TasksUnderTest(with_format())
    assert tasks.tell(t.StartJob()) == [StartCoordinator(FORMATS)]
    actions = tasks.tell(t.CoordinatorStarted(FORMATS))
    assert actions == [AskCoordinator(FORMATS, InitializeFormat(vertex_id("a"), FORMAT, 2))]
    tasks.tell(t.CoordinatorTold(FORMATS, FormatInitialized(vertex_id("a"))))
    tasks.give()
    return tasks


def test_job_is_scheduled_when_its_formats_are_initialised() -> None:
    tasks = TasksUnderTest(with_format())
    tasks.tell(t.StartJob())
    tasks.tell(t.CoordinatorStarted(FORMATS))
    assert tasks.status is JobStatus.CREATED
    initialized = FormatInitialized(vertex_id("a"))
    wanted = one(tasks.tell(t.CoordinatorTold(FORMATS, initialized)), SlotRequests)
    assert len(wanted.requests) == 2
    assert tasks.tell(t.CoordinatorTold(FORMATS, initialized)) == []


def test_failed_initialisation_fails_the_job_without_restart() -> None:
    """DI-07."""
    tasks = TasksUnderTest(with_format())
    tasks.tell(t.StartJob())
    tasks.tell(t.CoordinatorStarted(FORMATS))
    failed = FormatFailed(vertex_id("a"), 0, "no such file")
    actions = tasks.tell(t.CoordinatorTold(FORMATS, failed))
    assert one(actions, StopCoordinator).coordinator == FORMATS
    ended = one(actions, JobEnded)
    assert (ended.result.failure, ended.details.restarts) == ("no such file", 0)
    initialized = FormatInitialized(vertex_id("a"))
    assert tasks.tell(t.CoordinatorTold(FORMATS, initialized)) == []


def test_job_is_finished_when_its_formats_are_finalised_each_once() -> None:
    """EG-11."""
    tasks = started()
    actions = tasks.finish("a1 a2 b1 b2")
    finalize = AskCoordinator(FORMATS, FinalizeFormat(vertex_id("a"), FORMAT, 2, 1))
    assert only(actions, AskCoordinator) == [finalize]
    assert tasks.ended is None
    finalized = FormatFinalized(vertex_id("a"), 1)
    actions = tasks.tell(t.CoordinatorTold(FORMATS, finalized))
    assert one(actions, StopCoordinator).coordinator == FORMATS
    one(actions, JobEnded)
    assert tasks.tell(t.CoordinatorTold(FORMATS, finalized)) == []
    assert only(tasks.log, AskCoordinator).count(finalize) == 1


def test_job_is_finished_when_the_last_of_its_formats_is_finalised() -> None:
    """EG-11."""
    vertices = [python_vertex(name, 1, master_format=FORMAT) for name in "ab"]
    tasks = TasksUnderTest(job(vertices=vertices))
    tasks.tell(t.StartJob())
    tasks.tell(t.CoordinatorStarted(FORMATS))
    for name in "ab":
        tasks.tell(t.CoordinatorTold(FORMATS, FormatInitialized(vertex_id(name))))
    tasks.give()
    tasks.finish("a1 b1")
    assert tasks.tell(t.CoordinatorTold(FORMATS, FormatFinalized(vertex_id("a"), 1))) == []
    actions = tasks.tell(t.CoordinatorTold(FORMATS, FormatFinalized(vertex_id("b"), 1)))
    assert one(actions, JobEnded).result.status is JobStatus.FINISHED


def test_output_formats_of_a_failed_job_are_not_finalised() -> None:
    """EG-11."""
    tasks = started()
    tasks.finish("a1 a2 b1")
    tasks.fail("b2", suppress_restarts=True)
    assert tasks.status is JobStatus.FAILED
    asked = [action.request for action in only(tasks.log, AskCoordinator)]
    assert only(asked, FinalizeFormat) == []


def test_failed_finalisation_is_a_global_failure() -> None:
    """EG-11."""
    tasks = started()
    tasks.finish("a1 a2 b1 b2")
    failed = FormatFailed(vertex_id("a"), 1, "disk full")
    one(tasks.tell(t.CoordinatorTold(FORMATS, failed)), StartTimer)
    assert len(tasks.deployed(tasks.restart()).split()) == 4


def test_finalisation_is_repeated_in_another_process_after_a_failure() -> None:
    """The user's code may have left the first process in any state."""
    tasks = started()
    tasks.finish("a1 a2 b1 b2")
    failed = FormatFailed(vertex_id("a"), 1, "disk full")
    assert one(tasks.tell(t.CoordinatorTold(FORMATS, failed)), StopCoordinator)
    tasks.restart()
    assert only(tasks.finish("a1 a2 b1 b2"), StartCoordinator) == [], "it has not ended yet"
    again = one(tasks.tell(t.CoordinatorGone(FORMATS)), StartCoordinator).coordinator
    assert again == replace(FORMATS, attempt_number=1)
    asked = one(tasks.tell(t.CoordinatorStarted(again)), AskCoordinator).request
    assert asked == FinalizeFormat(vertex_id("a"), FORMAT, 2, 2)


def test_death_of_the_format_process_fails_the_job_only_while_a_format_works() -> None:
    tasks = started()
    assert tasks.tell(t.CoordinatorGone(FORMATS, "killed")) == []
    again = one(tasks.finish("a1 a2 b1 b2"), StartCoordinator).coordinator
    tasks.tell(t.CoordinatorStarted(again))
    one(tasks.tell(t.CoordinatorGone(again, "killed")), StartTimer)
    text = "the process of the job's formats died: killed"
    assert tasks.scheduler.exceptions()[-1].text == text


def test_past_or_unknown_attempt_is_not_current() -> None:
    tasks = started()
    current = tasks.attempt("a1")
    for other in (replace(current, graph_id=OTHER_GRAPH), replace(current, attempt_number=1)):
        with pytest.raises(AttemptDisposedError):
            tasks.scheduler.check_current(other)
    tasks.scheduler.check_current(current)
    tasks.finish("a1")
    with pytest.raises(AttemptDisposedError):
        tasks.scheduler.check_current(current)


def test_process_lost_during_format_initialization_is_replaced() -> None:
    """Otherwise the job fails although nothing ran yet (seed 2 of the whole cluster)."""
    tasks = TasksUnderTest(with_format())
    tasks.tell(t.StartJob())
    for number in range(7):
        formats = replace(FORMATS, attempt_number=number)
        tasks.tell(t.CoordinatorStarted(formats))
        after = replace(FORMATS, attempt_number=number + 1)
        actions = tasks.tell(t.CoordinatorGone(formats, "killed"))
        if number:
            pause = one(actions, StartTimer)
            assert actions == [pause]
            assert pause.delay == 2.0 ** (number - 2), "what lasts for a moment meets one of them"
            actions = tasks.tell(pause.event)
            assert tasks.tell(pause.event) == []
        assert actions == [StartCoordinator(after)]
    asked = tasks.tell(t.CoordinatorStarted(after))
    assert asked == [AskCoordinator(after, InitializeFormat(vertex_id("a"), FORMAT, 2))]

    tasks.tell(t.CoordinatorGone(after, "killed"))

    assert tasks.scheduler.status is JobStatus.FAILED


def test_cancelled_job_starts_no_process_for_a_pending_format_initialization() -> None:
    tasks = TasksUnderTest(with_format())
    tasks.tell(t.StartJob())
    tasks.tell(t.CoordinatorGone(FORMATS, "killed"))
    again = replace(FORMATS, attempt_number=1)
    pause = one(tasks.tell(t.CoordinatorGone(again, "killed")), StartTimer)
    tasks.tell(t.CancelJob())
    assert tasks.scheduler.status is JobStatus.CANCELED
    assert tasks.tell(pause.event) == []


def test_unreachable_formats_coordinator_is_replaced_by_a_new_attempt() -> None:
    tasks = TasksUnderTest(with_format())
    tasks.tell(t.StartJob())
    tasks.tell(t.CoordinatorStarted(FORMATS))
    unreachable = CoordinatorFailure("RpcConnectionError", "the connection was reset")
    assert tasks.tell(t.CoordinatorTold(FORMATS, unreachable)) == [StopCoordinator(FORMATS)]
    after = replace(FORMATS, attempt_number=1)
    assert tasks.tell(t.CoordinatorGone(FORMATS)) == [StartCoordinator(after)]


def test_error_of_the_formats_counts_once_per_attempt() -> None:
    """Both formats fail alike in each attempt."""
    made = MasterFormat(b"format", finalizes=True)
    vertices = [python_vertex(name, 1, master_format=made) for name in "ab"]
    strategy = ExponentialDelayRestart(0.1, jitter_factor=0.0)
    tasks = TasksUnderTest(job(vertices=vertices, restart_strategy=strategy))
    tasks.tell(t.StartJob())
    tasks.tell(t.CoordinatorStarted(FORMATS))
    for name in "ab":
        tasks.tell(t.CoordinatorTold(FORMATS, FormatInitialized(vertex_id(name))))
    tasks.give()
    for number in range(3):
        formats = replace(FORMATS, attempt_number=number)
        tasks.finish("a1 b1")
        if number:
            tasks.tell(t.CoordinatorStarted(formats))
        assert tasks.status is JobStatus.RUNNING
        for name in "abab":
            error = ProgramError("KeyError at a.py:1: 'x'")
            failed = FormatFailed(vertex_id(name), number + 1, "no", program_error=error)
            tasks.tell(t.CoordinatorTold(formats, failed))
        tasks.tell(t.CoordinatorGone(formats))
        if number < 2:
            assert (tasks.status, tasks.scheduler.restarts) == (JobStatus.RESTARTING, number + 1)
            tasks.restart()
    assert tasks.ended is not None
    assert "3 attempts have ended with this error" in str(tasks.ended.result.failure)
