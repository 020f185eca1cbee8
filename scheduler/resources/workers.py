"""Keeps the SlotManager's TaskExecutors and their slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum

from flinkray.core.ids import AllocationID, JobID, SlotID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    SlotReport,
    SlotStatus,
    WorkerGroupOwner,
    WorkerLocation,
    times_it_fits,
)
from flinkray.scheduler.shared.story import Story

REPORT_GRACE = 1.0
"""Seconds after the confirmation of an allocation during which reports of a free slot are ignored.
Reports and confirmations are sent on different paths, so the report may be older."""

NOTHING = ResourceProfile(0.0)


class SlotState(Enum):
    """State of a slot.
    FREE: it can be given.  PENDING: its TaskExecutor has been asked.  ALLOCATED: a job has it."""

    FREE = "free"
    PENDING = "requested"
    ALLOCATED = "allocated"


class WorkerListener(ABC):
    """Interface to an object that is told about changes of workers' slots, such as an index."""

    @abstractmethod
    def before_change(self, slot: ManagedSlot) -> None:
        """Called when the slot is about to change or to be removed."""

    @abstractmethod
    def after_change(self, slot: ManagedSlot) -> None:
        """Called when the slot is new or has changed."""

    @abstractmethod
    def capacity_changed(self, worker: Worker) -> None:
        """Called after every change of the worker's slots, which may have changed its free
        capacity."""


@dataclass(slots=True, eq=False)
class ManagedSlot:
    """One slot as the SlotManager knows it.  A dynamic slot exists only while a job has it."""

    slot_id: SlotID
    """The index is -1 for a dynamic slot that its TaskExecutor has not confirmed."""
    profile: ResourceProfile
    worker: Worker
    is_dynamic: bool = False
    state: SlotState = SlotState.FREE
    job_id: JobID | None = None
    allocation_id: AllocationID | None = None
    changed_at: float = 0.0
    is_refused: bool = False
    """Whether the slot is not requested for a while, because its TaskExecutor refused a request."""

    def request(self, job_id: JobID, allocation_id: AllocationID, now: float) -> None:
        """Change FREE to PENDING.  Raises IllegalTransitionError if the slot is not free."""
        if self.state is not SlotState.FREE:
            raise self.worker.story.illegal(
                f"ask for slot {self.slot_id} for job {job_id.short()}: it is {self.state.value}"
            )
        self._enter(SlotState.PENDING, job_id, allocation_id, now, "")

    def allocate(self, job_id: JobID, allocation_id: AllocationID, now: float) -> None:
        """Change the state to ALLOCATED, from any state, because the TaskExecutor says so."""
        if (self.state, self.allocation_id) != (SlotState.ALLOCATED, allocation_id):
            self._enter(SlotState.ALLOCATED, job_id, allocation_id, now, "")

    def free(self, cause: str, now: float) -> None:
        """Change the state to FREE, from any state.  A dynamic slot no longer exists then."""
        if self.state is not SlotState.FREE:
            self._enter(SlotState.FREE, None, None, now, cause)

    def is_held_by(self, allocation_id: AllocationID) -> bool:
        return self.state is not SlotState.FREE and self.allocation_id == allocation_id

    def is_in(self, status: SlotStatus | None) -> bool:
        """Return whether *status*, reported for the index of this slot, is about this slot. It is
        about another slot if the index of a dynamic slot was used again."""
        if status is None:
            return False
        return not self.is_dynamic or status.allocation_id == self.allocation_id

    def _enter(
        self,
        state: SlotState,
        job_id: JobID | None,
        allocation_id: AllocationID | None,
        now: float,
        cause: str,
    ) -> None:
        text = f"slot {self.slot_id.slot_index} {self.state.value} -> {state.value}"
        if job_id is not None and allocation_id is not None:
            text += f" for job {job_id.short()}, allocation {allocation_id.short()}"
        worker = self.worker
        worker.story.add(now, f"{text}: {cause}" if cause else text)
        worker.listener.before_change(self)
        if self.is_dynamic and self.allocation_id is not None:
            worker.dynamic.pop(self.allocation_id, None)
        self.state, self.job_id, self.allocation_id = state, job_id, allocation_id
        self.changed_at = now
        if self.is_dynamic and allocation_id is None:
            worker.slots.pop(self.slot_id.slot_index, None)
        else:
            if self.is_dynamic and allocation_id is not None:
                worker.dynamic[allocation_id] = self
            worker.listener.after_change(self)
        worker.listener.capacity_changed(worker)


@dataclass(slots=True, eq=False)
class Worker:
    """A registered TaskExecutor with its slots, as the SlotManager knows them."""

    location: WorkerLocation
    total_profile: ResourceProfile
    registered_at: float
    story: Story
    listener: WorkerListener
    number: int = 0
    """Increases with each registration."""
    owner: WorkerGroupOwner | None = None
    """Owner of the worker's group; None for a shared group."""
    is_usable: bool = True
    """Whether slots of the worker may be given: its group is known and its node is not blocked."""
    refuses_dynamic: bool = False
    slots: dict[int, ManagedSlot] = field(default_factory=dict)
    """Slots by index, including dynamic slots whose index is known."""
    dynamic: dict[AllocationID, ManagedSlot] = field(default_factory=dict)

    # the listener maintains these counts
    slot_profile: ResourceProfile = NOTHING
    """Profile of a static slot."""
    number_static: int = 0
    used_static: int = 0
    refused_static: int = 0
    dynamic_used: ResourceProfile = NOTHING

    def apply_report(self, report: SlotReport, now: float) -> None:
        """Update the slots from the TaskExecutor's report (SM-04, SM-06, SM-08)."""
        reported = {status.slot_id.slot_index: status for status in report.slots}
        for index, slot in tuple(self.slots.items()):
            if slot.state is SlotState.PENDING or slot.is_in(reported.get(index)):
                continue
            if slot.is_dynamic and now - slot.changed_at < REPORT_GRACE:
                reported.pop(index, None)
            else:
                self._remove(slot, now)
        for index, status in reported.items():
            if index not in self.slots:
                self._add(index, status)
            self._apply(self.slots[index], status, now)

    def agrees_with(self, report: SlotReport) -> bool:
        """Return whether the report contains nothing new, as most heartbeats do."""
        if len(report.slots) != len(self.slots):
            return False
        for status in report.slots:
            slot = self.slots.get(status.slot_id.slot_index)
            if slot is None or slot.allocation_id != status.allocation_id:
                return False
            if slot.state is SlotState.PENDING:
                return False
        return True

    def new_dynamic_slot(self, profile: ResourceProfile) -> ManagedSlot:
        """Create a free dynamic slot of this size. The caller must request it at once, because a
        dynamic slot does not stay free."""
        return ManagedSlot(SlotID(self.location.resource_id, -1), profile, self, is_dynamic=True)

    def dynamic_slot_confirmed(self, slot: ManagedSlot, slot_id: SlotID) -> None:
        """Set the index that the TaskExecutor has given to a requested dynamic slot."""
        slot.slot_id = slot_id
        self.slots[slot_id.slot_index] = slot

    @property
    def is_unused(self) -> bool:
        return self.used_static == 0 and not self.dynamic

    @property
    def number_of_slots(self) -> int:
        """Number of static and dynamic slots; no dynamic slot is free."""
        return self.number_static + len(self.dynamic)

    @property
    def free_profile(self) -> ResourceProfile:
        """Resources of the worker that belong to no requested or allocated slot."""
        free = self.total_profile.reduced_by(self.slot_profile.times(self.used_static))
        return free.reduced_by(self.dynamic_used) if self.dynamic else free

    def available_static(self) -> int:
        """Return how many static slots can be requested now, within the resources that are free."""
        if not self.is_usable:
            return 0
        free = self.number_static - self.used_static - self.refused_static
        if not self.dynamic:
            return free
        return int(min(free, times_it_fits(self.slot_profile, self.free_profile)))

    def next_static(self) -> ManagedSlot:
        """Return the free static slot with the lowest index.  There must be one."""
        return min(
            (s for s in self.slots.values() if s.state is SlotState.FREE and not s.is_refused),
            key=lambda slot: slot.slot_id.slot_index,
        )

    def _add(self, index: int, status: SlotStatus) -> None:
        allocation_id = status.allocation_id
        known = None if allocation_id is None else self.dynamic.get(allocation_id)
        if known is not None:
            self.dynamic_slot_confirmed(known, status.slot_id)
            return
        slot = ManagedSlot(status.slot_id, status.profile, self, is_dynamic=status.is_dynamic)
        self.slots[index] = slot
        self.listener.after_change(slot)
        self.listener.capacity_changed(self)

    def _remove(self, slot: ManagedSlot, now: float) -> None:
        self.story.add(now, f"slot {slot.slot_id.slot_index} is gone")
        self.listener.before_change(slot)
        self.slots.pop(slot.slot_id.slot_index, None)
        if slot.allocation_id is not None:
            self.dynamic.pop(slot.allocation_id, None)
        self.listener.capacity_changed(self)

    def _apply(self, slot: ManagedSlot, status: SlotStatus, now: float) -> None:
        if status.job_id is not None and status.allocation_id is not None:
            slot.allocate(status.job_id, status.allocation_id, now)
        elif slot.state is SlotState.ALLOCATED and now - slot.changed_at >= REPORT_GRACE:
            slot.free("reported free", now)
