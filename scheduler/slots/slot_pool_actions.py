"""What a SlotPool's decisions ask its actor to do, beside telling the slot events."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.ids import AllocationID
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceRequirements, WorkerLocation
from flinkray.scheduler.slots.slot_requests import SlotEvent


@dataclass(frozen=True, slots=True)
class DeclareRequirements:
    """Tell the ResourceManager what the job wants from now on."""

    requirements: ResourceRequirements


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """Tell the slot's TaskExecutor to free it; whether that succeeds or not, the pool has
    forgotten it."""

    location: WorkerLocation
    allocation_id: AllocationID
    reason: str


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """Tell the JobMaster which slots the pool has got and lost."""

    gained: tuple[AllocatedSlot, ...]
    lost: tuple[AllocationID, ...]


SlotPoolAction = DeclareRequirements | FreeSlot | SlotsChanged | SlotEvent
