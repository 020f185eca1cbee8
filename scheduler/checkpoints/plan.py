"""Decides which tasks take part in a checkpoint, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flinkray.checkpoint.metadata import CheckpointedEdge
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import ExecutionAttemptID, JobVertexID
from flinkray.scheduler.checkpoints.actions import OrderCheckpoint, OrderCoordinators
from flinkray.scheduler.checkpoints.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOrder,
)
from flinkray.scheduler.graph.job_graph import VertexOperator
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState


class VertexInput(Protocol):
    """Interface to an input of a vertex: which subtasks of another vertex are read."""

    @property
    def producer(self) -> int:
        """Index of the producing vertex among the vertices of the topology."""

    def producers_of(self, subtask_index: int) -> range:
        """Return the indices of the producer's subtasks that the subtask reads."""


class CheckpointedVertex(Protocol):
    """Interface to a job vertex in execution, as far as checkpoint plans depend on it."""

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
        """The edges from the vertices that this vertex reads, in the form that checkpoint metadata
        stores."""

    @property
    def hands_over_to(self) -> Collection[str]:
        """Ids of the vertices without state (Spark stages) that process data which this vertex
        writes for them."""

    @property
    def brings_back_of(self) -> str | None:
        """Id of the vertex without state (a Spark stage) whose results this vertex reads back into
        the stream; None if there is none."""

    def attempt(self, subtask_index: int) -> ExecutionAttemptID:
        """Return the id of the subtask's current attempt."""

    def state(self, subtask_index: int) -> ExecutionState:
        """Return the state of the subtask's current attempt."""


class CheckpointedTopology(Protocol):
    """Interface to an execution graph, as far as checkpoint plans depend on it."""

    @property
    def vertices(self) -> Sequence[CheckpointedVertex]:
        """The vertices in topological order."""

    @property
    def unfinished(self) -> Collection[str]:
        """Ids of the vertices without state (Spark stages) that have not finished."""

    def by_location(
        self, attempts: Iterable[ExecutionAttemptID]
    ) -> Mapping[WorkerLocation, Sequence[ExecutionAttemptID]]:
        """Return those of *attempts* that have not ended, grouped by the TaskExecutor that runs
        them."""


def outcome_orders(
    topology: CheckpointedTopology,
    attempts: Iterable[ExecutionAttemptID],
    operators: tuple[str, ...],
    order: CheckpointCompleted | CheckpointAborted,
) -> list[OrderCheckpoint | OrderCoordinators]:
    """Return the actions that send *order* to tasks and to the coordinators of *operators*."""
    to_tasks = task_orders(topology, attempts, order)
    return [*to_tasks, OrderCoordinators(operators, order)] if operators else [*to_tasks]


def task_orders(
    topology: CheckpointedTopology, attempts: Iterable[ExecutionAttemptID], order: CheckpointOrder
) -> list[OrderCheckpoint]:
    """Return one order per TaskExecutor, for those of *attempts* that have not ended."""
    by_location = topology.by_location(attempts)
    return [OrderCheckpoint(location, tuple(here), order) for location, here in by_location.items()]


@dataclass(frozen=True, slots=True)
class PlannedVertex:
    """A vertex of the execution graph, as it was when the checkpoint began."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    max_parallelism: int
    operators: tuple[VertexOperator, ...]
    finished: frozenset[int]
    """Indices of finished subtasks, which take no part in the checkpoint."""
    edges: tuple[CheckpointedEdge, ...]
    """The edges from the vertices that this vertex reads."""


Place = tuple[int, int]
"""(index of the vertex, index of the subtask)"""


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Tells which tasks take part in a checkpoint, ordered by vertices and subtasks."""

    vertices: tuple[PlannedVertex, ...]
    to_trigger: tuple[ExecutionAttemptID, ...]
    """Tasks that receive no barriers: sources, and tasks all of whose producers have finished."""
    running: Mapping[ExecutionAttemptID, Place]
    """All tasks that take part; those not in ``to_trigger`` receive barriers.
    The coordinator waits for each of these tasks, and tells each whether the checkpoint is
    completed or aborted."""

    def task(self, attempt: ExecutionAttemptID) -> str:
        """Return a text that describes a running task, for users."""
        number, subtask = self.running[attempt]
        vertex = self.vertices[number]
        return f"{vertex.name} ({subtask + 1}/{vertex.parallelism}), attempt {attempt}"

    def operator(self, operator_id: str) -> str:
        """Return a text that describes an operator, for users; only the id if the plan lacks it."""
        operators = (operator for vertex in self.vertices for operator in vertex.operators)
        found = next((it for it in operators if it.operator_id == operator_id), None)
        return f"operator {operator_id}" if found is None else f"operator {found} ({operator_id})"


class TasksMissingError(FlinkRayError):
    """Raised if no checkpoint can be taken now.  The text says which task is the reason."""

    retryable = True


def calculate_plan(topology: CheckpointedTopology, *, allows_finished: bool) -> CheckpointPlan:
    """Decide which tasks take part in a checkpoint that begins now. *allows_finished*: the
    checkpoint can be taken even if some tasks have finished.

    Raises:
        TasksMissingError: all tasks have finished; a task neither runs nor has finished; or a task
            has finished although *allows_finished* is False.
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
    """Check that a savepoint would contain all records that are on their way through Spark stages:
    a stage has no state in savepoints, so the tasks before it must keep its records in theirs.

    Raises:
        TasksMissingError: a task before a Spark stage has finished, and its records are still being
            processed by the stage or by the vertex that reads the stage's results.
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
                f"{giver} has finished, and Spark still processes its records, which a savepoint "
                "would not contain: wait until they have been processed and read back, or for the "
                "end of the job"
            )


def check_queries_are_held(topology: CheckpointedTopology) -> None:
    """Check that a savepoint would contain the state of Spark's streaming queries. The first task
    of the vertex that reads a query's results adds the query's state to savepoints.

    Raises:
        TasksMissingError: this task has finished, and other tasks of its vertex have not.
    """
    given = {taker for vertex in topology.vertices for taker in vertex.hands_over_to}
    for vertex in topology.vertices:
        finished = [_has_finished(vertex, subtask) for subtask in range(vertex.parallelism)]
        if vertex.brings_back_of not in {None, *given} and finished[0] and not all(finished):
            raise TasksMissingError(
                f"the first task of {vertex.name}, which adds the state of the Spark query to "
                "savepoints, has finished, and other tasks have not: wait until all have finished, "
                "or for the end of the job"
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
