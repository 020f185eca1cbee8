"""The slots of one TaskExecutor and what runs in them."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID, SlotID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.slots import SlotOffer, SlotReport


@dataclass(frozen=True, slots=True)
class EndTask:
    """Cancel a task; call ``remove_task`` when it has ended."""

    attempt_id: ExecutionAttemptID
    reason: str


@dataclass(frozen=True, slots=True)
class CleanSlot:
    """No task is left in a slot that is being freed: end what they left behind, then call ``slot_cleaned``."""

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


class TaskSlotTable:
    """Allocation, activation and release of slots.  ``now`` is in monotonic seconds."""

    def __init__(
        self,
        resource_id: ResourceID,
        total_profile: ResourceProfile,
        number_of_slots: int,
        slot_timeout: float = 10.0,
    ) -> None:
        """*slot_timeout*, seconds: a slot that is allocated and not active for so long is given up (TM-21)."""
        raise NotImplementedError

    def allocate_slot(
        self,
        slot_index: int,
        job_id: JobID,
        allocation_id: AllocationID,
        profile: ResourceProfile,
        now: float,
    ) -> SlotID:
        """Allocate a slot for a job; again with the same arguments: nothing changes.  Index -1: a dynamic slot.

        Raises:
            SlotAllocationError: no such slot, it is not free, the allocation has another one, the profile is too large,
                or the table is closed.
        """
        raise NotImplementedError

    def mark_slot_active(self, allocation_id: AllocationID) -> bool:
        """The job uses the slot; False: it is unknown or being freed."""
        raise NotImplementedError

    def mark_slot_inactive(self, allocation_id: AllocationID, now: float) -> bool:
        """The job's master is gone for now: the slot times out unless it is active again."""
        raise NotImplementedError

    def offer_slots(self, job_id: JobID) -> Offering | None:
        """The job's allocated and not active slots; None: there are none."""
        raise NotImplementedError

    def offer_answered(
        self, offering: Offering, accepted: tuple[AllocationID, ...], now: float
    ) -> list[SlotTableAction]:
        """Accepted slots are active, the others are freed; what a newer offering covers is left alone (TM-12)."""
        raise NotImplementedError

    def add_task(self, attempt_id: ExecutionAttemptID, allocation_id: AllocationID) -> None:
        """A task is submitted to a slot and makes it active (TM-11).

        Raises:
            SlotAllocationError: the allocation is unknown or being freed, or the attempt is here already.
        """
        raise NotImplementedError

    def remove_task(self, attempt_id: ExecutionAttemptID) -> list[SlotTableAction]:
        """The task has ended; unknown ones are ignored."""
        raise NotImplementedError

    def free_slot(self, allocation_id: AllocationID, reason: str) -> list[SlotTableAction]:
        """End the slot's tasks and free it; again, or unknown: nothing."""
        raise NotImplementedError

    def slot_cleaned(self, allocation_id: AllocationID) -> SlotID | None:
        """A CleanSlot is carried out: the slot is free.  To be told to the ResourceManager, unless None."""
        raise NotImplementedError

    def free_slots_of_job(self, job_id: JobID, reason: str) -> list[SlotTableAction]:
        """Free all slots of a job."""
        raise NotImplementedError

    def free_timed_out_slots(self, now: float) -> list[SlotTableAction]:
        """Free the slots that were allocated and not active for the slot time-out."""
        raise NotImplementedError

    def next_deadline(self) -> float | None:
        """When :meth:`free_timed_out_slots` has something to do next."""
        raise NotImplementedError

    def compare_with_job_master(
        self, job_id: JobID, allocations: tuple[AllocationID, ...]
    ) -> SlotDifference:
        """Hold a JobMaster's report against the table (TM-16)."""
        raise NotImplementedError

    def report(self) -> SlotReport:
        """All slots, by index; one that is being freed is still its job's."""
        raise NotImplementedError

    def contains(self, allocation_id: AllocationID) -> bool:
        """Whether the allocation has a slot here (also while it is being freed)."""
        raise NotImplementedError

    def is_being_freed(self, allocation_id: AllocationID) -> bool:
        """Whether ``free_slot`` is under way for the allocation."""
        raise NotImplementedError

    def tasks_of(self, allocation_id: AllocationID) -> tuple[ExecutionAttemptID, ...]:
        """The tasks in a slot."""
        raise NotImplementedError

    def allocations_of(self, job_id: JobID) -> tuple[AllocationID, ...]:
        """The job's allocations, by slot index."""
        raise NotImplementedError

    def jobs(self) -> tuple[JobID, ...]:
        """Jobs that have a slot here."""
        raise NotImplementedError

    def close(self, reason: str) -> list[SlotTableAction]:
        """Free all slots and allocate none any more; closed for good when :attr:`is_empty` (TM-21)."""
        raise NotImplementedError

    @property
    def is_empty(self) -> bool:
        """Whether no slot is allocated."""
        raise NotImplementedError

    def story(self) -> str:
        """What has happened to the slots, a line per event."""
        raise NotImplementedError
