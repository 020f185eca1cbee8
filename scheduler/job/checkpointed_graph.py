"""Adapts an execution graph for the CheckpointCoordinator and the state assignment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from flinkray.checkpoint.metadata import CheckpointedEdge
from flinkray.core.ids import ExecutionAttemptID, JobVertexID
from flinkray.scheduler.checkpoints.state_assignment import RestoredVertex
from flinkray.scheduler.execution.execution_graph import (
    ExecutionGraph,
    ExecutionJobVertex,
    ResultEdge,
)
from flinkray.scheduler.graph.job_graph import (
    BATCHES_OF,
    EPOCHS_OF,
    STREAM,
    JobGraph,
    VertexOperator,
)
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState


class ExecutedInput:
    """Describes an input of a vertex to the state assignment: which subtasks of the producer are
    read."""

    __slots__ = ("_edge", "producer")

    def __init__(self, edge: ResultEdge, producer: int) -> None:
        self._edge = edge
        self.producer = producer
        """Index of the producing vertex in ``CheckpointedGraph.vertices``."""

    def producers_of(self, subtask_index: int) -> range:
        """Return the indices of the producer's subtasks that the subtask reads."""
        return self._edge.group_of_consumer(subtask_index).partitions


class ExecutedVertex:
    """Presents a job vertex with its current attempts to the CheckpointCoordinator."""

    __slots__ = ("_vertex", "inputs")

    def __init__(self, vertex: ExecutionJobVertex, numbers: Mapping[int, int]) -> None:
        """Present *vertex*. *numbers*: index of a vertex in the execution graph -> its index in the
        CheckpointedGraph."""
        self._vertex = vertex
        self.inputs = [
            ExecutedInput(edge, numbers[edge.result.producer.index]) for edge in vertex.inputs
        ]

    @property
    def vertex_id(self) -> JobVertexID:
        return self._vertex.vertex.vertex_id

    @property
    def name(self) -> str:
        return self._vertex.vertex.name

    @property
    def parallelism(self) -> int:
        return self._vertex.parallelism

    @property
    def max_parallelism(self) -> int:
        return self._vertex.max_parallelism

    @property
    def operators(self) -> tuple[VertexOperator, ...]:
        return self._vertex.vertex.operators

    @property
    def edges(self) -> tuple[CheckpointedEdge, ...]:
        """The edges from the vertices that this vertex reads, in the form that checkpoint metadata
        stores."""
        return tuple(_edges(self._vertex))

    @property
    def hands_over_to(self) -> Collection[str]:
        """Ids of the Spark stages to which this vertex passes its records, in numbered sections
        (epochs)."""
        return self._vertex.vertex.invokable.configuration.get(EPOCHS_OF, "").split()

    @property
    def brings_back_of(self) -> str | None:
        """Id of the Spark stage whose results (micro-batches) this vertex reads back into the
        stream; None if there is none."""
        return self._vertex.vertex.invokable.configuration.get(BATCHES_OF)

    def attempt(self, subtask_index: int) -> ExecutionAttemptID:
        """Return the id of the subtask's current attempt."""
        return self._vertex.subtasks[subtask_index].current.attempt_id

    def state(self, subtask_index: int) -> ExecutionState:
        """Return the state of the subtask's current attempt."""
        return self._vertex.subtasks[subtask_index].current.state

    def restored(self, *, is_max_parallelism_configured: bool) -> RestoredVertex:
        """Describe the vertex for StateAssignment, which assigns restored state to its subtasks."""
        return RestoredVertex(
            self.vertex_id,
            self.name,
            self.parallelism,
            self.max_parallelism,
            is_max_parallelism_configured,
            self.operators,
            tuple(
                (edge.result.producer.vertex.vertex_id, edge.pattern)
                for edge in self._vertex.inputs
            ),
            self.edges,
        )


def _edges(reader: ExecutionJobVertex) -> Iterator[CheckpointedEdge]:
    for gate, (job_edge, edge) in enumerate(zip(reader.vertex.inputs, reader.inputs, strict=True)):
        writer = edge.result.producer
        if job_edge.operator_id:
            yield CheckpointedEdge(
                writer.vertex.operators[0].operator_id,
                writer.results.index(edge.result),
                reader.vertex.operators[0].operator_id,
                gate,
                job_edge.operator_id,
                job_edge.output_tag,
                job_edge.input_index,
                job_edge.ship_strategy,
            )


class CheckpointedGraph:
    """The part of an execution graph that takes part in checkpoints: all vertices except Spark
    stages. A Spark stage has no streaming state.  Checkpoints are taken before it begins, while it
    runs and after it is finished."""

    def __init__(
        self, graph: ExecutionGraph, with_own_max_parallelism: Collection[JobVertexID]
    ) -> None:
        """Present the part of *graph* that takes part in checkpoints. *with_own_max_parallelism*:
        the vertices whose max parallelism is configured."""
        self._graph = graph
        taking_part = [vertex for vertex in graph.vertices if not vertex.is_coordinated]
        numbers = {vertex.index: number for number, vertex in enumerate(taking_part)}
        self.vertices = [ExecutedVertex(vertex, numbers) for vertex in taking_part]
        self._coordinated = [vertex for vertex in graph.vertices if vertex.is_coordinated]
        self._with_own_max_parallelism = with_own_max_parallelism

    @property
    def unfinished(self) -> list[str]:
        """Ids of the Spark vertices that have not finished."""
        return [
            str(vertex.vertex.vertex_id)
            for vertex in self._coordinated
            if any(
                subtask.current.state is not ExecutionState.FINISHED for subtask in vertex.subtasks
            )
        ]

    def restored_vertices(self) -> list[RestoredVertex]:
        own = self._with_own_max_parallelism
        return [
            vertex.restored(is_max_parallelism_configured=vertex.vertex_id in own)
            for vertex in self.vertices
        ]

    def by_location(
        self, attempts: Iterable[ExecutionAttemptID]
    ) -> dict[WorkerLocation, list[ExecutionAttemptID]]:
        """Return those of *attempts* that have not ended, grouped by the TaskExecutor that runs
        them."""
        found: dict[WorkerLocation, list[ExecutionAttemptID]] = {}
        for attempt_id in attempts:
            execution = self._graph.find(attempt_id)
            if execution is None or execution.slot is None or execution.state.is_terminal:
                continue
            found.setdefault(execution.slot.location, []).append(attempt_id)
        return found


def coordinated_operators(job_graph: JobGraph) -> tuple[str, ...]:
    """Return the operator ids of the job's streaming sources, each of which has an enumerator."""
    return tuple(
        vertex.operators[0].operator_id
        for vertex in job_graph.vertices
        if vertex.invokable.kind == STREAM and not vertex.inputs and vertex.operators
    )
