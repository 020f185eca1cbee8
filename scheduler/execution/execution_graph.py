"""Defines the execution graph: job vertices, subtasks, execution attempts and intermediate
results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flinkray.core.errors import IllegalTransitionError, JobSubmissionError
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    IntermediateDataSetID,
    JobVertexID,
)
from flinkray.scheduler.graph import distribution
from flinkray.scheduler.graph.job_graph import (
    COORDINATED_KINDS,
    MODEL,
    DistributionPattern,
    JobGraph,
    JobVertex,
    ResultMedium,
    ResultPartitionType,
)
from flinkray.scheduler.graph.validation import topological_order
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.story import Story
from flinkray.scheduler.shared.tasks import RestoredTask

PRIOR_ATTEMPTS_KEPT = 16
"""Number of earlier attempts kept per subtask (``jobmanager.execution.attempts-history-size``)."""

_LEGAL: dict[ExecutionState, tuple[ExecutionState, ...]] = {
    ExecutionState.CREATED: (
        ExecutionState.SCHEDULED,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.SCHEDULED: (
        ExecutionState.DEPLOYING,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.DEPLOYING: (
        ExecutionState.INITIALIZING,
        ExecutionState.RUNNING,
        ExecutionState.FINISHED,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.INITIALIZING: (
        ExecutionState.RUNNING,
        ExecutionState.FINISHED,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.RUNNING: (
        ExecutionState.FINISHED,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.CANCELING: (ExecutionState.CANCELED, ExecutionState.FAILED),
    ExecutionState.FINISHED: (),
    ExecutionState.CANCELED: (),
    ExecutionState.FAILED: (),
}


def location_text(slot: AllocatedSlot) -> str:
    """Return ``<TaskExecutor> bundle <i> on <node ip>``, for users."""
    location = slot.location
    return f"{location.resource_id} bundle {location.bundle_index} on {location.node_ip}"


@dataclass(frozen=True, slots=True)
class ProcessOfTask:
    """The process that runs a task of a Spark stage: a Spark executor, which is a Ray actor."""

    name: str
    """The coordinator's name for the process: the id of the Spark executor."""
    actor_id: str
    """Ray's actor id, in hexadecimal."""
    pid: int


class Execution:
    """One attempt to execute a subtask; times are monotonic seconds.
    A job may have tens of thousands of attempts: attributes that can be derived are not stored."""

    __slots__ = (
        "_created_at",
        "_transitions",
        "attempt_number",
        "failure",
        "io_metrics",
        "process",
        "restored",
        "slot",
        "state",
        "vertex",
    )

    def __init__(self, vertex: ExecutionVertex, attempt_number: int, now: float) -> None:
        self.vertex = vertex
        self.attempt_number = attempt_number
        self.state = ExecutionState.CREATED
        self._created_at = now
        self._transitions: tuple[tuple[ExecutionState, float, str], ...] = ()
        self.slot: AllocatedSlot | None = None
        self.failure: Failure | None = None
        self.restored: RestoredTask | None = None
        """State that the task starts with; None after the deployment (EX-07)."""
        self.io_metrics: IOMetrics | None = None
        """I/O metrics of the ended attempt; None until the attempt has ended."""
        self.process: ProcessOfTask | None = None

    def __str__(self) -> str:
        return f"{self.task_name} #{self.attempt_number}"

    @property
    def attempt_id(self) -> ExecutionAttemptID:
        return ExecutionAttemptID(
            self.vertex.job_vertex.graph_id, self.vertex.vertex_id, self.attempt_number
        )

    @property
    def task_name(self) -> str:
        """``<vertex> (<subtask, from 1>/<parallelism>)``."""
        return self.vertex.task_name

    @property
    def entered(self) -> dict[ExecutionState, float]:
        """State -> monotonic seconds when the attempt entered the state."""
        later = {state: at for state, at, _ in self._transitions}
        return {ExecutionState.CREATED: self._created_at, **later}

    @property
    def location(self) -> str | None:
        return None if self.slot is None else location_text(self.slot)

    @property
    def story(self) -> Story:
        """History of the attempt: a line per transition, with its time and cause."""
        story = Story(f"attempt {self.attempt_id} of {self.task_name}")
        before = ExecutionState.CREATED
        for state, at, cause in self._transitions:
            text = f"{before.name} -> {state.name}"
            story.add(at, f"{text}: {cause}" if cause else text)
            before = state
        return story

    def illegal(self, wanted: str) -> IllegalTransitionError:
        """Return an error that says that the attempt cannot do *wanted* and contains the attempt's
        history."""
        return self.story.illegal(wanted)

    def schedule(self, now: float) -> bool:
        """Change the attempt's state to SCHEDULED, in which it waits for a slot. Returns False if
        the attempt was canceled before (EX-05)."""
        if self.state is ExecutionState.CANCELED:
            return False
        self._enter(ExecutionState.SCHEDULED, now)
        return True

    def deploy(self, slot: AllocatedSlot, now: float) -> None:
        """Change the attempt's state to DEPLOYING, in *slot*. Raises IllegalTransitionError if the
        attempt was deployed before (EX-01)."""
        self._enter(ExecutionState.DEPLOYING, now, f"in {location_text(slot)}")
        self.slot = slot

    def adopt(self, slot: AllocatedSlot, state: ExecutionState, since: float) -> None:
        """Bring a new attempt into *state*, because an earlier JobMaster deployed it in *slot*.
        *since*: monotonic seconds when it was deployed."""
        self._created_at = since
        self.schedule(since)
        self.deploy(slot, since)
        if state is ExecutionState.INITIALIZING:
            self.initialize(since)
        elif state is ExecutionState.RUNNING:
            self.run(since)

    def initialize(self, now: float) -> None:
        """Change the attempt's state to INITIALIZING: the TaskExecutor restores the task's
        state."""
        self._enter(ExecutionState.INITIALIZING, now)

    def run(self, now: float) -> None:
        """Change the attempt's state to RUNNING."""
        self._enter(ExecutionState.RUNNING, now)

    def finish(self, now: float) -> None:
        """Change the attempt's state to FINISHED."""
        self._enter(ExecutionState.FINISHED, now)

    def begin_cancel(self, now: float) -> bool:
        """Cancel the attempt. Returns True if its task is on a TaskExecutor, which must be told to
        cancel it and then reports its end. An attempt that is not deployed yet is CANCELED at once
        (EX-03). If the attempt has ended or is being canceled, nothing changes (EX-04)."""
        if self.state.is_terminal or self.state is ExecutionState.CANCELING:
            return False
        is_deployed = self.slot is not None
        self._enter(ExecutionState.CANCELING, now)
        if not is_deployed:
            self._enter(ExecutionState.CANCELED, now)
        return is_deployed

    def end(self, failure: Failure, now: float) -> bool:
        """Record that the attempt ended without finishing: as CANCELED if it was being canceled,
        whatever the failure, otherwise as FAILED (EX-05). Returns whether it is FAILED now. Nothing
        changes if the attempt has already ended."""
        if self.state.is_terminal:
            return False
        if self.state is ExecutionState.CANCELING:
            self._enter(ExecutionState.CANCELED, now, failure.text)
            return False
        self.failure = failure
        self._enter(ExecutionState.FAILED, now, failure.text)
        return True

    def _enter(self, state: ExecutionState, now: float, cause: str = "") -> None:
        if state not in _LEGAL[self.state]:
            raise self.illegal(f"go from {self.state.name} to {state.name}")
        self._transitions = (*self._transitions, (state, now, cause))
        self.state = state
        self.vertex.job_vertex.changes += 1
        if state.is_terminal:
            self.vertex.job_vertex.execution_ended(state)


class PartitionGroup:
    """A group of partitions of a result, which the same consumers read together. Every consumer of
    the group reads all partitions of the group, and no other partitions of the edge.  Corresponds
    to Flink's ConsumedPartitionGroup and ConsumerVertexGroup together."""

    __slots__ = ("consumers", "edge", "index", "partitions", "readers", "unfinished", "version")

    def __init__(self, edge: ResultEdge, index: int, partitions: range, consumers: range) -> None:
        self.edge = edge
        self.index = index
        self.partitions = partitions
        """Indices of the producing subtasks."""
        self.consumers = consumers
        """Indices of the consuming subtasks."""
        self.unfinished = len(partitions)
        """Number of partitions in the group that are not finished."""
        self.readers = 0
        """Number of unfinished regions that read the group; the PartitionTracker maintains it."""
        self.version = 0
        """Increases each time a producer of the group is executed again."""

    @property
    def is_finished(self) -> bool:
        """Whether all partitions are finished, so that a consumer of a blocking result may
        begin."""
        return self.unfinished == 0

    @property
    def producer_ordinals(self) -> range:
        """Ordinals, in the execution graph, of the subtasks that produce the group's partitions."""
        first = self.edge.result.producer.first
        return range(first + self.partitions.start, first + self.partitions.stop)

    @property
    def consumer_ordinals(self) -> range:
        first = self.edge.consumer.first
        return range(first + self.consumers.start, first + self.consumers.stop)


class ResultEdge:
    """An edge from a result to a consuming vertex, divided into partition groups.
    The distribution pattern decides how the edge is divided."""

    __slots__ = ("consumer", "groups", "index", "pattern", "result")

    def __init__(
        self,
        index: int,
        result: IntermediateResult,
        consumer: ExecutionJobVertex,
        pattern: DistributionPattern,
    ) -> None:
        self.index = index
        """Index among all edges of the graph."""
        self.result = result
        self.consumer = consumer
        self.pattern = pattern
        sizes = (pattern, result.producer.parallelism, consumer.parallelism)
        self.groups = [
            PartitionGroup(
                self,
                number,
                distribution.partitions_of_group(*sizes, number),
                distribution.consumers_of_group(*sizes, number),
            )
            for number in range(distribution.number_of_groups(*sizes))
        ]

    def group_of_partition(self, partition: int) -> PartitionGroup:
        """Return the group that contains the partition with the index *partition*."""
        return self.groups[
            distribution.group_of_partition(
                self.pattern, self.result.producer.parallelism, self.consumer.parallelism, partition
            )
        ]

    def group_of_consumer(self, subtask_index: int) -> PartitionGroup:
        """Return the group that the consumer's subtask reads."""
        return self.groups[
            distribution.group_of_consumer(
                self.pattern,
                self.result.producer.parallelism,
                self.consumer.parallelism,
                subtask_index,
            )
        ]

    def subpartition_of(self, subtask_index: int) -> int:
        """Return the index of the subpartition that the consumer's subtask reads of each
        partition."""
        return distribution.subpartition_of(
            self.pattern,
            self.result.producer.parallelism,
            self.consumer.parallelism,
            subtask_index,
        )


class IntermediateResult:
    """The partitions of a result, with their states; subtask i of the producer produces partition
    i. A partition can be *finished*, and it can be *gone* (released, or lost with its
    TaskExecutor).  For pipelined results *gone* has no meaning, because they are never read twice.
    """

    __slots__ = ("_finished", "_gone", "data_set_id", "edges", "medium", "producer", "result_type")

    def __init__(
        self,
        data_set_id: IntermediateDataSetID | None,
        result_type: ResultPartitionType,
        producer: ExecutionJobVertex,
        medium: ResultMedium = ResultMedium.CHANNELS,
    ) -> None:
        self.data_set_id = data_set_id
        """Id of the data set; None if there is no data and the edge only orders Spark stages."""
        self.result_type = result_type
        self.producer = producer
        self.medium = medium
        self.edges: list[ResultEdge] = []
        """The edges to the consumers of the result."""
        self._finished = bytearray(producer.parallelism)
        self._gone = bytearray(producer.parallelism)

    @property
    def is_pipelined(self) -> bool:
        return self.result_type.is_pipelined

    @property
    def is_stored(self) -> bool:
        """Whether the result is in the cluster's storage.
        Such a result survives the loss of a TaskExecutor, and stays until the job ends."""
        return self.medium is ResultMedium.FILES

    def is_finished(self, partition: int) -> bool:
        """Return whether the partition was produced completely."""
        return bool(self._finished[partition])

    def is_there(self, partition: int) -> bool:
        """Return whether the partition is finished and not gone, so that it can be read now."""
        return bool(self._finished[partition]) and not self._gone[partition]

    def is_available(self, partition: int) -> bool:
        """Return whether the partition is not gone: it exists, or it is still to be produced."""
        return not self._gone[partition]

    def finish(self, partition: int) -> list[PartitionGroup]:
        """Mark the partition as finished.  Returns the groups that are now finished."""
        if self._finished[partition]:
            return []
        self._finished[partition] = True
        done = []
        for edge in self.edges:
            group = edge.group_of_partition(partition)
            group.unfinished -= 1
            if not group.unfinished:
                done.append(group)
        return done

    def lose(self, partition: int) -> bool:
        """Mark the partition as gone if it is finished. Returns whether it could be read until
        now."""
        was_there = self.is_there(partition)
        if self._finished[partition]:
            self._gone[partition] = True
        return was_there

    def reset(self, partition: int) -> list[PartitionGroup]:
        """Mark the partition as neither finished nor gone, because it will be produced again.
        Returns the groups that are thereby no longer finished."""
        self._gone[partition] = False
        undone = []
        for edge in self.edges:
            group = edge.group_of_partition(partition)
            group.version += 1
            if self._finished[partition]:
                if not group.unfinished:
                    undone.append(group)
                group.unfinished += 1
        self._finished[partition] = False
        return undone


class ExecutionVertex:
    """A subtask with its execution attempts."""

    __slots__ = ("_vertex_id", "current", "job_vertex", "ordinal", "prior", "subtask_index")

    def __init__(
        self, job_vertex: ExecutionJobVertex, subtask_index: int, attempt_number: int, now: float
    ) -> None:
        self.job_vertex = job_vertex
        self.subtask_index = subtask_index
        self.ordinal = job_vertex.first + subtask_index
        """Index of the subtask among all subtasks of the graph (vertices in topological order)."""
        self._vertex_id: ExecutionVertexID | None = None
        self.current = Execution(self, attempt_number, now)
        self.prior: tuple[Execution, ...] = ()
        """The latest earlier attempts, oldest first; at most ``PRIOR_ATTEMPTS_KEPT``."""

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

    def go_on_from(self, attempt_number: int, now: float) -> None:
        """Replace the first attempt by one with the number *attempt_number*, because earlier
        attempts of the subtask ran under another JobMaster. Raises IllegalTransitionError if the
        current attempt has begun."""
        if self.current.state is not ExecutionState.CREATED or self.prior:
            raise self.current.illegal("be replaced: it has begun")
        self.current = Execution(self, attempt_number, now)

    def reset_for_new_execution(self, now: float) -> Execution:
        """Create the next attempt and make it the current attempt.

        Raises:
            IllegalTransitionError: the current attempt has not ended.
        """
        before = self.current
        if not before.state.is_terminal:
            raise before.illegal("be followed by another attempt: it has not ended")
        self.job_vertex.execution_reset(before.state)
        self.job_vertex.changes += 1
        self.prior = (*self.prior, before)[-PRIOR_ATTEMPTS_KEPT:]
        self.current = Execution(self, before.attempt_number + 1, now)
        return self.current


class ExecutionJobVertex:
    """A job vertex in execution: its subtasks in order, its results and its inputs."""

    __slots__ = (
        "_finished",
        "_unended",
        "active",
        "changes",
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
        """Index among the job vertices, in topological order."""
        self.first = first
        """Ordinal of the first subtask."""
        self.vertex = vertex
        self.parallelism = parallelism
        """Number of subtasks; in an elastic job it may be lower than the vertex wants."""
        self.max_parallelism = vertex.key_groups
        self.active = vertex.min_parallelism if vertex.invokable.kind == MODEL else parallelism
        """How many subtasks are to run, from the first one on. Replicas of a model come and go with
        the load; all other vertices run as a whole."""
        self.coordinator_attempt = 0
        """For a coordinated vertex: attempt number of the coordinator of its subtasks."""
        self.coordinator_is_there = False
        """For a coordinated vertex: whether its coordinator has begun and not ended.
        During this time the slots of the subtasks may contain processes."""
        self._unended = self.parallelism
        self._finished = 0
        self.changes = 0
        """How often any subtask has entered a state."""
        self.subtasks = tuple(ExecutionVertex(self, i, attempt, now) for i in range(parallelism))
        self.results = [
            IntermediateResult(data_set.data_set_id, data_set.result_type, self, data_set.medium)
            for data_set in vertex.results
        ]
        self.inputs: list[ResultEdge] = []

    @property
    def is_coordinated(self) -> bool:
        """Whether the vertex is a Spark stage, whose subtasks are started and ended by a
        coordinator (the Spark driver) instead of TaskExecutors. The subtasks run when the
        coordinator reports so, fail together, and are finished when the coordinator has finished.
        """
        return self.vertex.invokable.kind in COORDINATED_KINDS

    @property
    def ordinals(self) -> range:
        """Ordinals of the vertex's subtasks in the execution graph."""
        return range(self.first, self.first + self.parallelism)

    @property
    def executions(self) -> tuple[Execution, ...]:
        """The current attempts of the vertex's subtasks, ordered by subtask."""
        return tuple(subtask.current for subtask in self.subtasks)

    @property
    def is_terminal(self) -> bool:
        """Whether the current attempt of every subtask of the vertex has ended."""
        return self._unended == 0

    @property
    def is_finished(self) -> bool:
        """Whether every subtask of the vertex is FINISHED."""
        return self._finished == self.parallelism

    def find(self, attempt_id: ExecutionAttemptID) -> Execution | None:
        """Return the current attempt with this id. None if the id belongs to another vertex or to
        an attempt that is not current (EX-11)."""
        index = attempt_id.vertex.subtask_index
        if attempt_id.vertex.job_vertex_id != self.vertex.vertex_id or not (
            0 <= index < len(self.subtasks)
        ):
            return None
        current = self.subtasks[index].current
        return current if current.attempt_number == attempt_id.attempt_number else None

    def execution_ended(self, state: ExecutionState) -> None:
        """Count that the current attempt of a subtask has ended in *state*. Only the attempt calls
        this."""
        self._unended -= 1
        self._finished += state is ExecutionState.FINISHED

    def execution_reset(self, state: ExecutionState) -> None:
        """Count that a subtask gets a new attempt. *state*: the state in which its previous attempt
        ended."""
        self._unended += 1
        self._finished -= state is ExecutionState.FINISHED


class ExecutionGraph:
    """The execution state of a job: all vertices in topological order, and the edges between them.
    All subtasks are numbered consecutively (*ordinals*), so that computations use integers."""

    def __init__(
        self,
        job_graph: JobGraph,
        graph_id: ExecutionGraphID,
        now: float,
        *,
        parallelism: Mapping[JobVertexID, int] | None = None,
        first_attempt: int = 0,
    ) -> None:
        """Build the execution graph of a job.

        Args:
            parallelism: parallelism of elastic vertices, in place of that in the job graph.
            first_attempt: number of the first attempts; above 0 if the job had earlier execution
                graphs.
        """
        self.job_graph = job_graph
        self.graph_id = graph_id
        """Id that all attempts and partitions of the graph contain; unique within the job."""
        self._parallelism = parallelism or {}
        self._first_attempt = first_attempt
        self.restores = 0
        """How often the coordinators of the job's operators have been restored."""
        self.vertices: list[ExecutionJobVertex] = []
        self.subtasks: list[ExecutionVertex] = []
        """All subtasks; the index is the ordinal."""
        self.edges: list[ResultEdge] = []
        self._by_id: dict[JobVertexID, ExecutionJobVertex] = {}
        self._results: dict[IntermediateDataSetID, IntermediateResult] = {}
        self.attach(topological_order(job_graph), now)
        self._run_coordinated_vertices_one_after_another()

    def attach(self, vertices: Iterable[JobVertex], now: float) -> None:
        """Add vertices; each vertex must come after the vertices that it reads (EG-01). Raises
        JobSubmissionError if a vertex is attached already, reads an unattached vertex, or has more
        subtasks than its max parallelism (EG-02). Vertices that come before the refused vertex stay
        attached."""
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
        """Make the Spark stages that share slots run one after the other, because each stage uses
        its slots as a whole. A stage begins when the previous one is finished, as if it read a
        blocking result."""
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
        """Return the job vertex with this id; None if the graph has no such vertex."""
        return self._by_id.get(vertex_id)

    def result(self, data_set_id: IntermediateDataSetID) -> IntermediateResult | None:
        """Return the result with this id; None if the graph has no such result."""
        return self._results.get(data_set_id)

    def task_text(self, attempt_id: ExecutionAttemptID) -> str:
        """Return ``<task> (<attempt id>)``, for users; the id alone if the graph has no such
        task."""
        vertex = self.vertex(attempt_id.vertex.job_vertex_id)
        index = attempt_id.vertex.subtask_index
        if vertex is None or not 0 <= index < vertex.parallelism:
            return str(attempt_id)
        return f"{vertex.subtasks[index].task_name} ({attempt_id})"

    def find(self, attempt_id: ExecutionAttemptID) -> Execution | None:
        """Return the current attempt with this id. None if the attempt is not current or belongs to
        another graph."""
        if attempt_id.graph_id != self.graph_id:
            return None
        vertex = self._by_id.get(attempt_id.vertex.job_vertex_id)
        return None if vertex is None else vertex.find(attempt_id)
