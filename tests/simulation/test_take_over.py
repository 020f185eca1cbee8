"""A JobMaster that dies at a certain moment: no task is restarted that has not failed, and each
record is committed once.  In :mod:`tests.simulation.test_streaming_job` they die at any moment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count, permutations

import pytest

from flinkray.actors.gateways.stream_coordinator import KeptPiece
from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.actors.stream_coordinator.endpoint import StreamCoordinator
from flinkray.core.errors import RpcConnectionError
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskDeployments, TaskExecutionState
from flinkray.streaming.errors import UnavailableError
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.calls import CallObserver, ObservedCall
from flinkray.testing.simulation.process import SimulatedProcess
from tests.simulation.safeguards import WRITERS
from tests.simulation.streaming_job import StreamingJob
from tests.simulation.streaming_program import Program

Moment = Callable[[ObservedCall], bool]


class SmallJob(StreamingJob):
    """Some seconds of virtual time."""

    def program(self) -> Program:
        program = super().program()
        small = replace(program, sources=2, counters=2, splits=4, records=6, longest_pause=0.2)
        return replace(small, has_format=False)


@dataclass
class Deaths(CallObserver):
    """At each of some moments, one after the other, a process dies: who makes or serves a call, or
    else another one.  Several die at one moment that they have in common."""

    simulation: Simulation
    moments: list[tuple[str, Moment]]
    """Each with the kind of the victim."""
    attempts: dict[int, None] = field(default_factory=dict)
    """Numbers of those that were deployed."""

    def begins(self, call: ObservedCall) -> None:
        if call.method == "submit_tasks":
            deployments = call.arguments[0]
            assert isinstance(deployments, TaskDeployments)
            self.attempts.update((task.attempt_number, None) for task in deployments.tasks)
        while self.moments and self.moments[0][1](call):
            kind, _ = self.moments.pop(0)
            there = (call.sender, call.receiver, *self.simulation.processes(kind))
            self.simulation.crash(next(process for process in there if process.kind == kind))


@dataclass
class Reports(CallObserver):
    """How long a JobMaster that takes over waits until the first TaskExecutor has reported."""

    simulation: Simulation
    asked_at: float | None = None
    wait: float = math.inf
    """Seconds."""

    def begins(self, call: ObservedCall) -> None:
        if of("SlotPool", "hand_over")(call) and self.asked_at is None:
            self.asked_at = self.simulation.now
        elif self.asked_at is not None and of("JobMaster", "register_task_executor")(call):
            self.wait = min(self.wait, self.simulation.now - self.asked_at)


def of(kind: str, method: str) -> Moment:
    """A call is served by a process of that kind."""
    return lambda call: call.receiver.kind == kind and call.method == method


def slot_pool_keeps(is_such: Callable[[KeptPiece], bool]) -> Moment:
    """A SlotPool is told such a piece of the notes."""
    return lambda call: of("SlotPool", "keep")(call) and is_such(call.arguments[0])


NOTES = slot_pool_keeps(lambda piece: piece.notes is not None)


def a_task_has_finished(call: ObservedCall) -> bool:
    return of("JobMaster", "tasks_reported")(call) and any(
        isinstance(report, TaskExecutionState) and report.state is ExecutionState.FINISHED
        for report in call.arguments[0]
    )


def job_masters(*moments: Moment) -> list[tuple[str, Moment]]:
    """They die then."""
    return [("JobMaster", moment) for moment in moments]


def after(number: int, moment: Moment) -> Moment:
    """That comes again, when it has come so often before."""
    times = count()
    return lambda call: moment(call) and next(times) == number


A_CHECKPOINT = of("StreamCoordinator", "checkpoint_ended")
MOMENTS: dict[str, list[Moment]] = {
    "the first attempts are noted": [after(1, NOTES)],
    "a task has finished": [a_task_has_finished],
    "that a task has finished is noted": [slot_pool_keeps(lambda piece: bool(piece.finished))],
    "a checkpoint has ended": [A_CHECKPOINT],
    "its successor asks what is there": [A_CHECKPOINT, of("SlotPool", "hand_over")],
    "its successor says what it adopts": [A_CHECKPOINT, of("TaskExecutor", "adopt_slots")],
    "its successor notes what it has adopted": [A_CHECKPOINT, NOTES],
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_task_is_restarted_when_a_job_master_dies_at_any_critical_moment(moment: str) -> None:
    simulation = Simulation(1, nodes=2)
    deaths = Deaths(simulation, job_masters(*MOMENTS[moment]))
    simulation.run(SmallJob(simulation, only_masters_die=True, observers=(deaths,)).run())
    assert not deaths.moments
    assert [*deaths.attempts] == [0]


def test_no_task_is_restarted_when_a_job_master_dies_with_its_slot_pool() -> None:
    """A TaskExecutor also has the notes."""
    simulation = Simulation(1, nodes=2)
    moments = [("SlotPool", A_CHECKPOINT), *job_masters(A_CHECKPOINT)]
    deaths = Deaths(simulation, moments)
    simulation.run(SmallJob(simulation, only_masters_die=True, observers=(deaths,)).run())
    assert not deaths.moments
    assert [*deaths.attempts] == [0]


HOLDERS = ("JobMaster", "SlotPool", "StreamCoordinator")


@pytest.mark.parametrize("order", list(permutations(HOLDERS)), ids=" then ".join)
def test_no_task_is_restarted_when_all_masters_of_the_job_die_at_once(
    order: tuple[str, ...],
) -> None:
    """A TaskExecutor has a copy of their notes."""
    simulation = Simulation(1, nodes=2)
    deaths = Deaths(simulation, [(kind, A_CHECKPOINT) for kind in order])
    simulation.run(SmallJob(simulation, only_masters_die=True, observers=(deaths,)).run())
    assert not deaths.moments
    assert [*deaths.attempts] == [0]


def test_job_restarts_from_a_checkpoint_if_all_processes_with_recovery_notes_died() -> None:
    """With new attempts; each record is committed once."""
    simulation = Simulation(1, nodes=2)
    kinds = ("TaskExecutor", *HOLDERS)
    deaths = Deaths(simulation, [(kind, A_CHECKPOINT) for kind in kinds])
    simulation.run(SmallJob(simulation, observers=(deaths,)).run())
    assert not deaths.moments
    assert [*deaths.attempts] == [0, 1]


ABSENT = (("Dispatcher",), ("ResourceManager",), ("Dispatcher", "ResourceManager"))


@pytest.mark.parametrize("absent", ABSENT, ids=" and ".join)
def test_next_job_master_finds_its_task_executors_while_no_other_master_runs(
    absent: tuple[str, ...],
) -> None:
    """The other masters die as soon as the JobMaster asks what runs, and come back after three
    times the heartbeat timeout of a TaskExecutor."""
    simulation = Simulation(1, nodes=2)
    weather = simulation.network.conditions
    simulation.network.set_conditions(replace(weather, restart=(30.0, 30.0)))
    asks = of("SlotPool", "hand_over")
    moments = [*job_masters(A_CHECKPOINT), *((kind, asks) for kind in absent)]
    deaths, reports = Deaths(simulation, moments), Reports(simulation)
    observers = (deaths, reports)
    simulation.run(SmallJob(simulation, only_masters_die=True, observers=observers).run())
    assert not deaths.moments
    assert [*deaths.attempts] == [0]
    assert reports.wait < 2.0


def test_job_that_ended_while_no_dispatcher_ran_is_taken_over_and_finished() -> None:
    simulation = Simulation(1, nodes=2)
    last = after(3, a_task_has_finished)
    moments = [("Dispatcher", last), ("JobMaster", of("SlotPool", "request_heartbeat"))]
    deaths = Deaths(simulation, moments)
    simulation.run(SmallJob(simulation, only_masters_die=True, observers=(deaths,)).run())
    assert not deaths.moments
    assert [*deaths.attempts] == [0]


ENDS: dict[str, Callable[[JobMaster], object]] = {
    "finds itself replaced": lambda master: master._checkpoints._replaced("another has them"),
    "fails": lambda master: master.on_fatal_error(RpcConnectionError("nobody can find it")),
}


@dataclass
class Ends(CallObserver):
    """A JobMaster, when a checkpoint is acknowledged."""

    end: Callable[[JobMaster], object]
    is_over: bool = False

    def begins(self, call: ObservedCall) -> None:
        if isinstance(call.endpoint, JobMaster) and call.method == "tasks_reported":
            answers = (it for it in call.arguments[0] if isinstance(it, AcknowledgeCheckpoint))
            if not self.is_over and any(answers):
                self.is_over = True
                self.end(call.endpoint)


@pytest.mark.parametrize("how", ENDS)
def test_job_master_that_ends_leaves_its_running_tasks_to_its_successor(how: str) -> None:
    """The successor may start later."""
    simulation = Simulation(1, nodes=2)
    ends = Ends(ENDS[how])
    deaths = Deaths(simulation, [])
    job = SmallJob(simulation, only_masters_die=True, observers=(ends, deaths))
    simulation.run(job.run())
    assert ends.is_over
    assert [*deaths.attempts] == [0]


A_TASK = ("TaskProcess", of("TaskProcess", "order_checkpoint"))
RESTARTS = {
    "tasks are cancelled": (A_TASK, of("TaskExecutor", "cancel_tasks")),
    "readers are reset": (A_TASK, of("StreamCoordinator", "reset_subtasks")),
    "the next attempts are noted": (A_TASK, NOTES),
    "the next attempts are deployed": (A_TASK, of("TaskExecutor", "submit_tasks")),
}


@pytest.mark.parametrize("moment", RESTARTS)
def test_restart_of_tasks_continues_when_the_job_master_dies_at_any_critical_moment(
    moment: str,
) -> None:
    """At most one more restart is needed, where the next JobMaster cannot know how far the restart
    has come."""
    simulation = Simulation(5, nodes=2)
    first, then = RESTARTS[moment]
    deaths = Deaths(simulation, [first, *job_masters(then)])
    simulation.run(SmallJob(simulation, observers=(deaths,)).run())
    assert not deaths.moments
    assert max(deaths.attempts) <= 2


@dataclass
class EnumeratorFails(CallObserver):
    """Once, when a checkpoint has ended."""

    is_over: bool = False

    def begins(self, call: ObservedCall) -> None:
        if not self.is_over and A_CHECKPOINT(call):
            self.is_over = True
            assert isinstance(call.endpoint, StreamCoordinator)
            call.endpoint._failed(UnavailableError("as it is to"))


def test_restart_continues_if_the_job_master_dies_while_it_restores_a_coordinator() -> None:
    simulation = Simulation(1, nodes=2)
    fails = EnumeratorFails()
    deaths = Deaths(simulation, job_masters(of("StreamCoordinator", "restore")))
    simulation.run(SmallJob(simulation, observers=(fails, deaths)).run())
    assert not deaths.moments
    assert 1 <= max(deaths.attempts) <= 2


def coordinators(*moments: Moment) -> list[tuple[str, Moment]]:
    """They die then."""
    return [("StreamCoordinator", moment) for moment in moments]


COORDINATORS_DIE: dict[str, list[tuple[str, Moment]]] = {
    "readers ask first": coordinators(of("StreamCoordinator", "exchange")),
    "what readers are given is to be kept": coordinators(of("JobMaster", "keep_part")),
    "it is being kept": coordinators(slot_pool_keeps(lambda piece: piece.part is not None)),
    "it is asked for its cut": coordinators(of("StreamCoordinator", "snapshot")),
    "readers are about to take their snapshots": coordinators(
        of("StreamCoordinator", "exchange_until_cut")
    ),
    "a checkpoint has ended": coordinators(A_CHECKPOINT),
    "one after the other": coordinators(
        A_CHECKPOINT, of("JobMaster", "keep_part"), of("StreamCoordinator", "exchange")
    ),
    "its JobMaster dies": [
        ("StreamCoordinator", A_CHECKPOINT),
        ("JobMaster", A_CHECKPOINT),
    ],
    "the SlotPool dies": [("StreamCoordinator", A_CHECKPOINT), ("SlotPool", A_CHECKPOINT)],
    "its JobMaster has died as it told the next SlotPool": [
        ("SlotPool", A_CHECKPOINT),
        ("JobMaster", NOTES),
        ("StreamCoordinator", of("SlotPool", "hand_over")),
    ],
    "the next JobMaster adopts it": [
        ("JobMaster", A_CHECKPOINT),
        ("StreamCoordinator", of("StreamCoordinator", "adopt")),
    ],
}


@pytest.mark.parametrize("moment", COORDINATORS_DIE)
def test_no_task_is_restarted_when_a_source_coordinator_dies_at_any_critical_moment(
    moment: str,
) -> None:
    """The moment does not occur with every seed."""
    for seed in range(1, 9):
        simulation = Simulation(seed, nodes=2)
        deaths = Deaths(simulation, list(COORDINATORS_DIE[moment]))
        simulation.run(SmallJob(simulation, only_masters_die=True, observers=(deaths,)).run())
        assert [*deaths.attempts] == [0]
        if not deaths.moments:
            return
    pytest.fail("the moment has come in none of the seeds")


@dataclass
class ReportsLate(CallObserver):
    """The JobMaster dies, and a TaskExecutor is silent for longer than the next one waits."""

    simulation: Simulation
    is_over: bool = False

    def begins(self, call: ObservedCall) -> None:
        if self.is_over or not A_CHECKPOINT(call):
            return
        self.is_over = True
        simulation = self.simulation
        (silent,) = simulation.processes("TaskExecutor")
        simulation.crash(call.sender)
        simulation.hang(silent)
        simulation.scheduler.at(simulation.now + 3.0, lambda: simulation.resume(silent))


def test_task_reported_after_the_take_over_was_decided_is_ended_and_restarted() -> None:
    simulation = Simulation(1, nodes=2)
    late, deaths = ReportsLate(simulation), Deaths(simulation, [])
    patience = {"jobmaster.takeover-report-timeout": "500 ms"}
    simulation.run(SmallJob(simulation, observers=(late, deaths), settings=patience).run())
    assert late.is_over
    assert [*deaths.attempts] == [0, 1]


@dataclass
class DiesAsItDeploys(CallObserver):
    """A task dies, and its JobMaster too, once it has deployed others instead: it may not have told
    the coordinator of the sources of these readers."""

    simulation: Simulation
    has_died: bool = False
    master: SimulatedProcess | None = None
    """The JobMaster that has died."""
    resets: int = 0
    """By the next JobMaster."""

    def begins(self, call: ObservedCall) -> None:
        if not self.has_died and A_TASK[1](call):
            self.has_died = True
            self.simulation.crash(call.receiver)
        elif self.master is not None:
            self.resets += call.method == "reset_subtasks" and call.sender is not self.master
        elif self.has_died and call.method == "submit_tasks":
            self.master = call.sender
            self.simulation.crash(call.sender)


def test_next_job_master_tells_the_source_coordinator_which_readers_were_deployed() -> None:
    simulation = Simulation(1, nodes=2)
    dies, deaths = DiesAsItDeploys(simulation), Deaths(simulation, [])
    simulation.run(SmallJob(simulation, observers=(dies, deaths)).run())
    assert dies.master is not None
    assert dies.resets == 1
    assert [*deaths.attempts] == [0, 1]


@dataclass
class WakesUp(CallObserver):
    """A JobMaster stands still as it stores a checkpoint, until its successor has taken over."""

    simulation: Simulation
    asleep: SimulatedProcess | None = None
    is_over: bool = False

    def stores(self, operation: str, path: str) -> bool:
        process = self.simulation.scheduler.current
        is_one = operation == "write" and "_metadata" in path
        if self.asleep is None and process is not None and is_one:
            self.asleep = process
            self.simulation.hang(process)
            self.simulation.banish(process)
        return False

    def begins(self, call: ObservedCall) -> None:
        if self.asleep is not None and of("TaskExecutor", "adopt_slots")(call):
            self.is_over = True
            self.simulation.resume(self.asleep)


def test_a_job_master_that_was_replaced_while_it_stored_a_checkpoint_stores_none() -> None:
    simulation = Simulation(1, nodes=2)
    wakes_up = WakesUp(simulation)
    simulation.disk().intercept = wakes_up.stores
    simulation.run(SmallJob(simulation, only_masters_die=True, observers=(wakes_up,)).run())
    assert wakes_up.is_over


def test_without_the_fence_of_the_stores_a_replaced_job_master_stores_its_checkpoint() -> None:
    with WRITERS.safeguards["stores fenced"].switched_off(), pytest.raises(AssertionError):
        test_a_job_master_that_was_replaced_while_it_stored_a_checkpoint_stores_none()
