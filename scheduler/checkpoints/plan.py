"""Which tasks take part in a checkpoint, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flinkray.checkpoint.metadata import CheckpointedEdge
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import ExecutionAttemptID, JobVertexID
from flinkray.scheduler.graph.vertex_operator import VertexOperator
from flinkray.scheduler.shared.states import ExecutionState


class VertexInput(Protocol):
    """A vertex reads another one."""

    @property
    def producer(self) -> int:
        """Its number among the vertices."""

    def producers_of(self, subtask_index: int) -> range:
        """The producer's subtasks that a subtask reads."""


class CheckpointedVertex(Protocol):
    """What a plan has to know of a job vertex in execution."""

    @property
    def vertex_id(self) -> JobVertexID: ...

    @property
    def name(self) -> str: ...

    @property
    def parallelism(self) -> int: ...

    @property
    def max_parallelism(self) -> int: ...

    @property
    def operators(self) -> tuple[VertexOperator, ...]: ...

    @property
    def inputs(self) -> Sequence[VertexInput]: ...

    @property
    def edges(self) -> tuple[CheckpointedEdge, ...]:
        """The inputs, as data in flight is known by them."""

    @property
    def hands_over_to(self) -> Collection[str]:
        """Vertices without state, by their ids, that work on with what this one has given them."""

    @property
    def brings_back_of(self) -> str | None:
        """Such a vertex, of which this one reads what comes of that."""

    def attempt(self, subtask_index: int) -> ExecutionAttemptID:
        """The current one."""

    def state(self, subtask_index: int) -> ExecutionState:
        """Of the current attempt."""


class CheckpointedTopology(Protocol):
    """What a plan has to know of an execution graph."""

    @property
    def vertices(self) -> Sequence[CheckpointedVertex]:
        """Each after those that it reads."""

    @property
    def unfinished(self) -> Collection[str]:
        """Vertices without state that have not finished, by their ids."""


@dataclass(frozen=True, slots=True)
class PlannedVertex:
    """A vertex as it was when the checkpoint began."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    max_parallelism: int
    operators: tuple[VertexOperator, ...]
    finished: frozenset[int]
    """Subtasks that have nothing to do any more, and take no part."""
    edges: tuple[CheckpointedEdge, ...]
    """By which it reads others."""


Place = tuple[int, int]
"""Number of the vertex, index of the subtask."""


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Attempts are named in the order of vertices and subtasks."""

    vertices: tuple[PlannedVertex, ...]
    to_trigger: tuple[ExecutionAttemptID, ...]
    """Those that nothing sends barriers to: sources, or what reads finished tasks only."""
    running: Mapping[ExecutionAttemptID, Place]
    """All others get barriers.  Each of these is waited for, and told what becomes of it."""


class TasksMissingError(FlinkRayError):
    """There can be no checkpoint now; the text says because of which task."""

    retryable = True


def calculate_plan(topology: CheckpointedTopology, *, allows_finished: bool) -> CheckpointPlan:
    """
    Raises:
        TasksMissingError: a task does not run (yet, or any more); *allows_finished*: and has not
            finished either.
    """
    planned: list[PlannedVertex] = []
    to_trigger: list[ExecutionAttemptID] = []
    running: dict[ExecutionAttemptID, Place] = {}
    for number, vertex in enumerate(topology.vertices):
        finished = frozenset(
            subtask
            for subtask in range(vertex.parallelism)
            if _is_finished(vertex, subtask, allows_finished)
        )
        for subtask in range(vertex.parallelism):
            if subtask in finished:
                continue
            attempt = vertex.attempt(subtask)
            running[attempt] = (number, subtask)
            if not any(
                producer not in planned[edge.producer].finished
                for edge in vertex.inputs
                for producer in edge.producers_of(subtask)
            ):
                to_trigger.append(attempt)
        planned.append(
            PlannedVertex(
                vertex.vertex_id,
                vertex.name,
                vertex.parallelism,
                vertex.max_parallelism,
                vertex.operators,
                finished,
                vertex.edges,
            )
        )
    if not running:
        raise TasksMissingError("all tasks have finished")
    return CheckpointPlan(tuple(planned), tuple(to_trigger), running)


def check_all_is_held(topology: CheckpointedTopology) -> None:
    """Somebody's state has what is on its way through vertices that have none.

    Raises:
        TasksMissingError: who has handed it over has finished, and they have not.
    """
    given = {
        taker: vertex.name
        for vertex in topology.vertices
        if any(_has_finished(vertex, subtask) for subtask in range(vertex.parallelism))
        for taker in vertex.hands_over_to
    }
    at_work = set(topology.unfinished)
    for vertex in topology.vertices:
        if not all(_has_finished(vertex, subtask) for subtask in range(vertex.parallelism)):
            at_work.add(vertex.brings_back_of or "")
    for taker, giver in given.items():
        if taker in at_work:
            raise TasksMissingError(
                f"{giver} has finished, and a savepoint would not have what it has handed to Spark "
                "before Spark is through with that and it has come back, if it does: wait until "
                "then, or for the end of the job"
            )


def check_queries_are_held(topology: CheckpointedTopology) -> None:
    """Of what a vertex without state makes by itself, the first task that reads it gives savepoints
    the rest of the state.

    Raises:
        TasksMissingError: that one has finished, and others have not.
    """
    given = {taker for vertex in topology.vertices for taker in vertex.hands_over_to}
    for vertex in topology.vertices:
        finished = [_has_finished(vertex, subtask) for subtask in range(vertex.parallelism)]
        if vertex.brings_back_of not in {None, *given} and finished[0] and not all(finished):
            raise TasksMissingError(
                f"the first task of {vertex.name} has finished, which would give the savepoint "
                "what Spark keeps of the query, and others have not: wait until all have, or for "
                "the end of the job"
            )


def _has_finished(vertex: CheckpointedVertex, subtask: int) -> bool:
    return vertex.state(subtask) is ExecutionState.FINISHED


def _is_finished(vertex: CheckpointedVertex, subtask: int, allows_finished: bool) -> bool:
    state = vertex.state(subtask)
    if state is ExecutionState.RUNNING:
        return False
    if state is ExecutionState.FINISHED and allows_finished:
        return True
    task = f"{vertex.name} ({subtask + 1}/{vertex.parallelism})"
    raise TasksMissingError(f"{task} is {state.value}")
