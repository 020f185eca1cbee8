"""Job vertices, their subtasks, the attempts to execute these, and what they exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    IntermediateDataSetID,
    JobVertexID,
    ResultPartitionID,
)
from flinkray.scheduler.execution.execution import Execution
from flinkray.scheduler.execution.intermediate_result import IntermediateResult, ResultEdge
from flinkray.scheduler.graph.job_graph import (
    COORDINATED_KINDS,
    DistributionPattern,
    JobGraph,
    JobVertex,
    ResultMedium,
    ResultPartitionType,
)
from flinkray.scheduler.graph.max_parallelism import default_max_parallelism
from flinkray.scheduler.graph.validation import topological_order
from flinkray.scheduler.shared.states import ExecutionState

PRIOR_ATTEMPTS_KEPT = 16
"""Of each subtask, as Flink's ``jobmanager.execution.attempts-history-size``."""


class ExecutionVertex:
    """A subtask and its attempts."""

    __slots__ = ("_vertex_id", "current", "job_vertex", "ordinal", "prior", "subtask_index")

    def __init__(
        self, job_vertex: ExecutionJobVertex, subtask_index: int, attempt_number: int, now: float
    ) -> None:
        self.job_vertex = job_vertex
        self.subtask_index = subtask_index
        self.ordinal = job_vertex.first + subtask_index
        """Its number in the graph: vertices in topological order, then subtasks."""
        self._vertex_id: ExecutionVertexID | None = None
        self.current = Execution(self, attempt_number, now)
        self.prior: tuple[Execution, ...] = ()
        """Attempts before the current one, oldest first, the newest few."""

    def __str__(self) -> str:
        return self.task_name

    @property
    def vertex_id(self) -> ExecutionVertexID:
        if self._vertex_id is None:
            self._vertex_id = ExecutionVertexID(
                self.job_vertex.vertex.vertex_id, self.subtask_index
            )
        return self._vertex_id

    @property
    def task_name(self) -> str:
        job_vertex = self.job_vertex
        return f"{job_vertex.vertex.name} ({self.subtask_index + 1}/{job_vertex.parallelism})"

    def reset_for_new_execution(self, now: float) -> Execution:
        """The next attempt becomes the current one.

        Raises:
            IllegalTransitionError: the current attempt has not ended.
        """
        before = self.current
        if not before.state.is_terminal:
            raise before.illegal("be followed by another attempt: it has not ended")
        self.job_vertex.execution_reset(before.state)
        self.prior = (*self.prior, before)[-PRIOR_ATTEMPTS_KEPT:]
        self.current = Execution(self, before.attempt_number + 1, now)
        return self.current


class ExecutionJobVertex:
    """A job vertex: its subtasks in order, its results and inputs."""

    __slots__ = (
        "_finished",
        "_unended",
        "coordinator_attempt",
        "coordinator_is_there",
        "first",
        "graph_id",
        "index",
        "inputs",
        "max_parallelism",
        "parallelism",
        "results",
        "subtasks",
        "vertex",
    )

    def __init__(
        self,
        graph_id: ExecutionGraphID,
        index: int,
        first: int,
        vertex: JobVertex,
        parallelism: int,
        attempt: int,
        now: float,
    ) -> None:
        self.graph_id = graph_id
        self.index = index
        """Among the job vertices, in topological order."""
        self.first = first
        """The ordinal of its first subtask."""
        self.vertex = vertex
        self.parallelism = parallelism
        """How many subtasks there are: with elastic jobs less than the vertex wants."""
        self.max_parallelism = vertex.max_parallelism or default_max_parallelism(vertex.parallelism)
        self.coordinator_attempt = 0
        """Of a coordinated vertex: the attempt of its coordinator that its subtasks belong to."""
        self.coordinator_is_there = False
        """Of a coordinated vertex: its coordinator has begun and has not ended, so that processes
        may be in the slots of its subtasks."""
        self._unended = self.parallelism
        self._finished = 0
        self.subtasks = tuple(ExecutionVertex(self, i, attempt, now) for i in range(parallelism))
        self.results = [
            IntermediateResult(data_set.data_set_id, data_set.result_type, self, data_set.medium)
            for data_set in vertex.results
        ]
        self.inputs: list[ResultEdge] = []

    @property
    def is_coordinated(self) -> bool:
        """Whether its subtasks are started and ended by a coordinator of the vertex, as those of
        Spark stages are: they run when the coordinator says so, fail together, and are finished
        when the coordinator has finished."""
        return self.vertex.invokable.kind in COORDINATED_KINDS

    @property
    def ordinals(self) -> range:
        """Of its subtasks."""
        return range(self.first, self.first + self.parallelism)

    @property
    def executions(self) -> tuple[Execution, ...]:
        """The current attempts, by subtask."""
        return tuple(subtask.current for subtask in self.subtasks)

    @property
    def is_terminal(self) -> bool:
        """Whether every current attempt has ended."""
        return self._unended == 0

    @property
    def is_finished(self) -> bool:
        """Whether every subtask is FINISHED."""
        return self._finished == self.parallelism

    def find(self, attempt_id: ExecutionAttemptID) -> Execution | None:
        """The current attempt of that id; None: it is of another vertex or not current (EX-11)."""
        index = attempt_id.vertex.subtask_index
        if attempt_id.vertex.job_vertex_id != self.vertex.vertex_id or not (
            0 <= index < len(self.subtasks)
        ):
            return None
        current = self.subtasks[index].current
        return current if current.attempt_number == attempt_id.attempt_number else None

    def execution_ended(self, state: ExecutionState) -> None:
        """Told by the current attempts."""
        self._unended -= 1
        self._finished += state is ExecutionState.FINISHED

    def execution_reset(self, state: ExecutionState) -> None:
        """The ended attempt of a subtask is followed by another."""
        self._unended += 1
        self._finished -= state is ExecutionState.FINISHED


class ExecutionGraph:
    """All vertices of a job, in topological order, and the edges between them.

    Execution vertices are numbered through (*ordinals*), so that what is computed over all of them
    works on integers.
    """

    def __init__(
        self,
        job_graph: JobGraph,
        graph_id: ExecutionGraphID,
        now: float,
        *,
        parallelism: Mapping[JobVertexID, int] | None = None,
        first_attempt: int = 0,
    ) -> None:
        """*parallelism*: of elastic vertices, in place of what they want.  *first_attempt*: number
        of the first attempts, when the job was executed before with another parallelism."""
        self.job_graph = job_graph
        self.graph_id = graph_id
        """In the ids of all its attempts and partitions: no other graph of the job has it."""
        self._parallelism = parallelism or {}
        self._first_attempt = first_attempt
        self.vertices: list[ExecutionJobVertex] = []
        self.subtasks: list[ExecutionVertex] = []
        """By ordinal."""
        self.edges: list[ResultEdge] = []
        self._by_id: dict[JobVertexID, ExecutionJobVertex] = {}
        self._results: dict[IntermediateDataSetID, IntermediateResult] = {}
        self.attach(topological_order(job_graph), now)
        self._run_coordinated_vertices_one_after_another()

    def attach(self, vertices: Iterable[JobVertex], now: float) -> None:
        """Add vertices, each after those that it reads (EG-01).

        Raises:
            JobSubmissionError: a vertex is there already, or one that it reads is not; or it has
                more subtasks than its max parallelism allows (EG-02).  Nothing of that vertex is
                attached; those before it are.
        """
        for vertex in vertices:
            if vertex.vertex_id in self._by_id:
                raise self._refusal(f"vertex {vertex.name!r} is attached already")
            parallelism = self._parallelism.get(vertex.vertex_id, vertex.parallelism)
            job_vertex = ExecutionJobVertex(
                self.graph_id,
                len(self.vertices),
                len(self.subtasks),
                vertex,
                parallelism,
                self._first_attempt,
                now,
            )
            if parallelism > job_vertex.max_parallelism:
                raise self._refusal(
                    f"the parallelism of vertex {vertex.name!r}, {parallelism}, is higher than the "
                    f"max parallelism, {job_vertex.max_parallelism}"
                )
            unknown = next((e.source for e in vertex.inputs if e.source not in self._results), None)
            if unknown is not None:
                raise self._refusal(
                    f"vertex {vertex.name!r} reads the data set {unknown}, whose producer "
                    "is not attached yet: attach vertices in topological order"
                )
            for edge in vertex.inputs:
                self._connect(self._results[edge.source], job_vertex, edge.pattern)
            self.vertices.append(job_vertex)
            self.subtasks += job_vertex.subtasks
            self._by_id[vertex.vertex_id] = job_vertex
            for result in job_vertex.results:
                assert result.data_set_id is not None
                self._results[result.data_set_id] = result

    def _refusal(self, text: str) -> JobSubmissionError:
        return JobSubmissionError(self.job_graph.job_id, text)

    def _connect(
        self, result: IntermediateResult, consumer: ExecutionJobVertex, pattern: DistributionPattern
    ) -> None:
        edge = ResultEdge(len(self.edges), result, consumer, pattern)
        self.edges.append(edge)
        result.edges.append(edge)
        consumer.inputs.append(edge)

    def _run_coordinated_vertices_one_after_another(self) -> None:
        """Those that share slots use them whole: each begins when the one before it is finished, as
        if it read a blocking result."""
        sharing: dict[str, ExecutionJobVertex] = {}
        for vertex in self.vertices:
            if not vertex.is_coordinated:
                continue
            before = sharing.get(vertex.vertex.slot_sharing_group)
            sharing[vertex.vertex.slot_sharing_group] = vertex
            if before is not None:
                result = IntermediateResult(
                    None, ResultPartitionType.BLOCKING, before, ResultMedium.FILES
                )
                before.results.append(result)
                self._connect(result, vertex, DistributionPattern.ALL_TO_ALL)

    @property
    def is_terminal(self) -> bool:
        """Whether every current attempt of every vertex has ended."""
        return all(vertex.is_terminal for vertex in self.vertices)

    @property
    def is_finished(self) -> bool:
        """Whether every subtask of every vertex is FINISHED (EG-11)."""
        return all(vertex.is_finished for vertex in self.vertices)

    def vertex(self, vertex_id: JobVertexID) -> ExecutionJobVertex | None:
        """The job vertex of that id."""
        return self._by_id.get(vertex_id)

    def result(self, data_set_id: IntermediateDataSetID) -> IntermediateResult | None:
        """The result of that id."""
        return self._results.get(data_set_id)

    def partition_missing(self, missing: ResultPartitionID) -> None:
        """Somebody could not read it: if that is how its producer left it, it is gone (FO-04)."""
        result = self.result(missing.data_set_id)
        if missing.graph_id != self.graph_id or result is None or result.is_pipelined:
            return
        if 0 <= missing.partition < result.producer.parallelism:
            producer = result.producer.subtasks[missing.partition]
            if producer.current.attempt_number == missing.attempt_number:
                result.lose(missing.partition)

    def find(self, attempt_id: ExecutionAttemptID) -> Execution | None:
        """The current attempt of that id; None for those of other graphs, too."""
        if attempt_id.graph_id != self.graph_id:
            return None
        vertex = self._by_id.get(attempt_id.vertex.job_vertex_id)
        return None if vertex is None else vertex.find(attempt_id)
