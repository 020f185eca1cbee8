"""The slots of one TaskExecutor and what runs in them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from flinkray.core.errors import SlotAllocationError
from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID, SlotID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    SameWorkerGroup,
    SlotOffer,
    SlotReport,
    SlotStatus,
    profile_of_slot,
)
from flinkray.scheduler.shared.story import Story


@dataclass(frozen=True, slots=True)
class EndTask:
    """Cancel a task; call ``remove_task`` when it has ended."""

    attempt_id: ExecutionAttemptID
    reason: str


@dataclass(frozen=True, slots=True)
class CleanSlot:
    """No task is left in a slot that is being freed or vacated: end what they left behind, then
    call ``slot_cleaned``."""

    slot_id: SlotID
    job_id: JobID
    allocation_id: AllocationID
    reason: str


SlotTableAction = EndTask | CleanSlot


@dataclass(frozen=True, slots=True)
class Offering:
    """Slots to be offered to a job, under a number that grows per job (TM-12)."""

    job_id: JobID
    number: int
    offers: tuple[SlotOffer, ...]


@dataclass(frozen=True, slots=True)
class SlotDifference:
    """How a JobMaster's view of its slots differs from the table (TM-16)."""

    unknown_here: tuple[AllocationID, ...]
    """To be reported to the JobMaster as failed."""
    unknown_there: tuple[AllocationID, ...]
    """Active here, unknown to the JobMaster: to be freed."""


class _State(Enum):
    ALLOCATED = "allocated"
    ACTIVE = "active"
    HELD = "held"
    """Its JobMaster is lost: what runs in it runs on, until another one says whose it is."""
    VACATING = "vacating"
    """No JobMaster wants what a lost one has left in the slot: that ends."""
    KEPT = "kept"
    """Empty, and the job's next JobMaster is to be offered it."""
    RELEASING = "releasing"


_NOT_ACTIVE = (_State.ALLOCATED, _State.KEPT)


@dataclass(slots=True, eq=False)
class _TaskSlot:
    index: int
    is_dynamic: bool
    job_id: JobID
    allocation_id: AllocationID
    profile: ResourceProfile
    constraint: SameWorkerGroup | None
    deadline: float | None
    state: _State = _State.ALLOCATED
    offer_number: int = 0
    reason: str = ""
    """Why it is being freed or vacated."""
    is_cleaning: bool = False
    tasks: dict[ExecutionAttemptID, None] = field(default_factory=dict)

    def is_same(self, slot_index: int, job_id: JobID) -> bool:
        wanted = self.is_dynamic if slot_index < 0 else self.index == slot_index
        return wanted and self.job_id == job_id and self.state is not _State.RELEASING


def _names(slot: _TaskSlot) -> str:
    return f"job {slot.job_id.short()}, allocation {slot.allocation_id.short()}"


class TaskSlotTable:
    """Allocation, activation and release of slots.  ``now`` is in monotonic seconds."""

    def __init__(
        self,
        resource_id: ResourceID,
        total_profile: ResourceProfile,
        number_of_slots: int,
        slot_timeout: float = 10.0,
        keep_timeout: float = 60.0,
    ) -> None:
        """*slot_timeout*, seconds: a slot that is allocated and not active for so long is given up
        (TM-21).  *keep_timeout*, seconds: the same of a slot whose JobMaster is lost."""
        self._resource_id = resource_id
        self._free_profile = total_profile
        self._number_of_slots = number_of_slots
        self._slot_profile = profile_of_slot(total_profile, number_of_slots)
        self._slot_timeout = slot_timeout
        self._keep_timeout = keep_timeout
        self._slots: dict[AllocationID, _TaskSlot] = {}
        self._tasks: dict[ExecutionAttemptID, AllocationID] = {}
        self._offer_numbers: dict[JobID, int] = {}
        self._closed = False
        self._now = -inf
        """Of the last event that came with the time: that is what the story shows."""
        self._story = Story(f"the slot table of {resource_id}", limit=200)

    def allocate_slot(
        self,
        slot_index: int,
        job_id: JobID,
        allocation_id: AllocationID,
        profile: ResourceProfile,
        now: float,
        constraint: SameWorkerGroup | None = None,
    ) -> SlotID:
        """Allocate a slot for a job; again with the same arguments: nothing changes.  Index -1: a
        dynamic slot.  The *constraint* is what it will be offered with.

        Raises:
            SlotAllocationError: no such slot, it is not free, the allocation has another one, the
            profile is too large,
                or the table is closed.
        """
        self._now = now
        held = self._slots.get(allocation_id)
        if held is not None and held.is_same(slot_index, job_id):
            return self._slot_id(held)
        self._refuse_unless_possible(slot_index, job_id, allocation_id, profile)
        is_dynamic = slot_index < 0
        index = self._new_dynamic_index() if is_dynamic else slot_index
        slot = _TaskSlot(
            index=index,
            is_dynamic=is_dynamic,
            job_id=job_id,
            allocation_id=allocation_id,
            profile=profile if is_dynamic else self._slot_profile,
            constraint=constraint,
            deadline=now + self._slot_timeout,
        )
        self._free_profile -= slot.profile
        self._slots[allocation_id] = slot
        self._story.add(self._now, f"slot {index} allocated to {_names(slot)}")
        return self._slot_id(slot)

    def mark_slot_active(self, allocation_id: AllocationID) -> bool:
        """The job uses the slot; False: it is unknown, or held, being freed or being vacated."""
        slot = self._slots.get(allocation_id)
        if slot is None or slot.state in (_State.HELD, _State.VACATING, _State.RELEASING):
            return False
        slot.state, slot.deadline = _State.ACTIVE, None
        return True

    def hold_slots_of_job(self, job_id: JobID, reason: str, now: float) -> list[SlotTableAction]:
        """The job's JobMaster is lost.  The slots that it used stay as they are, with their tasks,
        until another one adopts them, for the keep time-out; those that it had not accepted are
        freed.  What it still answers to offers does not count."""
        self._now = now
        actions: list[SlotTableAction] = []
        for slot in self._slots_of(job_id):
            match slot.state:
                case _State.ALLOCATED:
                    actions += self.free_slot(slot.allocation_id, reason)
                case _State.ACTIVE | _State.HELD:
                    slot.state, slot.deadline = _State.HELD, now + self._keep_timeout
                    slot.offer_number, slot.reason = 0, reason
                    self._story.add(now, f"slot {slot.index} of {_names(slot)} is held: {reason}")
                case _State.KEPT:
                    slot.offer_number = 0
        return actions

    def job_master_registered(self, job_id: JobID, now: float) -> None:
        """The job has a JobMaster again, which has the whole keep time-out to say what it adopts of
        the slots that are held."""
        self._now = now
        for slot in self._slots_of(job_id):
            if slot.state is _State.HELD:
                slot.deadline = now + self._keep_timeout

    def adopt_slots(
        self, job_id: JobID, allocations: Container[AllocationID], now: float
    ) -> list[SlotTableAction]:
        """Of the slots that are held for the job's JobMaster these are its own, with the tasks in
        them.  The others are vacated: they end their tasks, and can be offered when they are clean,
        for the keep time-out.  Others than slots that are held stay as they are."""
        self._now = now
        actions: list[SlotTableAction] = []
        for slot in self._slots_of(job_id):
            if slot.state is not _State.HELD:
                continue
            if slot.allocation_id in allocations:
                slot.state, slot.deadline = _State.ACTIVE, None
                self._story.add(now, f"slot {slot.index} of {_names(slot)} is adopted")
            else:
                slot.state, slot.deadline = _State.VACATING, now + self._keep_timeout
                self._story.add(now, f"slot {slot.index} of {_names(slot)} is vacated")
                actions += [EndTask(attempt_id, slot.reason) for attempt_id in slot.tasks]
                actions += self._clean_when_empty(slot)
        return actions

    def offer_slots(self, job_id: JobID) -> Offering | None:
        """The job's slots that are not active: allocated or kept; None: there are none."""
        slots = [s for s in self._slots_of(job_id) if s.state in _NOT_ACTIVE]
        if not slots:
            return None
        number = self._offer_numbers.get(job_id, 0) + 1
        self._offer_numbers[job_id] = number
        for slot in slots:
            slot.offer_number = number
        offers = tuple(SlotOffer(s.allocation_id, s.index, s.profile, s.constraint) for s in slots)
        return Offering(job_id, number, offers)

    def offer_answered(
        self, offering: Offering, accepted: tuple[AllocationID, ...], now: float
    ) -> list[SlotTableAction]:
        """Accepted slots are active, the others are freed; what a newer offering covers is left
        alone (TM-12)."""
        self._now = now
        actions: list[SlotTableAction] = []
        for offer in offering.offers:
            slot = self._slots.get(offer.allocation_id)
            if slot is None or slot.offer_number != offering.number:
                continue
            if offer.allocation_id in accepted:
                self.mark_slot_active(offer.allocation_id)
            elif slot.state in _NOT_ACTIVE:
                reason = f"the master of job {offering.job_id} did not accept it"
                actions += self.free_slot(offer.allocation_id, reason)
        return actions

    def add_task(
        self, attempt_id: ExecutionAttemptID, job_id: JobID, allocation_id: AllocationID
    ) -> None:
        """A task is submitted to a slot of its job and makes it active (TM-11).

        Raises:
            SlotAllocationError: the allocation is unknown, another job's, being freed or vacated,
            held for a JobMaster that has not adopted it or kept for one that it has not been
            offered to, or the attempt is here already.
        """
        if attempt_id in self._tasks:
            raise SlotAllocationError(f"task {attempt_id} is in {self._resource_id} already")
        slot = self._slots.get(allocation_id)
        why = None
        if slot is None:
            why = "is not there"
        elif slot.job_id != job_id:
            why = f"is that of job {slot.job_id}"
        elif slot.state is _State.KEPT and not slot.offer_number:
            why = "is kept for the job's next JobMaster"
        elif slot.state is _State.HELD:
            why = "is held until the job's next JobMaster has adopted it"
        elif not self.mark_slot_active(allocation_id):
            why = f"is being {'vacated' if slot.state is _State.VACATING else 'freed'}"
        if slot is None or why is not None:
            raise SlotAllocationError(
                f"task {attempt_id} of job {job_id} cannot run in {self._resource_id}: "
                f"the slot of allocation {allocation_id} {why}"
            )
        slot.tasks[attempt_id] = None
        self._tasks[attempt_id] = allocation_id

    def remove_task(self, attempt_id: ExecutionAttemptID) -> list[SlotTableAction]:
        """The task has ended; unknown ones are ignored."""
        allocation_id = self._tasks.pop(attempt_id, None)
        if allocation_id is None:
            return []
        slot = self._slots[allocation_id]
        del slot.tasks[attempt_id]
        is_ending = slot.state in (_State.RELEASING, _State.VACATING)
        return self._clean_when_empty(slot) if is_ending else []

    def free_slot(self, allocation_id: AllocationID, reason: str) -> list[SlotTableAction]:
        """End the slot's tasks and free it; again, or unknown: nothing."""
        slot = self._slots.get(allocation_id)
        if slot is None or slot.state is _State.RELEASING:
            return []
        is_ending = slot.state is _State.VACATING
        slot.state, slot.deadline, slot.reason = _State.RELEASING, None, reason
        self._story.add(self._now, f"slot {slot.index} of {_names(slot)} is being freed: {reason}")
        if is_ending:
            return []
        return [EndTask(attempt_id, reason) for attempt_id in slot.tasks] + self._clean_when_empty(
            slot
        )

    def slot_cleaned(self, allocation_id: AllocationID) -> SlotID | None:
        """A CleanSlot is carried out: the slot is free, and the ResourceManager is to be told.

        None: it is not, but is kept for its job and can be offered.
        """
        slot = self._slots.get(allocation_id)
        if slot is None:
            return None
        if not slot.is_cleaning or slot.tasks:
            raise self._story.illegal(f"take slot {slot.index} for clean: it is in use")
        slot.is_cleaning = False
        if slot.state is _State.VACATING:
            slot.state = _State.KEPT
            self._story.add(self._now, f"slot {slot.index} is kept for {_names(slot)}")
            return None
        del self._slots[allocation_id]
        self._free_profile += slot.profile
        self._story.add(self._now, f"slot {slot.index} is free")
        if not self._slots_of(slot.job_id):
            self._offer_numbers.pop(slot.job_id, None)
        return self._slot_id(slot)

    def free_slots_of_job(self, job_id: JobID, reason: str) -> list[SlotTableAction]:
        """Free all slots of a job, but for those that are held or kept for its next JobMaster: who
        has lost them is not asked any more."""
        actions: list[SlotTableAction] = []
        for slot in self._slots_of(job_id):
            if slot.state in (_State.ALLOCATED, _State.ACTIVE):
                actions += self.free_slot(slot.allocation_id, reason)
        return actions

    def free_inactive_slots_of_job(self, job_id: JobID, reason: str) -> list[SlotTableAction]:
        """Free the slots that the job has been given and does not use (SM-18)."""
        actions: list[SlotTableAction] = []
        for slot in self._slots_of(job_id):
            if slot.state is _State.ALLOCATED:
                actions += self.free_slot(slot.allocation_id, reason)
        return actions

    def free_timed_out_slots(self, now: float) -> list[SlotTableAction]:
        """Free the slots that were allocated and not active for the slot time-out, and those that
        no other JobMaster has taken within the keep time-out."""
        self._now = now
        actions: list[SlotTableAction] = []
        for slot in list(self._slots.values()):
            if slot.deadline is not None and slot.deadline <= now:
                reason = f"no job used it for {self._slot_timeout:g} s"
                if slot.state is not _State.ALLOCATED:
                    reason = f"no JobMaster took it for {self._keep_timeout:g} s: {slot.reason}"
                actions += self.free_slot(slot.allocation_id, reason)
        return actions

    def next_deadline(self) -> float | None:
        """When :meth:`free_timed_out_slots` has something to do next."""
        deadlines = [s.deadline for s in self._slots.values() if s.deadline is not None]
        return min(deadlines, default=None)

    def compare_with_job_master(
        self, job_id: JobID, allocations: tuple[AllocationID, ...]
    ) -> SlotDifference:
        """Hold a JobMaster's report against the table (TM-16)."""
        here = {slot.allocation_id: slot for slot in self._slots_of(job_id)}
        return SlotDifference(
            unknown_here=tuple(a for a in allocations if a not in here),
            unknown_there=tuple(
                s.allocation_id
                for s in here.values()
                if s.state is _State.ACTIVE and s.allocation_id not in allocations
            ),
        )

    def report(self) -> SlotReport:
        """All slots, by index; one that is being freed is still its job's."""
        by_index = {slot.index: slot for slot in self._slots.values()}
        indexes = sorted({*range(self._number_of_slots), *by_index})
        return SlotReport(tuple(self._status(index, by_index.get(index)) for index in indexes))

    def job_of(self, allocation_id: AllocationID) -> JobID | None:
        """Whose the slot is (also while it is being freed); None: the allocation has none here."""
        slot = self._slots.get(allocation_id)
        return None if slot is None else slot.job_id

    def contains(self, allocation_id: AllocationID) -> bool:
        """Whether the allocation has a slot here (also while it is being freed)."""
        return allocation_id in self._slots

    def is_being_freed(self, allocation_id: AllocationID) -> bool:
        """Whether ``free_slot`` is under way for the allocation."""
        slot = self._slots.get(allocation_id)
        return slot is not None and slot.state is _State.RELEASING

    def is_kept(self, allocation_id: AllocationID) -> bool:
        """Whether the slot waits, empty, for its job's next JobMaster."""
        slot = self._slots.get(allocation_id)
        return slot is not None and slot.state is _State.KEPT

    def holds_slots_of(self, job_id: JobID) -> bool:
        """Whether there are slots of which the job's JobMaster has not said yet whose they are."""
        return any(slot.state is _State.HELD for slot in self._slots_of(job_id))

    def held_tasks_of(self, job_id: JobID) -> frozenset[ExecutionAttemptID]:
        """The tasks in these."""
        held = [slot for slot in self._slots_of(job_id) if slot.state is _State.HELD]
        return frozenset(attempt_id for slot in held for attempt_id in slot.tasks)

    def slots_in_use(self, job_id: JobID) -> tuple[SlotOffer, ...]:
        """The job's slots that are active or held, by slot index: a JobMaster has accepted them."""
        used = (_State.ACTIVE, _State.HELD)
        slots = [slot for slot in self._slots_of(job_id) if slot.state in used]
        return tuple(SlotOffer(s.allocation_id, s.index, s.profile, s.constraint) for s in slots)

    def tasks_of(self, allocation_id: AllocationID) -> tuple[ExecutionAttemptID, ...]:
        """The tasks in a slot."""
        slot = self._slots.get(allocation_id)
        return () if slot is None else tuple(slot.tasks)

    def slot_index(self, allocation_id: AllocationID) -> int:
        """Of an allocation that is here."""
        return self._slots[allocation_id].index

    def allocations_of(self, job_id: JobID) -> tuple[AllocationID, ...]:
        """The job's allocations, by slot index."""
        return tuple(slot.allocation_id for slot in self._slots_of(job_id))

    def jobs(self) -> tuple[JobID, ...]:
        """Jobs that have a slot here."""
        return tuple(dict.fromkeys(slot.job_id for slot in self._slots.values()))

    def close(self, reason: str) -> list[SlotTableAction]:
        """Free all slots and allocate none any more; closed for good when :attr:`is_empty`
        (TM-21)."""
        self._closed = True
        actions: list[SlotTableAction] = []
        for allocation_id in list(self._slots):
            actions += self.free_slot(allocation_id, reason)
        return actions

    @property
    def is_empty(self) -> bool:
        """Whether no slot is allocated."""
        return not self._slots

    def story(self) -> str:
        """What has happened to the slots, a line per event."""
        return str(self._story)

    def _slots_of(self, job_id: JobID) -> list[_TaskSlot]:
        slots = [slot for slot in self._slots.values() if slot.job_id == job_id]
        return sorted(slots, key=lambda slot: slot.index)

    def _slot_id(self, slot: _TaskSlot) -> SlotID:
        return SlotID(self._resource_id, slot.index)

    def _new_dynamic_index(self) -> int:
        used = {slot.index for slot in self._slots.values()}
        index = self._number_of_slots
        while index in used:
            index += 1
        return index

    def _status(self, index: int, slot: _TaskSlot | None) -> SlotStatus:
        slot_id = SlotID(self._resource_id, index)
        if slot is None:
            return SlotStatus(slot_id, self._slot_profile)
        return SlotStatus(slot_id, slot.profile, slot.job_id, slot.allocation_id, slot.is_dynamic)

    def _clean_when_empty(self, slot: _TaskSlot) -> list[SlotTableAction]:
        if slot.tasks:
            return []
        slot.is_cleaning = True
        return [CleanSlot(self._slot_id(slot), slot.job_id, slot.allocation_id, slot.reason)]

    def _refuse_unless_possible(
        self, slot_index: int, job_id: JobID, allocation_id: AllocationID, profile: ResourceProfile
    ) -> None:
        why = None
        room = self._free_profile if slot_index < 0 else self._slot_profile
        holder = next((s for s in self._slots.values() if s.index == slot_index), None)
        if self._closed:
            why = "it is shutting down"
        elif allocation_id in self._slots:
            held = self._slots[allocation_id]
            why = f"the allocation has slot {held.index} of job {held.job_id}"
        elif slot_index >= self._number_of_slots:
            why = f"it has {self._number_of_slots} slots, from 0"
        elif holder is not None:
            being_freed = " (it is being freed)" if holder.state is _State.RELEASING else ""
            why = f"the slot is that of {_names(holder)}{being_freed}"
        elif not profile.fits_into(room):
            why = f"{profile} is more than the {room} there is"
        elif not self._slot_profile.fits_into(self._free_profile) and slot_index >= 0:
            why = f"dynamic slots have left no more than {self._free_profile}"
        if why is not None:
            raise SlotAllocationError(
                f"{self._resource_id} cannot give slot {slot_index} to job {job_id}, "
                f"allocation {allocation_id}: {why}"
            )
