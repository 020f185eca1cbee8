"""State that is pickled: a user is to know before it has to be read by another program."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.scheduler.checkpoints.messages import PickledState
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.graph.vertex_operator import VertexOperator

_MOST = 20
"""Warnings that are kept: each is about a state of an operator, and of these there are few."""


class PickledStates:
    """What the tasks of a job have pickled, each state once."""

    def __init__(self, job_graph: JobGraph) -> None:
        self._operators: dict[str, VertexOperator] = {
            operator.operator_id: operator
            for vertex in job_graph.vertices
            for operator in vertex.operators
        }
        self._warnings: dict[tuple[str, str], str] = {}

    def add(self, states: Iterable[PickledState]) -> None:
        """What one task has told; it may have told it before."""
        for state in states:
            place = state.operator_id, state.name
            if place not in self._warnings and len(self._warnings) < _MOST:
                operator = self._operators.get(state.operator_id, state.operator_id)
                self._warnings[place] = (
                    f"state {state.name!r} of operator {operator} has values of "
                    f"{', '.join(state.types)}, which are pickled: a program whose class has "
                    "changed may be unable to read them; use a dataclass, a named tuple or a Row"
                )

    @property
    def warnings(self) -> tuple[str, ...]:
        """For people, in the order in which they came up."""
        return tuple(self._warnings.values())
