"""Notes that other processes keep for the next JobMaster of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.core.ids import ExecutionVertexID, JobVertexID
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes

FINISHED_PER_MESSAGE = 2000
"""Largest number of finished tasks in one message.
Each finished task is sent with its slot. The message stays well below the frame size.
"""


class KeptNotes:
    """A JobMaster's last notes, finished tasks and kept parts.
    A SlotPool or TaskExecutor stores them. The job's next JobMaster reads them when it takes over
    the job.
    """

    def __init__(self) -> None:
        self.notes: JobNotes | None = None
        self._finished: dict[ExecutionVertexID, FinishedTask] = {}
        self._parts: dict[JobVertexID | None, KeptPart] = {}

    @property
    def parts(self) -> tuple[KeptPart, ...]:
        """The latest kept part of each source, and the part with the results' address."""
        return tuple(self._parts.values())

    def keep_part(self, part: KeptPart) -> None:
        """Keep the part in place of an older part of the same vertex."""
        known = self._parts.get(part.vertex_id)
        if known is None or known.age < part.age:
            self._parts[part.vertex_id] = part

    @property
    def finished(self) -> tuple[FinishedTask, ...]:
        """The last finished attempt of each subtask, ordered by when a subtask was first noted."""
        return tuple(self._finished.values())

    def note(self, notes: JobNotes) -> None:
        """Replace the notes.
        If the execution graph is another one, its finished tasks are dropped too.
        """
        if self.notes is not None and self.notes.graph_id != notes.graph_id:
            self._finished.clear()
        self.notes = notes

    def note_finished(self, finished: Iterable[FinishedTask]) -> None:
        for task in finished:
            self._finished[task.state.attempt_id.vertex] = task

    # --- piece by piece ---------------------------------------------------------------------------

    def add(self, piece: KeptPiece) -> None:
        """Keep the part, the finished tasks and the notes that *piece* holds."""
        if piece.part is not None:
            self.keep_part(piece.part)
        self.note_finished(piece.finished)
        if piece.notes is not None:
            self.note(piece.notes)

    def piece(self, number: int) -> KeptPiece | None:
        """Return piece *number* of the parts and finished tasks, counted from 0.
        None if there is no such piece. The parts come first. The notes are in no piece.
        """
        if number < len(self._parts):
            return KeptPiece(part=self.parts[number])
        first = (number - len(self._parts)) * FINISHED_PER_MESSAGE
        finished = self.finished[first : first + FINISHED_PER_MESSAGE]
        return KeptPiece(finished=finished) if finished else None


def in_pieces(
    parts: Iterable[KeptPart], finished: tuple[FinishedTask, ...], notes: JobNotes
) -> Iterator[KeptPiece]:
    """Yield messages that together hold all parts, finished tasks and notes.
    The notes come last: a receiver that has the notes has everything.
    """
    for part in parts:
        yield KeptPiece(part=part)
    for first in range(0, len(finished), FINISHED_PER_MESSAGE):
        yield KeptPiece(finished=finished[first : first + FINISHED_PER_MESSAGE])
    yield KeptPiece(notes=notes)
