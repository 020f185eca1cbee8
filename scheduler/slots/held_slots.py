"""A JobMaster's copy of what its SlotPool holds."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.core.ids import AllocationID, ResourceID
from flinkray.scheduler.shared.slots import AllocatedSlot


class HeldSlots:
    """Kept up to date by differences; found by TaskExecutor, for the heartbeats to each (JM-08)."""

    def __init__(self) -> None:
        self._slots: dict[AllocationID, AllocatedSlot] = {}
        self._on: dict[ResourceID, dict[AllocationID, None]] = {}

    def add(self, slot: AllocatedSlot) -> None:
        self._slots[slot.allocation_id] = slot
        self._on.setdefault(slot.location.resource_id, {})[slot.allocation_id] = None

    def remove(self, allocations: Iterable[AllocationID]) -> None:
        """Unknown ones are ignored."""
        for allocation_id in allocations:
            slot = self._slots.pop(allocation_id, None)
            if slot is not None:
                resource_id = slot.location.resource_id
                del self._on[resource_id][allocation_id]
                if not self._on[resource_id]:
                    del self._on[resource_id]

    def remove_all_on(self, resource_id: ResourceID) -> None:
        """The TaskExecutor is lost."""
        self.remove(self.on(resource_id))

    def clear(self) -> None:
        self._slots.clear()
        self._on.clear()

    def on(self, resource_id: ResourceID) -> tuple[AllocationID, ...]:
        """The allocations on one TaskExecutor, oldest first."""
        return tuple(self._on.get(resource_id, ()))

    def all(self) -> tuple[AllocatedSlot, ...]:
        """Oldest first."""
        return tuple(self._slots.values())
