"""A JobMaster's notes for the job's next JobMaster, and what is stored with them."""

from __future__ import annotations

from collections.abc import Iterator

from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.core.ids import ExecutionVertexID, JobVertexID
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes

FINISHED_PER_MESSAGE = 2000
"""Largest number of finished tasks in one message.
Each finished task is sent with its slot. The message stays well below the frame size.
"""


class KeptNotes:
    """The last notes of a JobMaster, its finished tasks, and parts of the source coordinator's
    state. The JobMaster writes them. Its SlotPool and a TaskExecutor store them too. The job's next
    JobMaster reads them when it takes over the job.
    """

    def __init__(self) -> None:
        self.notes: JobNotes | None = None
        self._finished: dict[ExecutionVertexID, FinishedTask] = {}
        self._parts: dict[JobVertexID | None, KeptPart] = {}

    @property
    def parts(self) -> tuple[KeptPart, ...]:
        """The latest stored progress of each source, and the address of the job's results."""
        return tuple(self._parts.values())

    @property
    def finished(self) -> tuple[FinishedTask, ...]:
        """The last finished attempt of each subtask, ordered by when a subtask was first noted."""
        return tuple(self._finished.values())

    def add(self, piece: KeptPiece) -> None:
        """Store what *piece* holds: notes, finished tasks, a part of the source coordinator's
        state. A part replaces an older part of the same source. Notes of another execution graph
        drop the finished tasks of the graph before.
        """
        part = piece.part
        if part is not None:
            known = self._parts.get(part.vertex_id)
            if known is None or known.age < part.age:
                self._parts[part.vertex_id] = part
        for task in piece.finished:
            self._finished[task.state.attempt_id.vertex] = task
        if piece.notes is not None:
            if self.notes is not None and self.notes.graph_id != piece.notes.graph_id:
                self._finished.clear()
            self.notes = piece.notes

    def forget_parts(self) -> None:
        """Drop the progress of all sources, because the job begins again with all its sources."""
        self._parts.clear()

    def piece(self, number: int) -> KeptPiece | None:
        """Return piece *number*, counted from 0: first the parts, then the finished tasks.
        None if there is no such piece. No piece holds the notes.
        """
        if number < len(self._parts):
            return KeptPiece(part=self.parts[number])
        first = (number - len(self._parts)) * FINISHED_PER_MESSAGE
        finished = self.finished[first : first + FINISHED_PER_MESSAGE]
        return KeptPiece(finished=finished) if finished else None

    def pieces(self) -> Iterator[KeptPiece]:
        """Yield messages that together hold everything.
        The notes are in the last message, so that a receiver that has the notes has everything.
        """
        number = 0
        while (piece := self.piece(number)) is not None:
            yield piece
            number += 1
        if self.notes is not None:
            yield KeptPiece(notes=self.notes)
