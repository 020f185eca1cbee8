"""Records of the SlotManager: TaskExecutors and their slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from flinkray.core.ids import AllocationID, JobID, SlotID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.slots import SlotReport, SlotStatus, WorkerLocation
from flinkray.scheduler.story import Story

REPORT_GRACE = 1.0
"""Seconds for which a report that calls a slot free is not believed after its allocation was
confirmed: a report is sent on another path than the confirmation and may be the older of the
two."""


class SlotState(Enum):
    """FREE: to be given.  PENDING: its TaskExecutor is being asked.  ALLOCATED: a job has it."""

    FREE = "free"
    PENDING = "requested"
    ALLOCATED = "allocated"


@dataclass(slots=True, eq=False)
class ManagedSlot:
    """One slot as the SlotManager knows it."""

    slot_id: SlotID
    profile: ResourceProfile
    worker: Worker
    state: SlotState = SlotState.FREE
    job_id: JobID | None = None
    allocation_id: AllocationID | None = None
    changed_at: float = 0.0
    refused_until: float = 0.0
    """Not asked for again before: its TaskExecutor refused it."""

    def request(self, job_id: JobID, allocation_id: AllocationID, now: float) -> None:
        """FREE to PENDING."""
        if self.state is not SlotState.FREE:
            raise self.worker.story.illegal(
                f"ask for slot {self.slot_id} for job {job_id.short()}: it is {self.state.value}"
            )
        self._enter(SlotState.PENDING, job_id, allocation_id, now, "")

    def allocate(self, job_id: JobID, allocation_id: AllocationID, now: float) -> None:
        """The TaskExecutor says that the slot is the job's: what it says holds, whatever was
        thought."""
        if (self.state, self.allocation_id) != (SlotState.ALLOCATED, allocation_id):
            self._enter(SlotState.ALLOCATED, job_id, allocation_id, now, "")

    def free(self, cause: str, now: float) -> None:
        """To FREE, from any state."""
        if self.state is not SlotState.FREE:
            self._enter(SlotState.FREE, None, None, now, cause)

    def is_held_by(self, allocation_id: AllocationID) -> bool:
        return self.state is not SlotState.FREE and self.allocation_id == allocation_id

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
        self.worker.story.add(now, f"{text}: {cause}" if cause else text)
        self.state, self.job_id, self.allocation_id = state, job_id, allocation_id
        self.changed_at = now


@dataclass(slots=True, eq=False)
class Worker:
    """A registered TaskExecutor."""

    location: WorkerLocation
    total_profile: ResourceProfile
    registered_at: float
    story: Story
    slots: dict[int, ManagedSlot] = field(default_factory=dict)

    def apply_report(self, report: SlotReport, now: float) -> None:
        """Bring the slots in line with what the TaskExecutor reports (SM-04, SM-06, SM-08)."""
        reported = {status.slot_id.slot_index: status for status in report.slots}
        for index in [i for i in self.slots if i not in reported]:
            if self.slots[index].state is not SlotState.PENDING:
                del self.slots[index]
        for index, status in reported.items():
            if index not in self.slots:
                self.slots[index] = ManagedSlot(status.slot_id, status.profile, self)
            self._apply(self.slots[index], status, now)

    def _apply(self, slot: ManagedSlot, status: SlotStatus, now: float) -> None:
        if status.job_id is not None and status.allocation_id is not None:
            slot.allocate(status.job_id, status.allocation_id, now)
        elif slot.state is SlotState.ALLOCATED and now - slot.changed_at >= REPORT_GRACE:
            slot.free("reported free", now)

    @property
    def is_unused(self) -> bool:
        return all(slot.state is SlotState.FREE for slot in self.slots.values())

    def free_slots(self, now: float) -> list[ManagedSlot]:
        """Slots that may be asked for now, by index."""
        return [
            slot
            for _, slot in sorted(self.slots.items())
            if slot.state is SlotState.FREE and slot.refused_until <= now
        ]
