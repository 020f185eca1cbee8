"""Manages a TaskExecutor's slots and the tasks that run in them."""

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
    """End the processes that tasks left behind in a slot, and then call ``slot_cleaned``. The slot
    has no tasks, and is being freed, or emptied for the job's next JobMaster."""

    slot_id: SlotID
    job_id: JobID
    allocation_id: AllocationID
    reason: str


SlotTableAction = EndTask | CleanSlot


@dataclass(frozen=True, slots=True)
class Offering:
    """Slots to offer to a job, with an offering number that increases per job (TM-12)."""

    job_id: JobID
    number: int
    offers: tuple[SlotOffer, ...]


@dataclass(frozen=True, slots=True)
class SlotDifference:
    """Slots of a job that only its JobMaster knows, and slots that only the TaskExecutor's table
    has (TM-16)."""

    unknown_here: tuple[AllocationID, ...]
    """Allocations that the table does not have; they are reported to the JobMaster as failed."""
    unknown_there: tuple[AllocationID, ...]
    """Active allocations that the JobMaster does not know; they are to be freed."""


class _State(Enum):
    ALLOCATED = "allocated"
    ACTIVE = "active"
    HELD = "held"
    """The JobMaster is lost; tasks keep running until another JobMaster decides about the slot."""
    VACATING = "vacating"
    """No JobMaster adopts the slot of a lost JobMaster; its tasks are being ended."""
    KEPT = "kept"
    """The slot is empty, and is to be offered to the job's next JobMaster."""
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
    """Why the slot is being freed or vacated."""
    is_cleaning: bool = False
    tasks: dict[ExecutionAttemptID, None] = field(default_factory=dict)

    def is_same(self, slot_index: int, job_id: JobID) -> bool:
        wanted = self.is_dynamic if slot_index < 0 else self.index == slot_index
        return wanted and self.job_id == job_id and self.state is not _State.RELEASING


def _names(slot: _TaskSlot) -> str:
    return f"job {slot.job_id.short()}, allocation {slot.allocation_id.short()}"


class TaskSlotTable:
    """Decides about the slots of a TaskExecutor: allocates, offers, activates and frees them. A
    slot is *active* when its JobMaster has accepted it. If the JobMaster is lost, its active slots
    are *held* with their tasks. The next JobMaster adopts some of them; the rest are *vacated*
    (their tasks are ended) and then *kept* empty, to be offered again. Methods return actions to be
    carried out. ``now`` is in monotonic seconds."""

    def __init__(
        self,
        resource_id: ResourceID,
        total_profile: ResourceProfile,
        number_of_slots: int,
        slot_timeout: float = 10.0,
        keep_timeout: float = 60.0,
    ) -> None:
        """Make a table of *number_of_slots* free slots, which divide *total_profile* equally.

        *slot_timeout*: seconds after which an allocated, inactive slot is freed (TM-21).
        *keep_timeout*: seconds after which a slot of a lost JobMaster is freed.
        """
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
        """Time of the last event that had a time; used in the story."""
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
        """Allocate a slot for a job.  A repeated call with the same arguments changes nothing.
        Index -1 allocates a dynamic slot.  *constraint*: passed on with the later offer.
        Raises SlotAllocationError if the slot does not exist or is not free, the allocation has
        another slot, the profile is too large, or the table is closed."""
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
        """Mark the slot as active, because its JobMaster has accepted it or deploys a task in it.
        Returns False if the slot is unknown, waits with its tasks for another JobMaster, or is
        being freed or emptied."""
        slot = self._slots.get(allocation_id)
        if slot is None or slot.state in (_State.HELD, _State.VACATING, _State.RELEASING):
            return False
        slot.state, slot.deadline = _State.ACTIVE, None
        return True

    def hold_slots_of_job(self, job_id: JobID, reason: str, now: float) -> list[SlotTableAction]:
        """Hold the slots of a job whose JobMaster is lost, and ignore its late answers. Active
        slots keep their tasks until another JobMaster adopts them, for at most the keep timeout.
        Slots that the lost JobMaster had not accepted yet are freed."""
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
        """Restart the keep timeout of the slots that are held for the job's next JobMaster, because
        it has registered now. It then has the whole timeout to adopt slots."""
        self._now = now
        for slot in self._slots_of(job_id):
            if slot.state is _State.HELD:
                slot.deadline = now + self._keep_timeout

    def adopt_slots(
        self, job_id: JobID, allocations: Container[AllocationID], now: float
    ) -> list[SlotTableAction]:
        """Activate those slots of the lost JobMaster that the new one adopts (*allocations*), with
        their tasks. In its other held slots tasks are ended; then the slots are kept empty for the
        keep timeout and can be offered to the job. Slots that are not held are unchanged."""
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
        """Return the job's slots to offer to its JobMaster: those that it has not accepted yet, and
        those kept empty from an earlier JobMaster. None if there are none."""
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
        """Activate the accepted slots and free the others.
        Slots that a newer offering contains are left unchanged (TM-12)."""
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
        """Add a task to a slot of its job, which becomes active (TM-11).

        Raises:
            SlotAllocationError: the allocation is unknown, belongs to another job, is being freed
                or vacated, is held for a JobMaster that has not adopted it, or is kept and was not
                offered to the next JobMaster yet; or the attempt exists already.
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
            where = "the slot" if slot is None else f"slot {slot.index}"
            raise SlotAllocationError(
                f"task {attempt_id} of job {job_id} cannot run in {self._resource_id}: "
                f"{where} of allocation {allocation_id} {why}"
            )
        slot.tasks[attempt_id] = None
        self._tasks[attempt_id] = allocation_id

    def remove_task(self, attempt_id: ExecutionAttemptID) -> list[SlotTableAction]:
        """Remove a task that has ended.  Unknown tasks are ignored."""
        allocation_id = self._tasks.pop(attempt_id, None)
        if allocation_id is None:
            return []
        slot = self._slots[allocation_id]
        del slot.tasks[attempt_id]
        is_ending = slot.state in (_State.RELEASING, _State.VACATING)
        return self._clean_when_empty(slot) if is_ending else []

    def free_slot(self, allocation_id: AllocationID, reason: str) -> list[SlotTableAction]:
        """End the slot's tasks and free the slot.
        Nothing happens if the slot is unknown or is being freed already."""
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
        """Free a slot whose CleanSlot was carried out, and return its id, which must be reported to
        the ResourceManager. None if the slot is kept empty for its job: then it can be offered
        again."""
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
        """Free the job's slots that its current JobMaster has or was offered, because this
        JobMaster has lost them. Slots of an earlier JobMaster that wait for the next one stay."""
        actions: list[SlotTableAction] = []
        for slot in self._slots_of(job_id):
            if slot.state in (_State.ALLOCATED, _State.ACTIVE):
                actions += self.free_slot(slot.allocation_id, reason)
        return actions

    def free_inactive_slots_of_job(self, job_id: JobID, reason: str) -> list[SlotTableAction]:
        """Free the slots that are allocated to the job but that its JobMaster has not accepted
        (SM-18)."""
        actions: list[SlotTableAction] = []
        for slot in self._slots_of(job_id):
            if slot.state is _State.ALLOCATED:
                actions += self.free_slot(slot.allocation_id, reason)
        return actions

    def free_timed_out_slots(self, now: float) -> list[SlotTableAction]:
        """Free slots that no JobMaster accepted within the slot timeout. Also free slots of a lost
        JobMaster that no other JobMaster took within the keep timeout."""
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
        """Return when :meth:`free_timed_out_slots` next frees a slot; None if no slot has a
        deadline."""
        deadlines = [s.deadline for s in self._slots.values() if s.deadline is not None]
        return min(deadlines, default=None)

    def compare_with_job_master(
        self, job_id: JobID, allocations: tuple[AllocationID, ...]
    ) -> SlotDifference:
        """Compare the slots that a JobMaster says it has (*allocations*) with this table
        (TM-16)."""
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
        """Return the state of all slots, ordered by index; a slot being freed still belongs to its
        job."""
        by_index = {slot.index: slot for slot in self._slots.values()}
        indexes = sorted({*range(self._number_of_slots), *by_index})
        return SlotReport(tuple(self._status(index, by_index.get(index)) for index in indexes))

    def job_of(self, allocation_id: AllocationID) -> JobID | None:
        """Return the job of the slot, even while it is being freed; None if there is no slot."""
        slot = self._slots.get(allocation_id)
        return None if slot is None else slot.job_id

    def contains(self, allocation_id: AllocationID) -> bool:
        """Return whether this table has a slot with the allocation, even while the slot is being
        freed."""
        return allocation_id in self._slots

    def is_being_freed(self, allocation_id: AllocationID) -> bool:
        """Return whether the allocation's slot is being freed."""
        slot = self._slots.get(allocation_id)
        return slot is not None and slot.state is _State.RELEASING

    def is_kept(self, allocation_id: AllocationID) -> bool:
        """Return whether the slot is kept empty, to be offered to the job's next JobMaster."""
        slot = self._slots.get(allocation_id)
        return slot is not None and slot.state is _State.KEPT

    def holds_slots_of(self, job_id: JobID) -> bool:
        """Return whether slots of the job wait with their tasks for a new JobMaster, because the
        last one is lost."""
        return any(slot.state is _State.HELD for slot in self._slots_of(job_id))

    def held_tasks_of(self, job_id: JobID) -> frozenset[ExecutionAttemptID]:
        """Return the job's tasks that keep running until a new JobMaster decides about their slots,
        because the last JobMaster is lost."""
        held = [slot for slot in self._slots_of(job_id) if slot.state is _State.HELD]
        return frozenset(attempt_id for slot in held for attempt_id in slot.tasks)

    def slots_in_use(self, job_id: JobID) -> tuple[SlotOffer, ...]:
        """Return the job's slots that a JobMaster has accepted, even if it has been lost since,
        ordered by index."""
        used = (_State.ACTIVE, _State.HELD)
        slots = [slot for slot in self._slots_of(job_id) if slot.state in used]
        return tuple(SlotOffer(s.allocation_id, s.index, s.profile, s.constraint) for s in slots)

    def tasks_of(self, allocation_id: AllocationID) -> tuple[ExecutionAttemptID, ...]:
        """Return the tasks in a slot; empty if the allocation is unknown."""
        slot = self._slots.get(allocation_id)
        return () if slot is None else tuple(slot.tasks)

    def slot_index(self, allocation_id: AllocationID) -> int:
        """Return the index of the slot that has this allocation. There must be such a slot."""
        return self._slots[allocation_id].index

    def allocations_of(self, job_id: JobID) -> tuple[AllocationID, ...]:
        """Return the job's allocations, ordered by slot index."""
        return tuple(slot.allocation_id for slot in self._slots_of(job_id))

    def jobs(self) -> tuple[JobID, ...]:
        """Return the ids of the jobs that have a slot on this TaskExecutor."""
        return tuple(dict.fromkeys(slot.job_id for slot in self._slots.values()))

    def close(self, reason: str) -> list[SlotTableAction]:
        """Free all slots and allocate no more. Wait afterwards until :attr:`is_empty` is True
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
        """Return the history of the slots, one line per event."""
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
