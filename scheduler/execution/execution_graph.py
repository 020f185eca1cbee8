"""Job vertices, their subtasks, the attempts to execute these, and what they exchange."""

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
    ResultPartitionID,
)
from flinkray.scheduler.graph import distribution
from flinkray.scheduler.graph.job_graph import (
    COORDINATED_KINDS,
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
"""Of each subtask, as Flink's ``jobmanager.execution.attempts-history-size``."""

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
    """``<TaskExecutor> bundle <i> on <node ip>``."""
    location = slot.location
    return f"{location.resource_id} bundle {location.bundle_index} on {location.node_ip}"


@dataclass(frozen=True, slots=True)
class ProcessOfTask:
    """What runs a task, where its vertex's coordinator knows it."""

    name: str
    """Under which the coordinator knows it: a Spark executor's id."""
    actor_id: str
    """Ray's, hex."""
    pid: int


class Execution:
    """States with their times and causes, the slot, and the cause of a failure.

    Times are monotonic seconds.  There may be tens of thousands of these: what can be derived is
    not kept.
    """

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
        """What the task is to be restored from; dropped once it is deployed (EX-07)."""
        self.io_metrics: IOMetrics | None = None
        """Since it has ended."""
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
        """When each state was entered."""
        later = {state: at for state, at, _ in self._transitions}
        return {ExecutionState.CREATED: self._created_at, **later}

    @property
    def location(self) -> str | None:
        return None if self.slot is None else location_text(self.slot)

    @property
    def story(self) -> Story:
        """What has happened to it and why, a line per transition."""
        story = Story(f"attempt {self.attempt_id} of {self.task_name}")
        before = ExecutionState.CREATED
        for state, at, cause in self._transitions:
            text = f"{before.name} -> {state.name}"
            story.add(at, f"{text}: {cause}" if cause else text)
            before = state
        return story

    def illegal(self, wanted: str) -> IllegalTransitionError:
        """The error for what this attempt cannot do; it carries the story."""
        return self.story.illegal(wanted)

    def schedule(self, now: float) -> bool:
        """It waits for its slot; False: it was canceled before, which is nobody's fault (EX-05)."""
        if self.state is ExecutionState.CANCELED:
            return False
        self._enter(ExecutionState.SCHEDULED, now)
        return True

    def deploy(self, slot: AllocatedSlot, now: float) -> None:
        """It is sent to its slot; raises IllegalTransitionError when that was done before
        (EX-01)."""
        self._enter(ExecutionState.DEPLOYING, now, f"in {location_text(slot)}")
        self.slot = slot

    def adopt(self, slot: AllocatedSlot, state: ExecutionState, since: float) -> None:
        """An earlier JobMaster has deployed it there *since* then, and it is in that state by
        now."""
        self._created_at = since
        self.schedule(since)
        self.deploy(slot, since)
        if state is ExecutionState.INITIALIZING:
            self.initialize(since)
        elif state is ExecutionState.RUNNING:
            self.run(since)

    def initialize(self, now: float) -> None:
        """Its TaskExecutor restores its state."""
        self._enter(ExecutionState.INITIALIZING, now)

    def run(self, now: float) -> None:
        """It runs."""
        self._enter(ExecutionState.RUNNING, now)

    def finish(self, now: float) -> None:
        """It is done."""
        self._enter(ExecutionState.FINISHED, now)

    def begin_cancel(self, now: float) -> bool:
        """Whether someone must be told to cancel it and will confirm.

        Before it is deployed there is nobody to tell, it is CANCELED at once (EX-03); a second
        time, and when it has ended, nothing changes (EX-04).
        """
        if self.state.is_terminal or self.state is ExecutionState.CANCELING:
            return False
        is_deployed = self.slot is not None
        self._enter(ExecutionState.CANCELING, now)
        if not is_deployed:
            self._enter(ExecutionState.CANCELED, now)
        return is_deployed

    def end(self, failure: Failure, now: float) -> bool:
        """It ended otherwise than by finishing; whether that is a failure.

        What is being cancelled ends as CANCELED, whatever ended it (EX-05); what has ended already
        stays as it is.
        """
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
    """Partitions of a result that are read together, by the same consumers.

    Flink's ConsumedPartitionGroup and ConsumerVertexGroup in one: every consumer of the group reads
    all of its partitions, and nothing else of the edge.
    """

    __slots__ = ("consumers", "edge", "index", "partitions", "readers", "unfinished", "version")

    def __init__(self, edge: ResultEdge, index: int, partitions: range, consumers: range) -> None:
        self.edge = edge
        self.index = index
        self.partitions = partitions
        """Indices of producing subtasks."""
        self.consumers = consumers
        """Indices of consuming subtasks."""
        self.unfinished = len(partitions)
        """How many of its partitions are not finished."""
        self.readers = 0
        """How many regions that read it are not finished; counted by the PartitionTracker."""
        self.version = 0
        """Grows when a producer is executed anew."""

    @property
    def is_finished(self) -> bool:
        """Whether a blocking consumer may begin."""
        return self.unfinished == 0

    @property
    def producer_ordinals(self) -> range:
        """Execution vertices, as numbered by the execution graph."""
        first = self.edge.result.producer.first
        return range(first + self.partitions.start, first + self.partitions.stop)

    @property
    def consumer_ordinals(self) -> range:
        first = self.edge.consumer.first
        return range(first + self.consumers.start, first + self.consumers.stop)


class ResultEdge:
    """A vertex reads a result: the groups into which the distribution pattern divides that."""

    __slots__ = ("consumer", "groups", "index", "pattern", "result")

    def __init__(
        self,
        index: int,
        result: IntermediateResult,
        consumer: ExecutionJobVertex,
        pattern: DistributionPattern,
    ) -> None:
        self.index = index
        """Among all edges of the graph."""
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
        """The group that a partition is in."""
        return self.groups[
            distribution.group_of_partition(
                self.pattern, self.result.producer.parallelism, self.consumer.parallelism, partition
            )
        ]

    def group_of_consumer(self, subtask_index: int) -> PartitionGroup:
        """The group that a subtask of the consumer reads."""
        return self.groups[
            distribution.group_of_consumer(
                self.pattern,
                self.result.producer.parallelism,
                self.consumer.parallelism,
                subtask_index,
            )
        ]

    def subpartition_of(self, subtask_index: int) -> int:
        """Which subpartition of each partition a subtask of the consumer reads."""
        return distribution.subpartition_of(
            self.pattern,
            self.result.producer.parallelism,
            self.consumer.parallelism,
            subtask_index,
        )


class IntermediateResult:
    """A data set in execution: partition i is produced by subtask i.

    Of a partition is known whether it is *finished* and whether it is *gone* (released, or lost
    with its TaskExecutor); for pipelined results the latter has no meaning, they are never read
    twice.
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
        """None: there is no data, one vertex just runs after another (Spark stages)."""
        self.result_type = result_type
        self.producer = producer
        self.medium = medium
        self.edges: list[ResultEdge] = []
        """Who reads it."""
        self._finished = bytearray(producer.parallelism)
        self._gone = bytearray(producer.parallelism)

    @property
    def is_pipelined(self) -> bool:
        return self.result_type.is_pipelined

    @property
    def is_stored(self) -> bool:
        """Whether it lies in the cluster's storage: the death of a TaskExecutor takes nothing of
        it, and it stays until the job ends."""
        return self.medium is ResultMedium.FILES

    def is_finished(self, partition: int) -> bool:
        """Whether all of it was produced."""
        return bool(self._finished[partition])

    def is_there(self, partition: int) -> bool:
        """Whether it was produced and is not gone."""
        return bool(self._finished[partition]) and not self._gone[partition]

    def is_available(self, partition: int) -> bool:
        """Whether it is not gone: it is there, or will be once its producer has finished."""
        return not self._gone[partition]

    def finish(self, partition: int) -> list[PartitionGroup]:
        """It is produced; the groups that are finished by it."""
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
        """It is gone; whether it was there until now."""
        was_there = self.is_there(partition)
        if self._finished[partition]:
            self._gone[partition] = True
        return was_there

    def reset(self, partition: int) -> list[PartitionGroup]:
        """It is going to be produced anew; the groups that were finished and are no more."""
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

    def go_on_from(self, attempt_number: int, now: float) -> None:
        """The first attempt that this graph knows of has that number: others were before it.

        Raises:
            IllegalTransitionError: the present one has begun.
        """
        if self.current.state is not ExecutionState.CREATED or self.prior:
            raise self.current.illegal("be replaced: it has begun")
        self.current = Execution(self, attempt_number, now)

    def reset_for_new_execution(self, now: float) -> Execution:
        """The next attempt becomes the current one.

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
    """A job vertex: its subtasks in order, its results and inputs."""

    __slots__ = (
        "_finished",
        "_unended",
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
        """Among the job vertices, in topological order."""
        self.first = first
        """The ordinal of its first subtask."""
        self.vertex = vertex
        self.parallelism = parallelism
        """How many subtasks there are: with elastic jobs less than the vertex wants."""
        self.max_parallelism = vertex.key_groups
        self.coordinator_attempt = 0
        """Of a coordinated vertex: the attempt of its coordinator that its subtasks belong to."""
        self.coordinator_is_there = False
        """Of a coordinated vertex: its coordinator has begun and has not ended, so that processes
        may be in the slots of its subtasks."""
        self._unended = self.parallelism
        self._finished = 0
        self.changes = 0
        """How often a subtask has entered a state."""
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
        self.restores = 0
        """How often the coordinators of the job's operators have been restored."""
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
