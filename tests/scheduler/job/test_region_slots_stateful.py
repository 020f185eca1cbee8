"""RegionSlots with jobs of any shape, before a SlotPool that gives, refuses, loses and dies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.scheduler.execution.execution_graph import Execution
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import JobSchedulerAction
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.job.transition_loop import Steps, TransitionLoop
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.transition import Transition
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotAllocated,
    SlotEvent,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
)
from tests.scheduler.builders import allocated_slot
from tests.scheduler.graphs import execution_graph, python_vertex

HOSTS = [ResourceID(name) for name in "xy"]
ARROWS = st.sampled_from(["->", "-->", "=>", "==>"])
SHARING = st.sampled_from(["default", "default", "other"])


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Up to four vertices of up to three subtasks, some of which share slots."""
    names = "abcd"[: draw(st.integers(1, 4))]
    vertices = [
        python_vertex(name, draw(st.integers(1, 3)), slot_sharing_group=draw(SHARING))
        for name in names
    ]
    edges = []
    for target in range(1, len(names)):
        for source in sorted(draw(st.sets(st.integers(0, target - 1), max_size=2))):
            edges.append(f"{names[source]} {draw(ARROWS)} {names[target]}")
    return {"vertices": vertices, "edges": edges}


class PlacementMachine(RuleBasedStateMachine):
    """The pool and the tasks.  The model: which regions wait, which subtask runs in which slot, and
    for which subtasks each slot was asked for."""

    @initialize(shape=jobs())
    def submit(self, shape: dict[str, Any]) -> None:
        self.now = 0.0
        self.numbers = count(1)
        self.graph = execution_graph(**shape)
        self.regions = PipelinedRegions(self.graph)
        self.actions: list[JobSchedulerAction] = []
        """Of the present event."""
        region_slots = self.region_slots = RegionSlots(self.graph, self.regions)
        self.loop = TransitionLoop("the job", self.actions.append)
        wire = self.loop.wire
        wire(t.ScheduleRegions, lambda transition, now: region_slots.request(transition.regions))
        wire(t.RequestSlotsAgain, region_slots.request_again)
        wire(t.SlotsTold, region_slots.slots_told)
        wire(t.TaskExecutorLost, region_slots.task_executor_lost)
        wire(t.CancelRegions, region_slots.cancel, self.cancel)
        wire(t.AttemptsOver, region_slots.attempts_over)
        wire(t.RegionsReady, lambda transition, now: region_slots.use(transition.regions))
        wire(t.DeployRegion, self.deploy)
        wire(t.AttemptsFailed, self.attempts_failed)
        self.ordinals = {s.vertex_id: s.ordinal for s in self.graph.subtasks}
        self.waiting: set[int] = set()
        """Regions."""
        self.in_slot: dict[int, AllocationID] = {}
        """Subtasks whose attempt has not ended."""
        self.asked: set[SlotRequestId] = set()
        """All that ever were."""
        self.wanted: dict[SlotRequestId, frozenset[int]] = {}
        """Requests without an answer, with the subtasks that are to share the slot."""
        self.cancelled: dict[SlotRequestId, frozenset[int]] = {}
        """Requests whose answer may be on its way yet."""
        self.reserved: dict[AllocationID, frozenset[int]] = {}
        self.slots: dict[AllocationID, AllocatedSlot] = {}
        self.free: list[AllocatedSlot] = []
        """Returned ones, which the pool may give again."""
        self.failed: set[int] = set()
        """By the present event."""

    def tell(self, transition: Transition, failed: Iterable[int] = ()) -> None:
        """*failed*: subtasks that are to fail by that, and no others."""
        self.loop.run(transition, self.now)
        self.hear(failed)

    # what the region_slots says

    def deploy(self, transition: t.DeployRegion, now: float) -> Steps:
        self.waiting.remove(transition.region)
        vertices = self.regions.regions[transition.region].vertices
        for ordinal, slot in zip(vertices, transition.slots, strict=True):
            assert ordinal in self.reserved[slot.allocation_id], "it was asked for for this subtask"
            assert ordinal not in self.in_slot
            execution = self.graph.subtasks[ordinal].current
            execution.deploy(slot, self.now)
            self.in_slot[ordinal] = slot.allocation_id
        return ()

    def attempts_failed(self, transition: t.AttemptsFailed, now: float) -> Steps:
        """As in a job, their regions are cancelled."""
        ended = []
        for execution, failure in transition.ends:
            if not execution.state.is_terminal:
                execution.end(failure, self.now)
                self.in_slot.pop(execution.vertex.ordinal, None)
                ended.append(execution)
        self.failed |= {execution.vertex.ordinal for execution in ended}
        regions = sorted({self.regions.of[e.vertex.ordinal] for e in ended})
        return [t.CancelRegions(tuple(regions), keep_created=True), t.AttemptsOver(tuple(ended))]

    def cancel(self, transition: t.CancelRegions, now: float) -> Steps:
        self.waiting -= set(transition.regions)
        over: list[Execution] = []
        for region in transition.regions:
            for ordinal in self.regions.regions[region].vertices:
                execution = self.graph.subtasks[ordinal].current
                if execution.state is ExecutionState.SCHEDULED:
                    execution.begin_cancel(self.now)
                    over.append(execution)
                elif execution.state is not ExecutionState.CREATED:
                    execution.begin_cancel(self.now)
        return (t.AttemptsOver(tuple(over)),)

    def hear(self, failed: Iterable[int]) -> None:
        assert self.failed == set(failed)
        self.failed = set()
        actions, self.actions[:] = list(self.actions), []
        for action in actions:
            if isinstance(action, SlotRequests):
                for request in action.requests:
                    self.hear_request(
                        request.request_id, frozenset(self.ordinals[v] for v in request.vertices)
                    )
            elif isinstance(action, CancelSlotRequests):
                for request_id in action.request_ids:
                    self.cancelled[request_id] = self.wanted.pop(request_id)
            else:
                assert isinstance(action, ReturnSlots)
                for allocation_id in action.allocations:
                    assert allocation_id not in self.in_slot.values(), "nothing runs in it"
                    del self.reserved[allocation_id]
                    self.free.append(self.slots[allocation_id])
        for subtask in self.graph.subtasks:
            region = self.regions.regions[self.regions.of[subtask.ordinal]]
            current = [self.graph.subtasks[ordinal].current for ordinal in region.vertices]
            if all(execution.state.is_terminal for execution in current):
                for execution in current:
                    execution.vertex.reset_for_new_execution(self.now)

    def hear_request(self, request_id: SlotRequestId, group: frozenset[int]) -> None:
        assert request_id not in self.asked, "its id was not used before"
        assert group not in self.wanted.values(), "a slot is asked for once"
        assert group not in self.reserved.values(), "who has a slot asks for none"
        self.asked.add(request_id)
        self.wanted[request_id] = group

    # regions

    @rule(data=st.data())
    def regions_are_scheduled(self, data: st.DataObject) -> None:
        idle = [
            region.index
            for region in self.regions.regions
            if all(
                self.graph.subtasks[ordinal].current.state is ExecutionState.CREATED
                for ordinal in region.vertices
            )
        ]
        if not idle:
            return
        chosen = data.draw(st.lists(st.sampled_from(idle), min_size=1, unique=True))
        self.now += 1.0
        for index in chosen:
            for ordinal in self.regions.regions[index].vertices:
                self.graph.subtasks[ordinal].current.schedule(self.now)
        self.waiting |= set(chosen)
        self.tell(t.ScheduleRegions(tuple(chosen)))

    @rule(data=st.data())
    def regions_are_cancelled(self, data: st.DataObject) -> None:
        """Those that wait, those that run, and those that do nothing."""
        indices = st.integers(0, len(self.regions.regions) - 1)
        regions = data.draw(st.sets(indices, min_size=1, max_size=2))
        self.tell(t.CancelRegions(tuple(sorted(regions)), keep_created=True))

    @precondition(lambda self: self.in_slot)
    @rule(data=st.data(), number=st.integers(1, 3))
    def tasks_end(self, data: st.DataObject, number: int) -> None:
        for _ in range(min(number, len(self.in_slot))):
            self.end(data.draw(st.sampled_from(sorted(self.in_slot))))

    def end(self, ordinal: int) -> None:
        execution = self.graph.subtasks[ordinal].current
        if execution.state is ExecutionState.CANCELING:
            execution.end(Failure("cancelled"), self.now)
        else:
            execution.finish(self.now)
        self.in_slot.pop(ordinal, None)
        self.tell(t.AttemptsOver((execution,)))

    @precondition(lambda self: self.in_slot)
    @rule(data=st.data())
    def task_fails(self, data: st.DataObject) -> None:
        ordinal = data.draw(st.sampled_from(sorted(self.in_slot)))
        execution = self.graph.subtasks[ordinal].current
        self.tell(t.AttemptsFailed(((execution, Failure("it failed")),)), [ordinal])

    # the pool

    def reserve(self, group: frozenset[int], host: ResourceID, again: bool) -> AllocatedSlot:
        if again and self.free:
            slot = self.free.pop()
        else:
            slot = allocated_slot(next(self.numbers), name=str(host))
        self.slots[slot.allocation_id] = slot
        self.reserved[slot.allocation_id] = group
        return slot

    @precondition(lambda self: self.wanted)
    @rule(
        data=st.data(),
        host=st.sampled_from(HOSTS),
        number=st.integers(1, 3),
        again=st.booleans(),
        is_lost=st.integers(0, 5).map(lambda rare: rare == 0),
    )
    def slots_come(
        self, data: st.DataObject, host: ResourceID, number: int, again: bool, is_lost: bool
    ) -> None:
        """*again*: some that were returned, under the ids that they had.  *is_lost*: one of them is
        lost before it was heard of."""
        events: list[SlotEvent] = []
        for _ in range(min(number, len(self.wanted))):
            request_id = data.draw(st.sampled_from(sorted(self.wanted)))
            slot = self.reserve(self.wanted.pop(request_id), host, again)
            events.append(SlotAllocated(request_id, slot))
            if is_lost:
                del self.reserved[slot.allocation_id]
                events.append(SlotsLost((slot.allocation_id,), "killed"))
                is_lost = False
        self.tell(t.SlotsTold(tuple(events)))

    @precondition(lambda self: self.cancelled)
    @rule(data=st.data(), host=st.sampled_from(HOSTS), is_given=st.booleans())
    def answer_crosses_a_cancellation(
        self, data: st.DataObject, host: ResourceID, is_given: bool
    ) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.cancelled)))
        del self.cancelled[request_id]
        event: SlotEvent = SlotRequestFailed(request_id, SlotRequestFailure.TIMED_OUT, "why")
        if is_given:
            event = SlotAllocated(request_id, self.reserve(frozenset(), host, again=False))
        self.tell(t.SlotsTold((event,)))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), failure=st.sampled_from(SlotRequestFailure))
    def slot_does_not_come(self, data: st.DataObject, failure: SlotRequestFailure) -> None:
        """SP-20: who waits for it fails."""
        request_id = data.draw(st.sampled_from(sorted(self.wanted)))
        failed = self.wanted.pop(request_id) & self.waiting_subtasks()
        assert failed, "somebody waits for what is wanted"
        self.tell(t.SlotsTold((SlotRequestFailed(request_id, failure, "why"),)), failed)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), by_master=st.booleans(), twice=st.booleans())
    def slot_is_lost(self, data: st.DataObject, by_master: bool, twice: bool) -> None:
        """*by_master*: its TaskExecutor told the JobMaster before the pool did."""
        lost = data.draw(st.sampled_from(sorted(self.reserved)))
        failed = self.lose([lost])
        if by_master:
            self.tell(t.SlotsTold((SlotsLost((lost,), "killed"),)), failed)
            failed = set()
        if twice or not by_master:
            self.tell(t.SlotsTold((SlotsLost((lost,), "killed"),)), failed)

    @rule(host=st.sampled_from(HOSTS))
    def task_executor_dies(self, host: ResourceID) -> None:
        lost = [a for a in self.reserved if self.slots[a].location.resource_id == host]
        failed = self.lose(lost)
        self.free = [slot for slot in self.free if slot.location.resource_id != host]
        self.tell(t.TaskExecutorLost(host, "killed"), failed)
        self.tell(t.SlotsTold((SlotsLost(tuple(lost), "killed"),)))

    def lose(self, lost: list[AllocationID]) -> set[int]:
        """What runs in them fails."""
        for allocation_id in lost:
            del self.reserved[allocation_id]
        return {ordinal for ordinal, where in self.in_slot.items() if where in lost}

    def waiting_subtasks(self) -> set[int]:
        return {o for region in self.waiting for o in self.regions.regions[region].vertices}

    # what holds

    @invariant()
    def no_slot_is_used_by_two_subtasks_of_a_vertex_or_of_two_groups(self) -> None:
        """SP-20."""
        if hasattr(self, "slots"):
            users: dict[AllocationID, list[int]] = {}
            for ordinal, allocation_id in self.in_slot.items():
                assert ordinal in self.reserved[allocation_id]
                users.setdefault(allocation_id, []).append(ordinal)
            for sharing in users.values():
                vertices = [self.graph.subtasks[o].job_vertex.vertex for o in sharing]
                assert len({v.vertex_id for v in vertices}) == len(vertices)
                assert len({v.slot_sharing_group for v in vertices}) == 1

    @invariant()
    def no_request_is_lost(self) -> None:
        """Who waits has a slot or has asked for it, and a region waits only for what is asked."""
        if hasattr(self, "slots"):
            asked = {o for group in self.wanted.values() for o in group}
            has = {o for group in self.reserved.values() for o in group}
            for region in self.waiting:
                vertices = set(self.regions.regions[region].vertices)
                assert vertices <= asked | has
                assert vertices & asked, "it has all its slots, and does not run"

    @invariant()
    def nothing_is_wanted_or_held_that_nobody_needs(self) -> None:
        """EX-06."""
        if hasattr(self, "slots"):
            waiting = self.waiting_subtasks()
            assert all(group & waiting for group in self.wanted.values())
            for allocation_id, group in self.reserved.items():
                assert group & waiting or allocation_id in self.in_slot.values()

    @invariant()
    def it_knows_the_slots_that_it_has_and_no_others(self) -> None:
        if hasattr(self, "slots"):
            held_on = {
                (allocation_id, where)
                for where, allocations in self.region_slots._held_on.items()
                for allocation_id in allocations
            }
            assert held_on == set(self.region_slots._held.items())
            assert self.region_slots._held.keys() == self.reserved.keys()
            shares = {o for within in self.region_slots._waiting_in.values() for o in within}
            assert shares <= self.waiting_subtasks()
            assert all(self.region_slots._waiting_in.values())
            assert all(self.region_slots._held_on.values())

    @invariant()
    def it_says_why_a_job_is_pending(self) -> None:
        if hasattr(self, "slots"):
            reason = self.region_slots.why_pending()
            assert (reason is not None) == bool(self.waiting)
            if reason is not None:
                numbers = re.findall(r"(\d+) slots? .*?(?:has|have) not come yet\.", reason)
                assert sum(map(int, numbers)) == len(self.wanted)
            assert self.region_slots.requests_made == len(self.asked)

    def teardown(self) -> None:
        """Left alone all that waits runs; and when it has ended, every slot is back."""
        if not hasattr(self, "slots"):
            return
        while self.wanted:
            request_id = min(self.wanted)
            slot = self.reserve(self.wanted.pop(request_id), HOSTS[0], again=True)
            self.tell(t.SlotsTold((SlotAllocated(request_id, slot),)))
        assert not self.waiting
        for ordinal in sorted(self.in_slot):
            self.end(ordinal)
        assert not self.reserved


TestPlacement = PlacementMachine.TestCase
TestPlacement.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
