"""What a JobMaster has its SlotPool keep for the job's next one."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.actors.gateways.stream_coordinator import KeptPart
from flinkray.core.ids import ExecutionVertexID, JobVertexID
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes


class KeptNotes:
    """The last notes, and what has finished in the execution graph that they are of."""

    def __init__(self) -> None:
        self.notes: JobNotes | None = None
        self._finished: dict[ExecutionVertexID, FinishedTask] = {}
        self._parts: dict[JobVertexID | None, KeptPart] = {}

    @property
    def parts(self) -> tuple[KeptPart, ...]:
        """The last that the coordinator of the sources knew of each."""
        return tuple(self._parts.values())

    def keep_part(self, part: KeptPart) -> None:
        """It replaces an earlier one."""
        known = self._parts.get(part.vertex_id)
        if known is None or known.age < part.age:
            self._parts[part.vertex_id] = part

    @property
    def finished(self) -> tuple[FinishedTask, ...]:
        """The last attempt of each subtask that has had one, in the order in which they came."""
        return tuple(self._finished.values())

    def note(self, notes: JobNotes) -> None:
        """They replace all earlier ones."""
        if self.notes is not None and self.notes.graph_id != notes.graph_id:
            self._finished.clear()
        self.notes = notes

    def note_finished(self, finished: Iterable[FinishedTask]) -> None:
        for task in finished:
            self._finished[task.state.attempt_id.vertex] = task
