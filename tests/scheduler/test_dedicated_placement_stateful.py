"""DedicatedPlacement with stages in turn, before a SlotPool whose slots come and go."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.core.ids import AllocationID, ResourceID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionJobVertex
from flinkray.scheduler.job.dedicated_placement import DedicatedPlacement
from flinkray.scheduler.job.job_scheduler_actions import (
    DeclareRequirements,
    ReleaseSlots,
    ScheduleSlotRequestTimeout,
)
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.shared.states import ExecutionState
from tests.scheduler.builders import (
    GRAPH,
    SMALL,
    allocated_slot,
    requirements,
    spark_job,
    spark_vertex,
)

PARALLELISM = 2
TIMEOUT = 30.0
BUNDLES = st.integers(0, PARALLELISM - 1)
GROUPS = st.sampled_from(["g1", "g2"])
NOTHING = ResourceProfile(0.0)


def shortage(*, unfulfillable: bool) -> ResourceShortage:
    return ResourceShortage(
        1, SMALL, "one is missing.", unfulfillable, NOTHING, NOTHING, NOTHING, False
    )


class DedicatedPlacementMachine(RuleBasedStateMachine):
    """The pool, and the stages.  The model: what the pool has, what of it is not to be used any
    more, and which stage waits or runs."""

    @initialize(stages=st.integers(1, 3))
    def submit(self, stages: int) -> None:
        self.now = 0.0
        self.numbers = count(1)
        vertices = [spark_vertex(i + 1, PARALLELISM) for i in range(stages)]
        self.graph = ExecutionGraph(spark_job(*vertices), GRAPH, 0.0)
        self.outbox = Outbox()
        self.outbox.open(self.graph)
        generations = count(1)
        self.placement = DedicatedPlacement(
            self.graph,
            self.outbox,
            "JobMaster/jobmaster",
            TIMEOUT,
            next_generation=lambda: next(generations),
            on_ready=self.deploy,
            on_failed=self.slots_failed,
        )
        self.pool: list[AllocatedSlot] = []
        self.dropped: set[AllocationID] = set()
        """The pool's next word decides about them."""
        self.shortages: tuple[ResourceShortage, ...] = ()
        self.timers: list[int] = []
        self.waiting: ExecutionJobVertex | None = None
        self.running: ExecutionJobVertex | None = None
        self.failures: list[Failure] = []
        """Of the present event."""
        self.placement.declare()
        self.expect_declaration()

    def expect_declaration(self) -> None:
        (declared,) = self.outbox.take()
        wanted = requirements((SMALL, PARALLELISM), dedicated=True)
        assert declared == DeclareRequirements(wanted)

    # what the placement says

    def deploy(self, vertex: ExecutionJobVertex, slots: tuple[AllocatedSlot, ...]) -> None:
        assert vertex is self.waiting
        assert slots == self.complete()
        self.waiting, self.running = None, vertex
        for execution, slot in zip(vertex.executions, slots, strict=True):
            execution.deploy(slot, self.now)

    def slots_failed(self, failure: Failure, vertex: ExecutionJobVertex) -> None:
        """As the JobScheduler does: the stage is cancelled while the placement speaks."""
        assert vertex is self.waiting
        self.failures.append(failure)
        self.cancel(vertex)

    def complete(self) -> tuple[AllocatedSlot, ...] | None:
        """The newest worker group of which every bundle has a slot; of each bundle the newest."""
        usable = self.usable()
        groups = [*dict.fromkeys(slot.location.worker_group for slot in usable)]
        for group in reversed(groups):
            of_bundle = {
                slot.location.bundle_index: slot
                for slot in usable
                if slot.location.worker_group == group
            }
            if len(of_bundle) == PARALLELISM:
                return tuple(of_bundle[bundle] for bundle in range(PARALLELISM))
        return None

    def usable(self) -> list[AllocatedSlot]:
        return [slot for slot in self.pool if slot.allocation_id not in self.dropped]

    def hear(self) -> None:
        """Slots that stand in the way are given back, and the pool says so.  The group that came
        last keeps the newest slot of each of its bundles, whatever came for others since."""
        for action in self.outbox.take():
            assert isinstance(action, ReleaseSlots)
            last = [*dict.fromkeys(slot.location.worker_group for slot in self.usable())][-1]
            of_last = [slot for slot in self.usable() if slot.location.worker_group == last]
            newest = {slot.location.bundle_index: slot.allocation_id for slot in of_last}
            assert not {*newest.values()} & {*action.allocations}
            self.pool = [s for s in self.pool if s.allocation_id not in action.allocations]
            self.pool_tells()

    # stages

    @precondition(lambda self: self.waiting is None and self.running is None)
    @rule(data=st.data(), before=st.lists(GROUPS, max_size=2))
    def stage_begins(self, data: st.DataObject, before: list[str]) -> None:
        """EX-18: it waits for a time only.  *before*: worker groups of which all slots come."""
        for group in before:
            for bundle in range(PARALLELISM):
                self.slot_comes(bundle, group)
        self.now += 1.0
        self.waiting = vertex = data.draw(st.sampled_from(self.graph.vertices))
        for subtask in self.graph.subtasks[vertex.first :]:
            if subtask.current.state.is_terminal:
                subtask.reset_for_new_execution(self.now)
        for execution in vertex.executions:
            execution.schedule(self.now)
        is_complete = self.complete() is not None
        self.placement.request((vertex.index,), self.now)
        if is_complete:
            assert self.running is vertex
        else:
            actions = self.outbox.take()
            (timeout,) = (a for a in actions if isinstance(a, ScheduleSlotRequestTimeout))
            assert timeout.delay == TIMEOUT
            assert timeout.generation not in self.timers
            self.timers.append(timeout.generation)
            self.outbox.extend(a for a in actions if a is not timeout)
            assert bool(self.failures) == self.is_unfulfillable()
        self.failures.clear()
        self.hear()

    def is_unfulfillable(self) -> bool:
        return any(one.unfulfillable for one in self.shortages)

    @rule(data=st.data())
    def stages_are_cancelled(self, data: st.DataObject) -> None:
        indices = data.draw(st.sets(st.sampled_from([v.index for v in self.graph.vertices])))
        for vertex in self.graph.vertices:
            if vertex.index in indices:
                self.cancel(vertex)
        self.hear()

    def cancel(self, vertex: ExecutionJobVertex) -> None:
        """What runs of it ends at once here."""
        self.placement.cancel([vertex.index])
        if self.waiting is vertex:
            self.waiting = None
        if self.running is vertex:
            self.running = None
        for execution in vertex.executions:
            if execution.begin_cancel(self.now):
                execution.end(Failure("cancelled"), self.now)
            self.placement.execution_ended(execution)
            if execution.state.is_terminal:
                execution.vertex.reset_for_new_execution(self.now)

    @precondition(lambda self: self.running is not None)
    @rule()
    def stage_finishes(self) -> None:
        """Its slots stay the job's, and its executions know them, until it is executed again, or a
        stage before it is."""
        assert self.running is not None
        for execution in self.running.executions:
            execution.finish(self.now)
            self.placement.execution_ended(execution)
        self.running = None
        self.hear()

    # the pool

    def used(self) -> set[AllocationID]:
        executions = () if self.running is None else self.running.executions
        return {e.slot.allocation_id for e in executions if e.slot is not None}

    def pool_tells(self) -> None:
        self.dropped.clear()
        held = {slot.allocation_id for slot in self.pool}
        lost = self.placement.slots_changed(tuple(self.pool))
        assert {*lost} == self.used() - held
        self.lose(lost)
        self.placement.try_deploy(self.now)
        self.hear()

    def lose(self, causes: dict[AllocationID, str]) -> None:
        """What runs in them fails, and its stage with it."""
        ends = self.placement.ends_of(causes)
        live = {e for e, _ in ends if e.state is ExecutionState.DEPLOYING}
        current = () if self.running is None else self.running.executions
        assert live == {e for e in current if e.slot and e.slot.allocation_id in causes}
        assert all(failure.task == execution.task_name for execution, failure in ends)
        if self.running is not None and live:
            self.cancel(self.running)

    @rule(bundle=BUNDLES, group=GROUPS)
    def slot_comes(self, bundle: int, group: str) -> None:
        number = next(self.numbers)
        slot = allocated_slot(number, bundle, group, name=f"te{number % 4}")
        self.pool.append(slot)
        self.pool_tells()

    @precondition(lambda self: self.pool)
    @rule(data=st.data(), is_told=st.sampled_from(["", "slot", "executor"]))
    def slots_are_lost(self, data: st.DataObject, is_told: str) -> None:
        """*is_told*: the JobMaster hears of the slot, or of its TaskExecutor, before the pool's
        word comes."""
        slot = data.draw(st.sampled_from(self.pool))
        lost = {slot.allocation_id}
        where = slot.location.resource_id
        if is_told == "executor":
            lost = {s.allocation_id for s in self.pool if s.location.resource_id == where}
        if is_told:
            self.dropped |= lost
            causes = {slot.allocation_id: "broken"}
            if is_told == "executor":
                causes = self.placement.drop_task_executor(where, "killed")
                assert self.used() & lost <= causes.keys() <= lost
            else:
                self.placement.drop(slot.allocation_id)
            self.lose(causes)
        if data.draw(st.booleans()):
            self.pool = [s for s in self.pool if s.allocation_id not in lost]
            self.pool_tells()
        self.hear()

    @rule(where=st.sampled_from(["te0", "te9"]))
    def task_executor_without_slots_is_lost(self, where: str) -> None:
        if all(slot.location.resource_id != where for slot in self.pool):
            assert self.placement.drop_task_executor(ResourceID(where), "killed") == {}
            self.hear()

    @rule(rare=st.integers(0, 7))
    def pool_dies(self, rare: int) -> None:
        """What is required is declared again, and the slots of before are not used any more."""
        if rare == 0:
            self.pool = []
            self.placement.pool_lost()
            self.expect_declaration()
            if self.running is not None:
                self.cancel(self.running)
            self.hear()

    @rule(kinds=st.lists(st.booleans(), max_size=2))
    def resources_are_short(self, kinds: list[bool]) -> None:
        self.shortages = tuple(shortage(unfulfillable=kind) for kind in kinds)
        expected = self.waiting is not None and self.is_unfulfillable()
        self.placement.resources_short(self.shortages)
        self.expect_failure(expected, is_final=True)

    @precondition(lambda self: self.timers)
    @rule(data=st.data(), is_last=st.booleans())
    def timer_rings(self, data: st.DataObject, is_last: bool) -> None:
        """EX-18: those of before change nothing."""
        generation = self.timers[-1] if is_last else data.draw(st.sampled_from(self.timers))
        expected = self.waiting is not None and generation == self.timers[-1]
        self.placement.timed_out(generation)
        self.expect_failure(expected, is_final=False)

    def expect_failure(self, is_expected: bool, *, is_final: bool) -> None:
        assert [one.suppress_restarts for one in self.failures] == [is_final] * is_expected
        self.failures.clear()
        self.hear()

    # what holds

    @invariant()
    def what_runs_has_a_slot_of_its_own_bundle_all_of_one_group(self) -> None:
        if hasattr(self, "pool") and self.running is not None:
            slots = [e.slot for e in self.running.executions if e.slot is not None]
            assert [slot.location.bundle_index for slot in slots] == [*range(PARALLELISM)]
            assert len({slot.location.worker_group for slot in slots}) == 1
            assert self.used() <= {slot.allocation_id for slot in self.usable()}
            assert self.placement.worker_group == slots[0].location.worker_group

    @invariant()
    def no_stage_waits_for_what_is_there_and_nothing_stands_in_its_way(self) -> None:
        if hasattr(self, "pool") and self.waiting is not None:
            assert self.complete() is None
            assert len(self.usable()) < PARALLELISM, "the pool takes no more than are required"

    @invariant()
    def it_says_why_a_job_is_pending(self) -> None:
        if hasattr(self, "pool"):
            there = f"{len(self.usable())} of {PARALLELISM} slots ({SMALL} each) are there."
            told = " ".join(one.reason for one in self.shortages)
            expected = None if self.waiting is None else told or there
            assert self.placement.why_pending() == expected

    def teardown(self) -> None:
        """Whoever waits has the slots when all have come."""
        if hasattr(self, "pool") and self.waiting is not None:
            vertex = self.waiting
            for bundle in range(PARALLELISM):
                self.slot_comes(bundle, "g3")
            assert self.running is vertex


TestDedicatedPlacement = DedicatedPlacementMachine.TestCase
TestDedicatedPlacement.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
