"""SlotComparison between a TaskExecutor's slots and JobMasters whose heartbeats come late."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.actors.gateways.messages import AllocatedSlotReport
from flinkray.actors.task_executor.slot_offering import SlotComparison
from flinkray.core.ids import AllocationID, JobID, ResourceID
from flinkray.scheduler.task_slots.task_slot_table import CleanSlot, SlotTableAction, TaskSlotTable
from tests.scheduler.builders import JOB, OTHER_JOB, SMALL, allocation

SLOTS = 4
JOBS = (JOB, OTHER_JOB)
jobs = st.sampled_from(JOBS)


class SlotComparisonMachine(RuleBasedStateMachine):
    """The model: what each side holds, the heartbeats under way, and all comparisons so far."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TaskSlotTable(ResourceID("te"), SMALL.times(SLOTS), SLOTS)
        self.comparison = SlotComparison(self.table)
        self.numbers = count(1)
        self.indexes: dict[AllocationID, int] = {}
        self.allocated: dict[JobID, set[AllocationID]] = {job: set() for job in JOBS}
        """Here, and not used yet."""
        self.active: dict[JobID, set[AllocationID]] = {job: set() for job in JOBS}
        """Here, and used."""
        self.freeing: dict[AllocationID, JobID] = {}
        self.held: dict[JobID, set[AllocationID]] = {job: set() for job in JOBS}
        """By what the JobMaster knows."""
        self.heartbeats: list[AllocatedSlotReport] = []
        """Under way, in their order."""
        self.compared: dict[JobID, list[set[AllocationID]]] = {job: [] for job in JOBS}
        """Of each comparison, what was active here and unknown there."""

    def carry_out(self, actions: list[SlotTableAction]) -> None:
        for action in actions:
            assert isinstance(action, CleanSlot)
            self.allocated[action.job_id].discard(action.allocation_id)
            self.active[action.job_id].discard(action.allocation_id)
            self.freeing[action.allocation_id] = action.job_id

    # the TaskExecutor

    @precondition(lambda self: len(self.indexes) < SLOTS)
    @rule(job=jobs, is_known=st.booleans(), is_used=st.booleans())
    def slot_is_allocated(self, job: JobID, is_known: bool, is_used: bool) -> None:
        """*is_known*: to the JobMaster, before it is used here."""
        allocation_id = allocation(next(self.numbers))
        index = min({*range(SLOTS)} - {*self.indexes.values()})
        self.table.allocate_slot(index, job, allocation_id, SMALL, 0.0)
        self.indexes[allocation_id] = index
        self.allocated[job].add(allocation_id)
        if is_known:
            self.held[job].add(allocation_id)
        if is_used:
            self.activate(job, allocation_id)

    @precondition(lambda self: any(self.allocated.values()))
    @rule(data=st.data())
    def slot_is_used(self, data: st.DataObject) -> None:
        waiting = [(job, a) for job in JOBS for a in sorted(self.allocated[job])]
        self.activate(*data.draw(st.sampled_from(waiting)))

    def activate(self, job: JobID, allocation_id: AllocationID) -> None:
        assert self.table.mark_slot_active(allocation_id)
        self.allocated[job].remove(allocation_id)
        self.active[job].add(allocation_id)

    @precondition(lambda self: self.indexes)
    @rule(data=st.data())
    def slot_is_freed(self, data: st.DataObject) -> None:
        """Whoever wanted that."""
        allocation_id = data.draw(st.sampled_from(sorted(self.indexes)))
        self.carry_out(self.table.free_slot(allocation_id, "not needed"))

    @precondition(lambda self: self.freeing)
    @rule(data=st.data())
    def slot_is_clean(self, data: st.DataObject) -> None:
        self.cleaned(data.draw(st.sampled_from(sorted(self.freeing))))

    def cleaned(self, allocation_id: AllocationID) -> None:
        """With its last slot the job is forgotten."""
        job = self.freeing.pop(allocation_id)
        del self.indexes[allocation_id]
        self.table.slot_cleaned(allocation_id)
        if not self.table.allocations_of(job):
            self.comparison.forget(job)
            self.compared[job].clear()

    # the JobMaster

    @rule(data=st.data(), job=jobs, is_wrong=st.booleans())
    def job_master_forgets_a_slot_or_learns_of_one(
        self, data: st.DataObject, job: JobID, is_wrong: bool
    ) -> None:
        """*is_wrong*: of one that is not here."""
        if is_wrong:
            self.held[job].add(allocation(1000 + next(self.numbers)))
            return
        known = sorted(self.held[job] | self.active[job] | self.allocated[job])
        if known:
            self.held[job] ^= {data.draw(st.sampled_from(known))}

    @rule(job=jobs)
    def job_master_sends_a_heartbeat(self, job: JobID) -> None:
        self.heartbeats.append(AllocatedSlotReport(job, tuple(sorted(self.held[job]))))

    @precondition(lambda self: self.heartbeats)
    @rule()
    def heartbeat_comes(self) -> None:
        self.compare(self.heartbeats.pop(0))

    @rule(job=jobs)
    def heartbeat_is_sent_and_comes(self, job: JobID) -> None:
        """After those that are under way."""
        self.job_master_sends_a_heartbeat(job)
        while self.heartbeats:
            self.compare(self.heartbeats.pop(0))

    def compare(self, report: AllocatedSlotReport) -> None:
        job, listed = report.job_id, set(report.allocations)
        difference = self.comparison.compare(report)
        assert {*difference.unknown_here} == {a for a in listed if a not in self.indexes}
        self.compared[job].append(self.active[job] - listed)
        *_, before, now = [set(), *self.compared[job]]
        assert difference.unknown_there == tuple(sorted(before & now))
        for allocation_id in difference.unknown_here:
            self.held[job].discard(allocation_id)
        for allocation_id in difference.unknown_there:
            self.carry_out(self.table.free_slot(allocation_id, "unknown to its JobMaster"))

    # what holds

    @invariant()
    def slots_are_where_the_model_has_them(self) -> None:
        for job in JOBS:
            freeing = {a for a, of in self.freeing.items() if of == job}
            here = self.active[job] | self.allocated[job] | freeing
            assert {*self.table.allocations_of(job)} == here

    def teardown(self) -> None:
        """When nothing changes any more, three heartbeats bring both sides in line: the first may
        be the first that lacks a slot; and what both have is kept."""
        agreed = {job: self.active[job] & self.held[job] for job in JOBS}
        self.heartbeats.clear()
        for allocation_id in sorted(self.freeing):
            self.cleaned(allocation_id)
        for _ in range(3):
            for job in JOBS:
                self.heartbeat_is_sent_and_comes(job)
            for allocation_id in sorted(self.freeing):
                self.cleaned(allocation_id)
        for job in JOBS:
            assert self.active[job] == agreed[job]
            assert self.held[job] <= self.active[job] | self.allocated[job]


TestSlotComparison = SlotComparisonMachine.TestCase
TestSlotComparison.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
