"""Input and output formats: what is done for a vertex once per job, outside its tasks.

User code never runs where decisions are made: that it is to run, and that it has run, are actions
and events.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkray.core.ids import JobVertexID
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionVertex
from flinkray.scheduler.job.input_splits import InputSplit, InputSplitAssigner
from flinkray.scheduler.job.job_scheduler_actions import FinalizeOnMaster, InitializeOnMaster
from flinkray.scheduler.job.outbox import Outbox


class MasterFormats:
    """Initialisation before the job is scheduled, input splits while it runs, and finalisation when
    all of it is finished: once per vertex, and never for a job that fails (EG-11)."""

    def __init__(self, graph: ExecutionGraph, outbox: Outbox) -> None:
        self._outbox = outbox
        self._formats = {
            vertex.vertex.vertex_id: vertex.vertex.master_format
            for vertex in graph.vertices
            if vertex.vertex.master_format is not None
        }
        self._pending: dict[JobVertexID, int] = {}
        """Vertices whose format is at work, with the generation of its order; 0: initialising."""
        self._generation = 0
        self._splits: dict[JobVertexID, InputSplitAssigner] = {}

    def initialize(self) -> bool:
        """Ask for all initialisations; whether there are any to wait for."""
        for vertex_id, master_format in self._formats.items():
            self._pending[vertex_id] = 0
            self._outbox.add(InitializeOnMaster(vertex_id, master_format))
        return bool(self._pending)

    def initialized(self, vertex_id: JobVertexID, splits: Sequence[InputSplit]) -> bool:
        """Whether that was the last."""
        if self._pending.get(vertex_id) != 0:
            return False
        del self._pending[vertex_id]
        if self._formats[vertex_id].makes_splits:
            self._splits[vertex_id] = InputSplitAssigner(splits)
        return not self._pending

    def finalize(self) -> bool:
        """Ask for all finalisations; whether there are any to wait for."""
        self._generation += 1
        for vertex_id, master_format in self._formats.items():
            if master_format.finalizes:
                self._pending[vertex_id] = self._generation
                self._outbox.add(FinalizeOnMaster(vertex_id, master_format, self._generation))
        return bool(self._pending)

    def finalized(self, vertex_id: JobVertexID, generation: int) -> bool:
        """Whether that was the last."""
        if generation == 0 or self._pending.get(vertex_id) != generation:
            return False
        del self._pending[vertex_id]
        return not self._pending

    def failed(self, vertex_id: JobVertexID, generation: int) -> bool:
        """Whether that was waited for; nothing is waited for any more."""
        if self._pending.get(vertex_id) != generation:
            return False
        self._pending.clear()
        return True

    def next_split(self, vertex: ExecutionVertex, number: int, host: str) -> InputSplit | None:
        """The *number*-th input of a subtask."""
        assigner = self._splits.get(vertex.job_vertex.vertex.vertex_id)
        return None if assigner is None else assigner.next_split(vertex.subtask_index, number, host)

    def reset(self, vertices: Sequence[ExecutionVertex], is_global: bool) -> None:
        """These are going to be executed again: splits are handed out again (JM-12)."""
        self._pending.clear()
        if is_global:
            for assigner in self._splits.values():
                assigner.reset()
            return
        for vertex in vertices:
            returned = self._splits.get(vertex.job_vertex.vertex.vertex_id)
            if returned is not None:
                returned.return_splits(vertex.subtask_index)
