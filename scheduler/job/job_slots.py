"""The slots that a job holds, and why others are missing."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.core.ids import AllocationID, ResourceID
from flinkray.scheduler.execution.execution import location_text
from flinkray.scheduler.graph.job_graph import JobVertex
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.slots.slot_assignment import SlotAssignment, assign_by_bundle


class JobSlots:
    """A JobMaster's view of its SlotPool, which may be behind."""

    def __init__(self) -> None:
        self.held: tuple[AllocatedSlot, ...] = ()
        """In the order in which they came."""
        self.shortages: tuple[ResourceShortage, ...] = ()

    def missing_of(self, used: Iterable[AllocatedSlot]) -> dict[AllocationID, str]:
        """Those of the used slots that are not held any more, with a cause for each."""
        held = {slot.allocation_id for slot in self.held}
        return {
            slot.allocation_id: f"the slot pool lost {location_text(slot)}"
            for slot in used
            if slot.allocation_id not in held
        }

    def drop(self, allocation_id: AllocationID) -> None:
        """Do not use the slot any more; the pool's next word decides."""
        self.held = tuple(s for s in self.held if s.allocation_id != allocation_id)

    def drop_task_executor(
        self, resource_id: ResourceID, used: Iterable[AllocatedSlot], cause: str
    ) -> dict[AllocationID, str]:
        """Held and used slots of a TaskExecutor that is lost, with the cause for each."""
        gone = [s for s in (*self.held, *used) if s.location.resource_id == resource_id]
        self.held = tuple(s for s in self.held if s.location.resource_id != resource_id)
        return {s.allocation_id: f"{location_text(s)} is lost: {cause}" for s in gone}

    def assign(self, vertex: JobVertex) -> SlotAssignment:
        """Slots for the subtasks of a vertex."""
        return assign_by_bundle(self.held, vertex.parallelism)

    def why_pending(self, vertex: JobVertex) -> str:
        """What the ResourceManager says is missing, or how many are there."""
        if self.shortages:
            return " ".join(shortage.reason for shortage in self.shortages)
        there = f"{len(self.held)} of {vertex.parallelism} slots"
        return f"{there} ({vertex.slot_profile} each) are there."

    @property
    def unfulfillable(self) -> ResourceShortage | None:
        """A shortage that waiting cannot end."""
        return next((s for s in self.shortages if s.unfulfillable), None)
