"""TaskSlotTable under any sequence of events, beside a model of what is in each slot."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.core.errors import SlotAllocationError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    JobID,
    ResourceID,
    SlotID,
)
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.task_slots.task_slot_table import (
    EndTask,
    Offering,
    SlotTableAction,
    TaskSlotTable,
)
from tests.scheduler.builders import GIB, GRAPH, JOB, OTHER_JOB, SMALL, VERTEX, allocation

NAME = ResourceID("te")
SLOTS = 3
TOTAL = SMALL.times(SLOTS)
TIMEOUT, KEEP_TIMEOUT = 10.0, 15.0
PROFILES = st.sampled_from([SMALL, ResourceProfile(0.5, GIB // 2), ResourceProfile(2.0, 2 * GIB)])
ALLOCATIONS = st.integers(1, 6).map(allocation)
JOBS = st.sampled_from([JOB, OTHER_JOB])


@dataclass
class Slot:
    """What the model knows of an allocation."""

    index: int
    job_id: JobID
    profile: ResourceProfile
    is_dynamic: bool
    deadline: float | None
    is_freed: bool = False
    is_being_cleaned: bool = False
    is_held: bool = False
    """Until the next JobMaster has said whether it is its own."""
    is_vacated: bool = False
    """It is not; until it has been offered it."""
    is_kept: bool = False
    """Vacated, and clean."""
    tasks: set[ExecutionAttemptID] = field(default_factory=set)
    offer: int = 0

    @property
    def can_be_offered(self) -> bool:
        if self.is_held or self.deadline is None:
            return False
        return self.is_kept or not self.is_vacated

    def activate(self) -> None:
        self.deadline = None
        self.is_held = self.is_vacated = self.is_kept = False


class TaskSlotTableMachine(RuleBasedStateMachine):
    """Ends tasks and cleans slots in any order, as late as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TaskSlotTable(NAME, TOTAL, SLOTS, TIMEOUT, KEEP_TIMEOUT)
        self.now = 0.0
        self.slots: dict[AllocationID, Slot] = {}
        self.ending: set[ExecutionAttemptID] = set()
        self.offerings: list[Offering] = []
        self.numbers: dict[JobID, int] = {}
        self.next_task = 0
        self.is_closed = False

    def carry_out(self, actions: list[SlotTableAction]) -> None:
        for action in actions:
            if isinstance(action, EndTask):
                assert action.attempt_id not in self.ending, "a task is ended once"
                self.ending.add(action.attempt_id)
            else:
                slot = self.slots[action.allocation_id]
                assert slot.is_freed or slot.is_vacated
                assert not slot.tasks, "a slot is clean when nothing runs in it"
                assert not slot.is_being_cleaned, "a slot is cleaned once"
                slot.is_being_cleaned = True

    def freed(self, allocation_id: AllocationID) -> None:
        slot = self.slots[allocation_id]
        slot.is_freed, slot.is_held, slot.deadline = True, False, None

    @property
    def used(self) -> ResourceProfile:
        return sum((slot.profile for slot in self.slots.values()), start=ResourceProfile(0.0))

    # allocation

    @rule(index=st.integers(-1, SLOTS), job=JOBS, allocation_id=ALLOCATIONS, profile=PROFILES)
    def allocate(
        self, index: int, job: JobID, allocation_id: AllocationID, profile: ResourceProfile
    ) -> None:
        held = self.slots.get(allocation_id)
        try:
            slot_id = self.table.allocate_slot(index, job, allocation_id, profile, self.now)
        except SlotAllocationError:
            assert not self.could_allocate(index, allocation_id, profile)
            return
        if held is not None:
            same = held.is_dynamic if index < 0 else held.index == index
            assert same
            assert held.job_id == job
            assert not held.is_freed
            assert slot_id == SlotID(NAME, held.index)
            return
        assert self.could_allocate(index, allocation_id, profile)
        assert all(slot.index != slot_id.slot_index for slot in self.slots.values())
        taken = profile if index < 0 else SMALL
        self.slots[allocation_id] = Slot(
            slot_id.slot_index, job, taken, index < 0, self.now + TIMEOUT
        )

    def could_allocate(
        self, index: int, allocation_id: AllocationID, profile: ResourceProfile
    ) -> bool:
        if self.is_closed or allocation_id in self.slots or index >= SLOTS:
            return False
        taken = profile if index < 0 else SMALL
        if index >= 0 and not profile.fits_into(SMALL):
            return False
        is_free = all(slot.index != index for slot in self.slots.values())
        return is_free and (self.used + taken).fits_into(TOTAL)

    # offers

    @rule(job=JOBS)
    def offer(self, job: JobID) -> None:
        inactive = {
            a for a, slot in self.slots.items() if slot.job_id == job and slot.can_be_offered
        }
        offering = self.table.offer_slots(job)
        assert (offering is None) == (not inactive)
        if offering is not None:
            assert {offer.allocation_id for offer in offering.offers} == inactive
            for allocation_id in inactive:
                self.slots[allocation_id].offer = offering.number
            self.offerings.append(offering)

    @precondition(lambda self: self.offerings)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        offering = data.draw(st.sampled_from(self.offerings))
        self.offerings.remove(offering)
        offered = [offer.allocation_id for offer in offering.offers]
        accepted = tuple(a for a in offered if data.draw(st.booleans()))
        before = {a: (s.deadline, s.is_freed) for a, s in self.slots.items()}
        for allocation_id in offered:
            slot = self.slots.get(allocation_id)
            if slot is None or slot.is_freed or slot.job_id != offering.job_id:
                continue
            if slot.offer != offering.number:
                continue
            if allocation_id in accepted:
                slot.activate()
            elif slot.deadline is not None:
                self.freed(allocation_id)
        self.carry_out(self.table.offer_answered(offering, accepted, self.now))
        for allocation_id, state in before.items():
            newer = self.slots[allocation_id].offer != offering.number
            if newer and allocation_id in offered:
                slot = self.slots[allocation_id]
                assert (slot.deadline, slot.is_freed) == state, "an outdated answer counts nothing"

    @rule(job=JOBS)
    def job_master_is_lost(self, job: JobID) -> None:
        for allocation_id, slot in self.slots.items():
            if slot.job_id != job or slot.is_freed:
                continue
            if slot.is_vacated:
                slot.offer = 0
            elif slot.deadline is not None and not slot.is_held:
                self.freed(allocation_id)
            else:
                slot.is_held, slot.offer = True, 0
                slot.deadline = self.now + KEEP_TIMEOUT
        running = {t for slot in self.slots.values() for t in slot.tasks if slot.is_held}
        actions = self.table.hold_slots_of_job(job, "it died", self.now)
        assert running.isdisjoint(a.attempt_id for a in actions if isinstance(a, EndTask))
        self.carry_out(actions)

    @rule(job=JOBS)
    def next_job_master_is_registered_at(self, job: JobID) -> None:
        for slot in self.slots.values():
            if slot.job_id == job and slot.is_held:
                slot.deadline = self.now + KEEP_TIMEOUT
        self.table.job_master_registered(job, self.now)

    @rule(job=JOBS, adopted=st.frozensets(ALLOCATIONS))
    def next_job_master_adopts(self, job: JobID, adopted: frozenset[AllocationID]) -> None:
        for allocation_id, slot in self.slots.items():
            if slot.job_id != job or not slot.is_held:
                continue
            if allocation_id in adopted:
                slot.activate()
            else:
                slot.is_held, slot.is_vacated = False, True
                slot.deadline = self.now + KEEP_TIMEOUT
        self.carry_out(self.table.adopt_slots(job, adopted, self.now))

    # tasks

    @rule(allocation_id=ALLOCATIONS, job_id=JOBS)
    def submit(self, allocation_id: AllocationID, job_id: JobID) -> None:
        attempt = ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, 0), self.next_task)
        slot = self.slots.get(allocation_id)
        try:
            self.table.add_task(attempt, job_id, allocation_id)
        except SlotAllocationError:
            if slot is not None and slot.job_id == job_id and not slot.is_freed:
                assert slot.is_held or slot.is_vacated
                assert not (slot.is_kept and slot.offer), "it is offered to the next JobMaster"
            return
        assert slot is not None
        assert not slot.is_freed
        assert not slot.is_held, "who has not adopted it puts nothing there"
        assert not slot.is_vacated or (slot.is_kept and slot.offer)
        assert slot.job_id == job_id
        self.next_task += 1
        slot.tasks.add(attempt)
        slot.activate()

    @precondition(lambda self: any(slot.tasks for slot in self.slots.values()))
    @rule(data=st.data())
    def task_ends(self, data: st.DataObject) -> None:
        tasks = sorted(
            (t for slot in self.slots.values() for t in slot.tasks), key=lambda t: t.attempt_number
        )
        attempt = data.draw(st.sampled_from(tasks))
        self.ending.discard(attempt)
        for slot in self.slots.values():
            slot.tasks.discard(attempt)
        self.carry_out(self.table.remove_task(attempt))
        assert self.table.remove_task(attempt) == []

    # freeing

    @rule(allocation_id=ALLOCATIONS)
    def free(self, allocation_id: AllocationID) -> None:
        slot = self.slots.get(allocation_id)
        news = slot is not None and not slot.is_freed
        if slot is not None and news:
            news = slot.is_kept or not slot.is_vacated  # else that was ordered before
            self.freed(allocation_id)
        actions = self.table.free_slot(allocation_id, "not needed")
        assert bool(actions) == news
        self.carry_out(actions)

    @rule(job=JOBS, only_inactive=st.booleans())
    def free_job(self, job: JobID, only_inactive: bool) -> None:
        for allocation_id, slot in self.slots.items():
            is_kept = slot.is_held or slot.is_vacated or slot.is_freed
            if slot.job_id == job and not is_kept and (slot.deadline or not only_inactive):
                self.freed(allocation_id)
        free = self.table.free_slots_of_job
        if only_inactive:
            free = self.table.free_inactive_slots_of_job
        self.carry_out(free(job, "its master is gone"))

    @precondition(lambda self: any(slot.is_being_cleaned for slot in self.slots.values()))
    @rule(data=st.data())
    def cleaned(self, data: st.DataObject) -> None:
        ready = sorted(a for a, slot in self.slots.items() if slot.is_being_cleaned)
        allocation_id = data.draw(st.sampled_from(ready))
        slot = self.slots[allocation_id]
        slot.is_being_cleaned = False
        if not slot.is_freed:
            slot.is_kept = True
            assert self.table.slot_cleaned(allocation_id) is None
            return
        del self.slots[allocation_id]
        assert self.table.slot_cleaned(allocation_id) == SlotID(NAME, slot.index)
        assert self.table.slot_cleaned(allocation_id) is None

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for allocation_id, slot in self.slots.items():
            if slot.deadline is not None and slot.deadline <= self.now:
                self.freed(allocation_id)
        self.carry_out(self.table.free_timed_out_slots(self.now))

    @rule()
    def close(self) -> None:
        if self.next_task < 5:
            return  # late enough that something has happened
        self.is_closed = True
        for allocation_id in self.slots:
            self.freed(allocation_id)
        self.carry_out(self.table.close("it stops"))

    # what must hold

    @invariant()
    def the_report_is_the_model(self) -> None:
        report = {status.slot_id.slot_index: status for status in self.table.report().slots}
        by_index = {slot.index: (a, slot) for a, slot in self.slots.items()}
        assert set(report) == {*range(SLOTS), *by_index}
        for index, status in report.items():
            if index in by_index:
                allocation_id, slot = by_index[index]
                assert (status.job_id, status.allocation_id) == (slot.job_id, allocation_id)
                assert (status.profile, status.is_dynamic) == (slot.profile, slot.is_dynamic)
            else:
                assert status.allocation_id is None

    @invariant()
    def no_more_is_given_than_there_is(self) -> None:
        assert self.used.fits_into(TOTAL)
        assert len({slot.index for slot in self.slots.values()}) == len(self.slots)

    @invariant()
    def tasks_are_where_they_were_put(self) -> None:
        for allocation_id, slot in self.slots.items():
            assert set(self.table.tasks_of(allocation_id)) == slot.tasks
            assert self.table.is_being_freed(allocation_id) == slot.is_freed
            assert self.table.is_kept(allocation_id) == (slot.is_kept and not slot.is_freed)
            if slot.is_freed or slot.is_vacated:
                assert slot.tasks <= self.ending, "who frees a slot ends what runs in it"
        assert self.table.is_empty == (not self.slots)

    @invariant()
    def what_is_held_runs_on(self) -> None:
        for job in (JOB, OTHER_JOB):
            held = [s for s in self.slots.values() if s.job_id == job and s.is_held]
            assert self.table.holds_slots_of(job) == bool(held)
            assert self.table.held_tasks_of(job) == {t for slot in held for t in slot.tasks}
            assert self.ending.isdisjoint(self.table.held_tasks_of(job))
            used = {
                a
                for a, s in self.slots.items()
                if s.job_id == job and not s.is_freed and (s.is_held or s.deadline is None)
            }
            assert {offer.allocation_id for offer in self.table.slots_in_use(job)} == used

    @invariant()
    def unused_slots_have_an_end(self) -> None:
        deadlines = [s.deadline for s in self.slots.values() if s.deadline is not None]
        assert self.table.next_deadline() == min(deadlines, default=None)

    def teardown(self) -> None:
        """Closed, its tasks ended and its slots cleaned, it is empty."""
        for allocation_id in self.slots:
            self.freed(allocation_id)
        self.carry_out(self.table.close("it stops"))
        for slot in self.slots.values():
            for attempt in sorted(slot.tasks, key=lambda task: task.attempt_number):
                slot.tasks.discard(attempt)
                self.carry_out(self.table.remove_task(attempt))
        for allocation_id, slot in self.slots.items():
            assert slot.is_being_cleaned
            self.table.slot_cleaned(allocation_id)
        assert self.table.is_empty


TestTaskSlotTable = TaskSlotTableMachine.TestCase
TestTaskSlotTable.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
