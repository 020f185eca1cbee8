"""What of a job has to be known to give it state back: its vertices and their operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.message import message
from flinkray.scheduler.checkpoints.errors import StateRestoreError
from flinkray.scheduler.graph.job_graph import DistributionPattern


@message
class VertexOperator:
    """An operator that is chained into a vertex."""

    operator_id: str
    """Made of the uid, or, without one, of the operator's place in the program."""
    name: str
    uid: str | None = None
    """As the program's author has set it."""
    uid_hash: str | None = None
    """An id that the author has set: state is looked for under it before it is under the other."""

    def __str__(self) -> str:
        return operator_text(self.name, self.uid)


def operator_text(name: str, uid: str | None) -> str:
    """An operator, for people."""
    return f"{name!r} (uid {uid!r})" if uid is not None else f"{name!r} (without a uid)"


@dataclass(frozen=True, slots=True)
class RestoredVertex:
    """A job vertex as it is going to be executed."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    max_parallelism: int
    is_max_parallelism_configured: bool
    """False: it was derived from the parallelism, and may become that of the state."""
    operators: tuple[VertexOperator, ...]
    inputs: tuple[tuple[JobVertexID, DistributionPattern], ...] = field(default=())
    """The vertices that it reads, and how."""


def check_operator_ids(job_id: JobID, vertices: Iterable[RestoredVertex]) -> None:
    """Each operator of a job has an id of its own.

    Raises:
        StateRestoreError: two of them have the same.
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
    """By each id under which the state of an operator may be found."""
    found: dict[str, VertexOperator] = {}
    for operator in _operators(vertices):
        found[operator.operator_id] = operator
        if operator.uid_hash is not None:
            found[operator.uid_hash] = operator
    return found


def _operators(vertices: Iterable[RestoredVertex]) -> Iterable[VertexOperator]:
    return (operator for vertex in vertices for operator in vertex.operators)
