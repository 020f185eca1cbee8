"""A TaskExecutor's slots and a JobMaster's view of them, brought in line by heartbeats (TM-16)."""

from __future__ import annotations

from flinkray.actors.gateways.messages import AllocatedSlotReport
from flinkray.core.ids import AllocationID, JobID
from flinkray.scheduler.task_slots.task_slot_table import SlotDifference, TaskSlotTable


class SlotComparison:
    """A slot that only the TaskExecutor has is freed when two reports in a row lack it: the
    JobMaster's view of a slot that it has just accepted may be late."""

    def __init__(self, table: TaskSlotTable) -> None:
        self._table = table
        self._missed: dict[JobID, frozenset[AllocationID]] = {}
        """Active slots that the JobMaster's last heartbeat did not list."""

    def compare(self, report: AllocatedSlotReport) -> SlotDifference:
        """What is to be reported to the JobMaster as failed, and what is to be freed here."""
        difference = self._table.compare_with_job_master(report.job_id, report.allocations)
        missed = frozenset(difference.unknown_there)
        twice = missed & self._missed.get(report.job_id, frozenset())
        self._missed[report.job_id] = missed
        return SlotDifference(difference.unknown_here, tuple(sorted(twice)))

    def forget(self, job_id: JobID) -> None:
        """The job has no slot here any more."""
        self._missed.pop(job_id, None)
