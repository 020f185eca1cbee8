"""Compares a TaskExecutor's slots with the list in a JobMaster's heartbeat (TM-16)."""

from __future__ import annotations

from flinkray.actors.gateways.messages import AllocatedSlotReport
from flinkray.core.ids import AllocationID, JobID
from flinkray.scheduler.task_slots.task_slot_table import SlotDifference, TaskSlotTable


class SlotComparison:
    """Finds slots that only the TaskExecutor or only the JobMaster knows.
    A slot that only the TaskExecutor has is freed when two lists in a row lack it, because the
    JobMaster's list may be late for a slot that it has just accepted.
    """

    def __init__(self, table: TaskSlotTable) -> None:
        self._table = table
        self._missed: dict[JobID, frozenset[AllocationID]] = {}
        """Active slots that the JobMaster's last heartbeat did not list."""

    def compare(self, report: AllocatedSlotReport) -> SlotDifference:
        """Return the slots that only the JobMaster has, and the slots that only the TaskExecutor
        has. The caller reports the slots of the first kind to the JobMaster as failed, and frees
        the slots of the second kind.
        """
        difference = self._table.compare_with_job_master(report.job_id, report.allocations)
        missed = frozenset(difference.unknown_there)
        twice = missed & self._missed.get(report.job_id, frozenset())
        self._missed[report.job_id] = missed
        return SlotDifference(difference.unknown_here, tuple(sorted(twice)))

    def forget(self, job_id: JobID) -> None:
        """Forget the earlier lists of a job that has no slot here any more."""
        self._missed.pop(job_id, None)
