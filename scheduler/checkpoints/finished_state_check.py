"""Checks whether a changed job can be restored from a checkpoint with finished operators.
Finished operators are not executed again, so they forward nothing.  (Flink's
VertexFinishedStateChecker.)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from flinkray.checkpoint.metadata import CheckpointedOperator
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.checkpoints.errors import StateRestoreError
from flinkray.scheduler.checkpoints.restored_vertices import RestoredVertex
from flinkray.scheduler.graph.job_graph import DistributionPattern


class FinishedState(IntEnum):
    """Tells whether no, some or all subtasks of an operator or vertex were finished in the
    checkpoint."""

    NONE = 0
    PARTLY = 1
    FULLY = 2


OperatorsOfVertices = Mapping[JobVertexID, tuple[CheckpointedOperator | None, ...]]
"""State of each operator of a vertex, in the vertex's order; None for a new operator."""


def check_finished_state(
    job_id: JobID, vertices: Iterable[RestoredVertex], found: OperatorsOfVertices
) -> dict[JobVertexID, FinishedState]:
    """Check that finished operators fit the job.  Returns for each vertex how much of it was
    finished.

    Raises:
        StateRestoreError: finished operators are chained to unfinished ones; or a finished vertex
            reads an unfinished vertex, whose records would be lost.
    """
    vertices = tuple(vertices)
    states = {vertex.vertex_id: _state_of(job_id, vertex, found) for vertex in vertices}
    names = {vertex.vertex_id: vertex.name for vertex in vertices}
    for vertex in vertices:
        state = states[vertex.vertex_id]
        for producer, pattern in vertex.inputs:
            of_producer = states[producer]
            is_lost = state is FinishedState.FULLY and of_producer is not FinishedState.FULLY
            if state is FinishedState.PARTLY:
                # A subtask reads all of an all-to-all producer, and a part of a pointwise one.
                is_pointwise = pattern is DistributionPattern.POINTWISE
                least = FinishedState.PARTLY if is_pointwise else FinishedState.FULLY
                is_lost = of_producer < least
            if is_lost:
                much = "is" if state is FinishedState.FULLY else "is partly"
                raise StateRestoreError(
                    job_id,
                    f"the vertex {vertex.name!r} {much} finished in the checkpoint and would read "
                    f"{names[producer]!r}, which is not: what that puts out would be lost. Put new "
                    "operators behind the finished ones, or give those other uids",
                )
    return states


def _state_of(job_id: JobID, vertex: RestoredVertex, found: OperatorsOfVertices) -> FinishedState:
    operators = found[vertex.vertex_id]
    states = [_of_operator(operator) for operator in operators]
    if FinishedState.FULLY in states and states.count(FinishedState.FULLY) < len(states):
        finished, running = (
            next(
                operator
                for operator, state in zip(vertex.operators, states, strict=True)
                if (state is FinishedState.FULLY) == is_finished
            )
            for is_finished in (True, False)
        )
        raise StateRestoreError(
            job_id,
            f"the operators {finished} and {running} are chained in the vertex {vertex.name!r}, "
            "and the checkpoint has the first as finished and the other not: keep them apart "
            "(disable_chaining), or give the first another uid",
        )
    return max(states, default=FinishedState.NONE)


def _of_operator(operator: CheckpointedOperator | None) -> FinishedState:
    if operator is None or not any(subtask.is_finished for subtask in operator.subtasks):
        return FinishedState.NONE
    return FinishedState.FULLY if operator.is_finished else FinishedState.PARTLY
