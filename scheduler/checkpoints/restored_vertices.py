"""Describes the vertices of a job, and their operators, for a restore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flinkray.checkpoint.metadata import CheckpointedEdge
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.checkpoints.errors import StateRestoreError
from flinkray.scheduler.graph.job_graph import DistributionPattern
from flinkray.scheduler.graph.vertex_operator import VertexOperator


@dataclass(frozen=True, slots=True)
class RestoredVertex:
    """A job vertex as the restored job will execute it."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    max_parallelism: int
    is_max_parallelism_configured: bool
    """Whether the max parallelism is configured; if not, that of restored state replaces it."""
    operators: tuple[VertexOperator, ...]
    inputs: tuple[tuple[JobVertexID, DistributionPattern], ...] = field(default=())
    """The vertices that this vertex reads, with the distribution pattern of each."""
    edges: tuple[CheckpointedEdge, ...] = ()
    """The edges from the vertices that this vertex reads, as checkpoints describe edges."""


def check_operator_ids(job_id: JobID, vertices: Iterable[RestoredVertex]) -> None:
    """Check that each operator of a job has its own id.

    Raises:
        StateRestoreError: two operators have the same id.
    """
    known: dict[str, VertexOperator] = {}
    for operator in _operators(vertices):
        ids = {operator.operator_id, operator.uid_hash} - {None}
        for operator_id in sorted(str(each) for each in ids):
            other = known.setdefault(operator_id, operator)
            if other is not operator:
                raise StateRestoreError(
                    job_id,
                    f"the operators {other} and {operator} have the same id, {operator_id}: give "
                    "each a uid of its own",
                )


def operators_by_id(vertices: Sequence[RestoredVertex]) -> dict[str, VertexOperator]:
    """Return the operators by every id under which their state may be found."""
    found: dict[str, VertexOperator] = {}
    for operator in _operators(vertices):
        found[operator.operator_id] = operator
        if operator.uid_hash is not None:
            found[operator.uid_hash] = operator
    return found


def _operators(vertices: Iterable[RestoredVertex]) -> Iterable[VertexOperator]:
    return (operator for vertex in vertices for operator in vertex.operators)
