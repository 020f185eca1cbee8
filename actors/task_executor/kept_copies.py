"""Copies of JobMasters' notes, stored at a TaskExecutor for the next JobMasters of the jobs.

A TaskExecutor dies together with its tasks. So wherever tasks survive, their job's copy survives
too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.actors.gateways.stream_coordinator import KeptPiece
from flinkray.actors.shared.kept_notes import KeptNotes
from flinkray.core.ids import JobID, JobMasterId
from flinkray.scheduler.shared.taking_over import JobNotes


@dataclass(slots=True)
class _Copy:
    job_master_id: JobMasterId
    number: int
    kept: KeptNotes = field(default_factory=KeptNotes)

    def is_of(self, job_master_id: JobMasterId, number: int) -> bool:
        return (self.job_master_id, self.number) == (job_master_id, number)

    def is_after(self, job_master_id: JobMasterId, number: int) -> bool:
        return self.job_master_id == job_master_id and self.number > number


class KeptCopies:
    """Stores the notes of the jobs' JobMasters: for each job one complete copy, and possibly a
    later copy that is incomplete. The pieces of a copy arrive one by one. If the JobMaster dies
    before the later copy is complete, the complete copy is used.
    """

    def __init__(self) -> None:
        self._complete: dict[JobID, _Copy] = {}
        self._begun: dict[JobID, _Copy] = {}

    def keep(
        self, job_id: JobID, job_master_id: JobMasterId, number: int, piece: KeptPiece
    ) -> bool:
        """Add *piece* to copy *number* of a JobMaster's notes. The piece with the notes themselves
        makes the copy complete. Returns False, and drops *piece*, if a later copy was begun here.
        """
        complete, begun = self._complete.get(job_id), self._begun.get(job_id)
        for one in (complete, begun):
            if one is not None and one.is_after(job_master_id, number):
                return False
        if complete is not None and complete.is_of(job_master_id, number):
            complete.kept.add(piece)
            return True
        if begun is None or not begun.is_of(job_master_id, number):
            begun = self._begun[job_id] = _Copy(job_master_id, number)
        begun.kept.add(piece)
        if piece.notes is not None:
            self._complete[job_id] = self._begun.pop(job_id)
        return True

    def notes(self, job_id: JobID) -> JobNotes | None:
        """Return the notes of the job's complete copy. None if there is no complete copy."""
        complete = self._complete.get(job_id)
        return None if complete is None else complete.kept.notes

    def piece(self, job_id: JobID, number: int) -> KeptPiece | None:
        """Return piece *number* of the job's complete copy, as :meth:`KeptNotes.piece` counts them.
        None if there is no such piece or no complete copy.
        """
        complete = self._complete.get(job_id)
        return None if complete is None else complete.kept.piece(number)

    def forget(self, job_id: JobID) -> None:
        """Drop the copies of a job: it has no slots here, or a later copy is stored elsewhere."""
        self._complete.pop(job_id, None)
        self._begun.pop(job_id, None)
