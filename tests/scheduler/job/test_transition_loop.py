"""TransitionLoop: in which order transitions are applied, and what is told of them."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.job.job_scheduler_actions import JobSchedulerAction, JobStatusChanged
from flinkray.scheduler.job.transition_loop import Step, Steps, TransitionLoop
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import Phase, Transition
from tests.scheduler.tasks_under_test import stream


@dataclass(frozen=True, slots=True)
class Said(Transition):
    word: str


@dataclass(frozen=True, slots=True)
class SaidLater(Transition):
    word: str
    phase = Phase.FAILOVER


@dataclass(frozen=True, slots=True)
class SaidLast(Transition):
    word: str
    phase = Phase.END


@dataclass(frozen=True, slots=True)
class Event(Transition):
    pass


class Scene:
    """``follows`` says what follows from a word."""

    def __init__(self, **follows: Steps) -> None:
        self.follows = follows
        self.heard: list[str] = []
        self.actions: list[JobSchedulerAction] = []
        self.loop = TransitionLoop("the job", self.actions.append, kept=5)
        self.loop.wire(Said, self.hear)
        self.loop.wire(SaidLater, self.hear)
        self.loop.wire(SaidLast, self.hear)

    def hear(self, said: Said | SaidLater | SaidLast, now: float) -> Steps:
        self.heard.append(said.word)
        return self.follows.get(said.word, ())

    def run(self, *steps: Step) -> str:
        """An event that leads to these steps."""
        self.loop.wire(Event, lambda event, now: steps)
        self.loop.run(Event(), 1.0)
        return " ".join(self.heard)


def test_transitions_caused_by_a_transition_run_before_the_next_queued_transition() -> None:
    scene = Scene(a=(Said("a1"), Said("a2")), a1=(Said("a11"),))
    assert scene.run(Said("a"), Said("b")) == "a a1 a11 a2 b"


def test_transitions_of_later_phases_run_after_all_transitions_of_earlier_phases() -> None:
    scene = Scene(a=(SaidLast("end"), SaidLater("failover")), failover=(Said("c"), Said("d")))
    assert scene.run(Said("a"), Said("b")) == "a b failover c d end"


def test_waiting_transitions_run_in_order_each_followed_by_the_transitions_it_causes() -> None:
    scene = Scene(first=(Said("changes"), SaidLater("third")))
    assert scene.run(SaidLater("first"), SaidLater("second")) == "first changes second third"


def test_actions_are_emitted_in_the_order_in_which_they_were_decided() -> None:
    running, failing = JobStatusChanged(JobStatus.RUNNING), JobStatusChanged(JobStatus.FAILING)
    scene = Scene(a=(Said("b"), failing), b=(running,))
    scene.run(Said("a"))
    assert scene.actions == [running, failing]


def test_all_handlers_of_a_transition_run_before_the_transitions_it_causes() -> None:
    scene = Scene(a=(Said("b"),))
    heard = scene.heard

    def hear_too(said: Said, now: float) -> Steps:
        heard.append(f"{said.word}!")
        return ()

    scene.loop.wire(Said, scene.hear, hear_too)
    assert scene.run(Said("a")) == "a a! b b!"


def test_transcript_shows_the_event_and_the_depth_of_each_transition() -> None:
    scene = Scene(a=(Said("b"), SaidLater("c")), c=(Said("d"),))
    scene.run(Said("a"))
    assert [(one.depth, str(one.transition)) for one in scene.loop.transcript] == [
        (0, "Event()"),
        (1, "Said(a)"),
        (2, "Said(b)"),
        (2, "SaidLater(c)"),
        (3, "Said(d)"),
    ]
    assert str(scene.loop.transcript[4]) == "1.000 s: Event:       Said(d)"


def test_transcript_keeps_the_latest_transitions() -> None:
    scene = Scene()
    scene.run(*(Said(word) for word in "abcdefg"))
    assert [str(one.transition) for one in scene.loop.transcript] == [
        f"Said({word})" for word in "cdefg"
    ]


@dataclass(frozen=True, slots=True)
class SaidOfMany(Transition):
    many: tuple[object, ...]


class Thing:
    def __str__(self) -> str:
        return "thing"


@pytest.mark.parametrize("number", [100, 10_000])
def test_transcript_has_only_the_text_of_a_bulk_transition_once_its_event_is_over(
    number: int,
) -> None:
    """Otherwise the reports of all tasks of a large job stay in memory."""
    scene = Scene()
    first = Thing()
    is_gone = weakref.ref(first)
    told: list[str] = []

    def tell(said: SaidOfMany, now: float) -> Steps:
        told.append(scene.loop.story())
        return ()

    scene.loop.wire(SaidOfMany, tell)
    scene.loop.run(SaidOfMany((first, *(Thing() for _ in range(number - 1)))), 1.0)
    del first
    gc.collect()
    assert is_gone() is None
    assert told == [scene.loop.story()]
    assert f"SaidOfMany([thing, thing, thing and {number - 3} more])" in told[0]


def test_transcript_names_three_items_of_a_bulk_transition_and_counts_the_rest() -> None:
    told = [str(SaidOfMany((Thing(),) * number)) for number in (1, 3, 4)]
    assert told == [
        "SaidOfMany([thing])",
        "SaidOfMany([thing, thing, thing])",
        "SaidOfMany([thing, thing, thing and 1 more])",
    ]


def test_illegal_transition_raises_an_error_with_the_transcript_and_runs_no_more() -> None:
    scene = Scene()

    def refuse(said: Said, now: float) -> Steps:
        raise IllegalTransitionError(f"{said.word} is illegal")

    scene.loop.wire(Said, refuse)
    with pytest.raises(IllegalTransitionError) as caught:
        scene.run(SaidLater("later"), Said("that"), Said("not reached"))
    text = str(caught.value)
    assert "the job cannot work on Event: that is illegal" in text
    assert "1.000 s: Event:   Said(that)" in text
    assert scene.heard == []
    assert scene.run(SaidLast("next")) == "next"


def test_running_an_event_inside_another_event_raises_an_error() -> None:
    scene = Scene()

    def tell(said: Said, now: float) -> Steps:
        scene.loop.run(Event(), now)
        return ()

    scene.loop.wire(Said, tell)
    with pytest.raises(IllegalTransitionError, match="cannot work on Event within another event"):
        scene.run(Said("a"))


def test_transcript_of_a_job_shows_why_and_by_which_event_regions_were_cancelled() -> None:
    tasks = stream(a=2, b=1, edges=["a -> b"]).run()
    tasks.report("a1", ExecutionState.FAILED, "disk full")
    lines = [
        (one.event, one.depth, type(one.transition).__name__)
        for one in tasks.scheduler.transcript
        if one.now == tasks.now
    ]
    assert lines == [
        ("TasksReported", 0, "TasksReported"),
        ("TasksReported", 1, "StatesReported"),
        ("TasksReported", 2, "AttemptsFailed"),
        ("TasksReported", 3, "SubtasksFailed"),
        ("TasksReported", 3, "AttemptsOver"),
        ("TasksReported", 4, "DecideFailover"),
        ("TasksReported", 5, "ReadyToRestore"),
        ("TasksReported", 5, "StatusEntered"),
        ("TasksReported", 5, "ResultsTakenBack"),
        ("TasksReported", 5, "CancelRegions"),
    ]
    assert "AttemptsFailed([[a (1/2) #0, disk full]])" in tasks.scheduler.story()
