"""ElasticJobSchedulers that follow each other while slots come and go, bounds change and tasks
fail: what goes on is what ran, and to be scaled is no failure, whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.actions import (
    PrepareCheckpoint,
    RestoreCoordinators,
    SnapshotCoordinators,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import savepoint
from flinkray.scheduler.elastic.elastic_job_scheduler import ElasticJobScheduler
from flinkray.scheduler.elastic.parallelism import with_bounds
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, ParallelismBounds, SchedulerMode
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    JobSchedulerAction,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.reports.job_info import JobOverview
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import JobNotes, SourceCoordinatorPlace
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from flinkray.scheduler.slots.slot_requests import SlotAllocated, SlotEvent, SlotsLost
from tests.scheduler.builders import only
from tests.scheduler.graphs import stream_vertex
from tests.scheduler.job.checkpointed_job import checkpointed_graph
from tests.scheduler.job.test_take_over_checkpoints_stateful import (
    OWNER,
    TakenOverCheckpointedJob,
)
from tests.scheduler.tasks_under_test import EARLY, TasksUnderTest

MOST = 4


class TakenOverElasticJob(TakenOverCheckpointedJob):
    """``a -> b``, ``a`` from 1 to 2 and ``b`` from 1 to 4.  Its pool holds slots, one of each
    TaskExecutor, that are in use or clean."""

    def __init__(self, restarts: int) -> None:
        self.coordinator: int | None = None
        """The number of the attempt of the sources' coordinator that is there."""
        self.restores = 0
        self.has_readers = False
        self.stopped: list[CoordinatorID] = []
        """Of which the JobMaster has not heard it yet."""
        self.was_cut = False
        """Whether some tasks of a graph were deployed, and others not, as the JobMaster died."""
        graph = checkpointed_graph(
            stream_vertex("a", 2),
            stream_vertex("b", MOST),
            restart_strategy=FixedDelayRestart(restarts, 1.0),
            mode=SchedulerMode.ADAPTIVE,
        )
        super().__init__(graph, kind=ElasticJobScheduler)
        self.sources_start = False

    # --- slots ------------------------------------------------------------------------------------

    def held(self) -> tuple[AllocatedSlot, ...]:
        """What the pool has."""
        return tuple(s for a, s in self.slots.items() if a in self.reserved or self.is_clean(a))

    def has(self, number: int) -> int:
        """There are so many TaskExecutors; those that die take their tasks with them.  Returns how
        many of these the job had."""
        before = len(self.tasks)
        while len(self.slots) < number:
            slot = TasksUnderTest.new_slot(self)
            self.slots[slot.allocation_id] = slot
            self.locations[slot.location.resource_id] = slot.location
        for slot in list(self.slots.values())[number:]:
            self.task_executor_dies(str(slot.location.resource_id))
            self.reserved.pop(slot.allocation_id, None)
            self.tell(t.SlotsTold((SlotsLost((slot.allocation_id,), "killed"),)))
        lost = before - len(self.tasks)
        self.count()
        return lost

    def resize(self, a: int, b: int) -> None:
        """Others are stored first, and then the JobMaster is told."""
        first, second = (vertex.vertex_id for vertex in self.graph.vertices)
        bounds = (ParallelismBounds(first, 1, a), ParallelismBounds(second, 1, b))
        self.graph = with_bounds(self.graph, bounds)
        self.tell(t.ResizeJob(bounds))

    def count(self) -> None:
        """The JobMaster is told of the slots, and given those that it has asked for."""
        held = self.held()
        for slot in held:
            self.ledger.add(slot)
        self.tell(t.PoolSlotsChanged(held))
        self.answer()

    def tell(self, event: JobEvent) -> list[JobSchedulerAction]:
        actions = super().tell(event)
        if self.carried_out is not None:
            deployed = {a.vertex for a in self.tasks if a.graph_id == self.scheduler.graph_id}
            vertices = self.scheduler.details().vertices
            number = sum(vertex.parallelism for vertex in vertices)
            self.was_cut = self.was_cut or 0 < len(deployed) < number
        return actions

    def answer(self) -> None:
        """As far as there are free slots."""
        free = [slot for slot in self.held() if slot.allocation_id not in self.reserved]
        events: list[SlotEvent] = []
        for request_id, slot in zip(list(self.wanted), free, strict=False):
            del self.wanted[request_id]
            self.reserved[slot.allocation_id] = slot
            events.append(SlotAllocated(request_id, slot))
        if events:
            self.tell(t.SlotsTold(tuple(events)))

    # --- the coordinator of the sources -----------------------------------------------------------

    def _carry_out(self, action: JobSchedulerAction) -> None:
        match action:
            case StartCoordinator(coordinator):
                self.coordinator, self.restores = coordinator.attempt_number, 0
                self.has_readers = False
            case StopCoordinator(coordinator):
                self.coordinator = None
                self.stopped.append(coordinator)
            case RestoreCoordinators(restores=restores):
                self.restores, self.has_readers = restores, False
            case DeployTasks():
                self.has_readers = True
        super()._carry_out(action)

    def tell_of_coordinators(self) -> None:
        while self.stopped:
            self.tell(t.CoordinatorGone(self.stopped.pop()))
        if self.coordinator is not None:
            place = SourceCoordinatorPlace(self.coordinator, OWNER, "sources")
            self.tell(t.SourceCoordinatorIsAt(place))
            coordinator = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, self.coordinator)
            self.tell(t.CoordinatorStarted(coordinator))

    def reached(self, notes: JobNotes | None) -> JobNotes | None:
        return None if notes is None else replace(notes, source_coordinator=self._place(notes))

    def _place(self, notes: JobNotes) -> SourceCoordinatorPlace | None:
        place = notes.source_coordinator
        if place is None or place.attempt_number != self.coordinator:
            return None
        return replace(place, restores=self.restores, has_readers=self.has_readers)


class ElasticTakeOverMachine(RuleBasedStateMachine):
    """Beside tasks, slots and bounds, JobMasters that die: at rest, in the middle of what they say,
    and while others have something to tell them."""

    @initialize(restarts=st.sampled_from([0, 0, 2, 1000]))
    def submit(self, restarts: int) -> None:
        self.job = TakenOverElasticJob(restarts)
        self.failures = 0
        """That tasks have had, or may have had."""
        self.may_have_starved = False
        """Whether a time-out was over when there was no slot at all."""
        self.saving: int | None = None
        """The savepoint that is under way."""
        self.seen = 0
        self.overviews: dict[Hashable, JobOverview] = {}
        """Of this JobMaster."""
        self.restarts: list[JobEvent] = []
        self.scalings: dict[t.ScalingDelayOver, float] = {}
        self.cancelled: set[ExecutionAttemptID] = set()
        self.job.tell(t.StartJob())
        self.note()

    def note(self) -> None:
        """What has been asked for since the last time."""
        log: list[JobSchedulerAction] = self.job.log[self.seen :]
        self.seen = len(self.job.log)
        for action in log:
            match action:
                case StartTimer(t.RestartDelayOver() as key):
                    self.restarts.append(key)
                case StartTimer(t.ScalingDelayOver() as key, delay):
                    self.scalings[key] = self.job.now + delay
                case CancelTasks(_, attempts):
                    self.cancelled |= set(attempts)
        if only(log, StartCoordinator) or self.job.stopped:
            self.job.tell_of_coordinators()
            self.note()

    def ending(self) -> list[ExecutionAttemptID]:
        return [a for a in sorted(self.job.tasks, key=str) if a in self.cancelled]

    def runs(self) -> list[ExecutionAttemptID]:
        return [a for a in sorted(self.job.tasks, key=str) if a not in self.cancelled]

    def all_run(self) -> bool:
        states = {self.job.task_states[a] for a in self.runs()}
        return states == {ExecutionState.RUNNING} and self.job.status is JobStatus.RUNNING

    def current(self) -> dict[tuple[str, int], tuple[ExecutionState, int]]:
        return {
            (vertex.name, e.subtask_index): (e.state, e.attempt_number)
            for vertex in self.job.scheduler.details().vertices
            for e in vertex.executions
        }

    # --- the world --------------------------------------------------------------------------------

    @rule(number=st.integers(0, 6))
    def slots_change(self, number: int) -> None:
        self.failures += self.job.has(number)
        self.note()

    @rule(a=st.integers(1, 2), b=st.integers(1, MOST))
    def resize(self, a: int, b: int) -> None:
        self.job.resize(a, b)
        self.job.answer()
        self.note()

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        until = self.job.now + seconds
        for key, due in sorted(self.scalings.items(), key=lambda item: item[0].generation):
            if due <= until:
                del self.scalings[key]
                self.job.now = max(self.job.now, due)
                self.may_have_starved |= not self.job.held()
                self.job.tell(key)
                self.job.answer()
                self.note()
        self.job.now = max(self.job.now, until)

    @precondition(lambda self: self.restarts)
    @rule()
    def restart_delay_is_over(self) -> None:
        for key in self.restarts:
            self.job.tell(key)
        self.restarts.clear()
        self.job.answer()
        self.note()

    @precondition(lambda self: self.runs())
    @rule()
    def tasks_run(self) -> None:
        early = [a for a in self.runs() if self.job.task_states[a] is not ExecutionState.RUNNING]
        self.job.report(early, ExecutionState.RUNNING)
        self.note()

    @precondition(lambda self: self.ending())
    @rule()
    def cancellations_are_confirmed(self) -> None:
        self.job.report(self.ending(), ExecutionState.CANCELED)
        self.job.count()
        self.note()

    @precondition(lambda self: self.runs())
    @rule(data=st.data(), rare=st.integers(0, 2))
    def task_fails(self, data: st.DataObject, rare: int) -> None:
        if rare == 0:
            self.failures += 1
            chosen = data.draw(st.sampled_from(self.runs()))
            self.job.report([chosen], ExecutionState.FAILED, "it broke")
            self.job.count()
            self.note()

    # --- a user -----------------------------------------------------------------------------------

    @precondition(lambda self: self.saving is None and self.all_run())
    @rule()
    def savepoint_is_asked_for(self) -> None:
        actions = self.job.request(savepoint())
        if not only(actions, PrepareCheckpoint):
            return
        actions = self.job.prepare(actions)
        if only(actions, SnapshotCoordinators):
            self.job.cut(actions)
            self.saving = self.job.last_id

    @precondition(lambda self: self.saving is not None)
    @rule(is_stored=st.booleans())
    def savepoint_is_over(self, is_stored: bool) -> None:
        assert self.saving is not None
        saving, self.saving = self.saving, None
        if not is_stored and self.runs():
            self.job.decline(saving, self.job.name(self.runs()[0]))
        elif only(self.job.acknowledge(saving), StoreCheckpoint):
            self.job.store()
        self.job.answer()
        self.note()

    # --- JobMasters -------------------------------------------------------------------------------

    @precondition(lambda self: self.job.ended is None)
    @rule(data=st.data(), number=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4]))
    def job_master_dies(self, data: st.DataObject, number: int) -> None:
        """*number*: in the middle of what it says, if not 0."""
        if number:
            self.job.carried_out = number - 1
            self.say_last_words(data)
            self.failures += self.job.was_cut
            if self.job.ended is not None:
                return
        unheard = data.draw(st.integers(0, 3)) == 0 and self.happen_unheard(data)
        if data.draw(st.integers(0, 4)) == 0 and self.job.locations:
            before = len(self.job.tasks)
            self.job.task_executor_dies(data.draw(st.sampled_from(sorted(self.job.locations))))
            self.failures += before - len(self.job.tasks)
            unheard = True
        self.take_over(None if number or unheard else self.what_should_go_on())

    def say_last_words(self, data: st.DataObject) -> None:
        choices = ["slots", "resize"]
        choices += ["scaling"] * 2 * bool(self.scalings) + ["restart"] * bool(self.restarts)
        choices += ["answer"] * 3 * bool(self.job.wanted) + ["ending"] * 3 * bool(self.ending())
        match data.draw(st.sampled_from(choices)):
            case "slots":
                self.job.tell(t.PoolSlotsChanged(self.job.held()))
            case "resize":
                self.job.resize(data.draw(st.integers(1, 2)), data.draw(st.integers(1, MOST)))
            case "scaling":
                key, due = next(iter(self.scalings.items()))
                self.job.now = max(self.job.now, due)
                self.may_have_starved |= not self.job.held()
                self.job.tell(key)
            case "restart":
                self.job.tell(self.restarts[-1])
            case "answer":
                self.job.answer()
            case "ending":
                self.job.report(self.ending(), ExecutionState.CANCELED)

    def happen_unheard(self, data: st.DataObject) -> bool:
        ending = self.ending()
        if ending:
            self.job.happens(ending, ExecutionState.CANCELED)
        elif self.runs():
            self.failures += 1
            chosen = data.draw(st.sampled_from(self.runs()))
            self.job.happens([chosen], ExecutionState.FAILED, "unheard")
        return True

    def what_should_go_on(self) -> dict[tuple[str, int], tuple[ExecutionState, int]] | None:
        """All of it, if nothing of it has failed or is scaled; None: something has, or is."""
        vertices = self.job.scheduler.details().vertices
        uppers = {vertex.vertex_id: vertex.parallelism for vertex in self.job.graph.vertices}
        is_too_much = any(v.parallelism > uppers[v.vertex_id] for v in vertices)
        states = {state for state, _ in self.current().values()}
        runs = self.job.status is JobStatus.RUNNING and set() < states <= set(EARLY)
        return None if is_too_much or not runs else self.current()

    def take_over(self, before: dict[tuple[str, int], tuple[ExecutionState, int]] | None) -> None:
        job = self.job
        job.next_job_master()
        job.was_cut = False
        job.stopped.clear()
        self.overviews.clear()
        self.saving = None
        self.restarts.clear()
        self.scalings.clear()
        begun = {number: f"/chk-{number}" for number in range(1, job.last_id + 1)}
        actions = job.take_over(begun_checkpoints=begun)
        self.note()
        job.count()
        self.note()
        if before is not None:
            assert self.current() == before, (before, job.scheduler.story())
            assert not only(actions, DeployTasks)
            cancelled = {a for tasks in only(actions, CancelTasks) for a in tasks.attempts}
            assert not [a for a in cancelled if a.graph_id == job.scheduler.graph_id]
        for attempt_id in job.tasks:
            if job.task_states[attempt_id] is ExecutionState.CANCELING:
                assert attempt_id in self.cancelled

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def to_be_scaled_is_no_failure(self) -> None:
        if hasattr(self, "job") and not self.failures:
            assert self.job.scheduler.restarts == 0, self.job.scheduler.story()
            has_failed = self.job.status is JobStatus.FAILED
            assert not has_failed or self.may_have_starved, self.job.scheduler.story()

    @invariant()
    def no_overview_changes_unnoticed(self) -> None:
        if hasattr(self, "job"):
            scheduler = self.job.scheduler
            overview = scheduler.overview()
            assert self.overviews.setdefault(scheduler.overview_state, overview) == overview

    @invariant()
    def what_runs_fits_the_graph_and_its_slots(self) -> None:
        if hasattr(self, "job"):
            current = {number for _, number in self.current().values()}
            for attempt_id in self.runs():
                assert attempt_id.attempt_number in current
                assert self.job.tasks[attempt_id].allocation_id in self.job.reserved
            assert self.job.status.is_terminal == (self.job.ended is not None)

    @invariant()
    def no_subtask_runs_twice(self) -> None:
        if hasattr(self, "job"):
            running = [self.job.name(attempt_id) for attempt_id in self.runs()]
            assert len(running) == len(set(running)), self.job.scheduler.story()

    def teardown(self) -> None:
        """With all slots and time enough the job finishes, unless tasks have failed too often."""
        if not hasattr(self, "job"):
            return
        for _ in range(40):
            if self.job.ended is not None:
                break
            self.slots_change(MOST)
            if self.ending():
                self.cancellations_are_confirmed()
            self.restart_delay_is_over()
            self.time_passes(400.0)
            if not self.job.wanted:
                self.job.report(self.runs(), ExecutionState.FINISHED)
            self.note()
        ended = self.job.ended
        assert ended is not None, self.job.scheduler.story()
        assert ended.result.status in (JobStatus.FINISHED, JobStatus.FAILED)
        self.to_be_scaled_is_no_failure()


def test_scaling_counts_no_restart_if_two_job_masters_die_before_they_deploy_tasks() -> None:
    """The second JobMaster replaced the recovery notes before it had deployed anything."""
    machine = ElasticTakeOverMachine()
    machine.submit(restarts=0)
    machine.slots_change(MOST)
    machine.resize(1, 1)
    assert machine.ending(), "the job is being scaled"
    for _ in range(2):
        machine.take_over(None)
        machine.to_be_scaled_is_no_failure()
        assert machine.job.notes is not None
        assert machine.job.notes.is_being_scaled
    machine.teardown()
    assert machine.job.notes is not None
    assert not machine.job.notes.is_being_scaled, "its tasks were deployed"
    assert machine.job.status is JobStatus.FINISHED


TestElasticTakeOver = ElasticTakeOverMachine.TestCase
TestElasticTakeOver.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
