"""The slots that a job wants and has: the decisions of a SlotPool."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.ids import AllocationID, JobID, ResourceID
from flinkray.scheduler.slots import (
    AllocatedSlot,
    ResourceRequirements,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)


@dataclass(frozen=True, slots=True)
class DeclareRequirements:
    """Tell the ResourceManager what the job wants from now on."""

    requirements: ResourceRequirements


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """Tell the slot's TaskExecutor to free it; whether that succeeds or not, the pool has forgotten it."""

    location: WorkerLocation
    allocation_id: AllocationID
    reason: str


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """Tell the JobMaster all the slots that the pool holds now."""

    slots: tuple[AllocatedSlot, ...]


SlotPoolAction = DeclareRequirements | FreeSlot | SlotsChanged


class DeclarativeSlotPool:
    """Accepts offered slots as far as they are required, and gives back what is not.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in monotonic seconds.
    """

    def __init__(self, job_id: JobID, idle_timeout: float = 50.0) -> None:
        """*idle_timeout* in seconds: how long a slot beyond the requirements is kept."""
        raise NotImplementedError

    @property
    def requirements(self) -> ResourceRequirements | None:
        """What was declared last; to be declared again whenever a ResourceManager is connected (SP-27)."""
        raise NotImplementedError

    @property
    def slots(self) -> tuple[AllocatedSlot, ...]:
        """All slots held, oldest first."""
        raise NotImplementedError

    def slots_of(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """The slots held on one TaskExecutor."""
        raise NotImplementedError

    def set_requirements(
        self, requirements: ResourceRequirements, now: float
    ) -> list[SlotPoolAction]:
        """Replace the requirements (a total)."""
        raise NotImplementedError

    def set_job_restarting(self, restarting: bool) -> None:
        """While the job restarts every offered slot is kept, required or not (SP-26)."""
        raise NotImplementedError

    def register_task_executor(self, location: WorkerLocation, now: float) -> list[SlotPoolAction]:
        """From now on offers of that TaskExecutor are looked at.

        Another process under the same name (address or pid differ) replaces the old one, whose slots are gone.
        """
        raise NotImplementedError

    def release_task_executor(
        self, resource_id: ResourceID, reason: str, now: float
    ) -> list[SlotPoolAction]:
        """The TaskExecutor is gone, its slots with it (no FreeSlot: nobody is there to hear it)."""
        raise NotImplementedError

    def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...], now: float
    ) -> tuple[SlotOfferAnswer, list[SlotPoolAction]]:
        """Take the offers that are required; the same offer again is accepted again (SP-03)."""
        raise NotImplementedError

    def fail_allocation(
        self, allocation_id: AllocationID, reason: str, now: float
    ) -> list[SlotPoolAction]:
        """The slot is of no use any more; unknown allocations are ignored."""
        raise NotImplementedError

    def release_slots(
        self, allocations: tuple[AllocationID, ...], reason: str, now: float
    ) -> list[SlotPoolAction]:
        """The job gives slots back, whatever its requirements are."""
        raise NotImplementedError

    def release_idle_slots(self, now: float) -> list[SlotPoolAction]:
        """Give back what has been beyond the requirements for the idle time-out (SP-07, SP-23)."""
        raise NotImplementedError

    def next_deadline(self) -> float | None:
        """When :meth:`release_idle_slots` has something to do next; None: no slot is beyond the requirements."""
        raise NotImplementedError

    def close(self, reason: str) -> list[SlotPoolAction]:
        """Free every slot and declare empty requirements; later offers are refused (SP-06)."""
        raise NotImplementedError
