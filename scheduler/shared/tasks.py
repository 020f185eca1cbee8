"""Tasks: what a JobMaster deploys and a TaskExecutor reports."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from sys import byteorder

from flinkray.checkpoint.handles import TaskState
from flinkray.core.error_text import sendable
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResultPartitionID,
)
from flinkray.core.message import message
from flinkray.scheduler.graph.job_graph import (
    DistributionPattern,
    Invokable,
    JobFile,
    ResultMedium,
    ResultPartitionType,
)
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState

_SHORT = 1024
"""Bytes of a failure's text that fit into a message of any size."""


@message
class TaskExecutionState:
    """A TaskExecutor's report of an attempt's state."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    state: ExecutionState
    failure: str | None = None
    traceback: str | None = None
    suppress_restarts: bool = False
    """The failure would happen again."""
    missing_partitions: tuple[ResultPartitionID, ...] = ()
    """The task failed because it could not read the first; the others were found missing with
    it."""
    io_metrics: IOMetrics | None = None
    """Of a stream task that has ended."""

    def shortened(self) -> TaskExecutionState:
        """Without most of its texts, for messages that are too large with them."""
        text = None if self.failure is None else sendable(self.failure, _SHORT)
        first = self.missing_partitions[:1]
        return replace(self, failure=text, traceback=None, missing_partitions=first)


# --- deployments in bulk --------------------------------------------------------------------------


@message
class JobInformation:
    """What all tasks of a job have in common."""

    job_id: JobID
    job_name: str
    files: tuple[JobFile, ...] = ()
    cancellation_interval: float | None = None
    """Seconds; None: the cluster's ``task.cancellation.interval``, and so on."""
    cancellation_timeout: float | None = None
    takes_checkpoints: bool = False
    """From time to time, not only when somebody asks for one."""
    is_exactly_once: bool = True
    """False: checkpoints may hold records after their barriers, too."""
    inline_threshold: int | None = None
    """Bytes below which state lies in its handle; None: the cluster's
    ``execution.checkpointing.data-inline-threshold``."""
    max_waiting_records: int | None = None
    """None: the cluster's ``execution.spark.max-waiting-records``."""


@message
class ConsumerInformation:
    """Who reads a result: from it and the number of producers follows into how many subpartitions a
    partition is divided (:func:`flinkray.scheduler.graph.distribution.number_of_subpartitions`)."""

    pattern: DistributionPattern
    parallelism: int
    max_parallelism: int
    """The number of key groups, by which keyed records are sent."""


@message
class ResultInformation:
    """A result that each subtask of a vertex produces a partition of."""

    data_set_id: IntermediateDataSetID
    result_type: ResultPartitionType
    consumers: tuple[ConsumerInformation, ...]
    medium: ResultMedium = ResultMedium.CHANNELS


@message
class InputInformation:
    """A result that a vertex reads; which part follows from pattern, parallelisms and subtask."""

    data_set_id: IntermediateDataSetID
    result_type: ResultPartitionType
    pattern: DistributionPattern
    producer_vertex_id: JobVertexID
    producer_parallelism: int
    medium: ResultMedium = ResultMedium.CHANNELS
    is_written_whole: bool = False
    """Files: the producer's coordinator has written all partitions as one."""


@message
class VertexInformation:
    """What all subtasks of a vertex have in common."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    max_parallelism: int
    invokable: Invokable
    inputs: tuple[InputInformation, ...]
    results: tuple[ResultInformation, ...]


@message
class PartitionLocations:
    """Where the producers of consecutive partitions are: what consumers must know of them.

    The two arrays are of unsigned 32-bit integers, little endian: for tens of thousands of
    partitions they are copied as they are.
    """

    graph_id: ExecutionGraphID
    data_set_id: IntermediateDataSetID
    first_partition: int
    task_executors: tuple[WorkerLocation, ...]
    places: bytes
    """Per partition an index into ``task_executors``."""
    attempts: bytes
    """Per partition the attempt number of its producer."""
    coordinator_attempt: int = 0
    """Of a data set that the producers' coordinator has written: its attempt that has."""

    @property
    def number_of_partitions(self) -> int:
        return len(self.places) // 4

    def location_of(self, partition: int) -> WorkerLocation:
        """Of the partition with that index in its data set."""
        return self.task_executors[unpack_numbers(self.places)[partition - self.first_partition]]

    def partition_id(self, partition: int) -> ResultPartitionID:
        """Of the partition with that index in its data set."""
        attempt = unpack_numbers(self.attempts)[partition - self.first_partition]
        return ResultPartitionID(self.graph_id, self.data_set_id, partition, attempt)

    def partitions_at(self, location: WorkerLocation) -> Iterator[ResultPartitionID]:
        """Those whose producers are there, in their order."""
        place = self.task_executors.index(location)
        numbers = zip(unpack_numbers(self.places), unpack_numbers(self.attempts), strict=True)
        for number, (where, attempt) in enumerate(numbers):
            if where == place:
                yield ResultPartitionID(
                    self.graph_id, self.data_set_id, self.first_partition + number, attempt
                )


@message
class SharedPart:
    """A part of many deployments.  A TaskExecutor keeps it for the execution graph; a newer version
    of the same key replaces it.  It is sent to each TaskExecutor once."""

    key: int
    version: int
    content: JobInformation | VertexInformation | PartitionLocations


@message
class RestoredTask:
    """What a task goes on from."""

    checkpoint_id: int
    state: TaskState | None
    """None: it has none in that checkpoint."""
    is_foreign: bool = False
    """Another job has taken it: what does not fit it will not fit another time either, and what
    that job had collected is for its own client."""


@message
class TaskDeployment:
    """One execution attempt; the numbers are keys of shared parts."""

    vertex: int
    subtask_index: int
    attempt_number: int
    allocation_id: AllocationID
    inputs: tuple[int, ...] = ()
    """Per input of the vertex its PartitionLocations."""
    restored: RestoredTask | None = None
    """None: it begins anew."""
    coordinator_attempt: int = 0
    """The attempt of the vertex's coordinator that it belongs to; 0 without one."""
    restores: int = 0
    """How often the coordinators of the job had been restored when it was deployed: it belongs to
    what they were restored to last."""
    deployed_at: float = 0.0
    """Seconds since the epoch, by the clock of the JobMaster that has deployed it; 0: not known."""


@message
class TaskDeployments:
    """All that a TaskExecutor has to begin, in one message."""

    job_id: JobID
    graph_id: ExecutionGraphID
    """Whose tasks and parts these are."""
    job: int
    """Key of the JobInformation."""
    parts: tuple[SharedPart, ...]
    """Those that the TaskExecutor has not been sent yet."""
    tasks: tuple[TaskDeployment, ...]
    source_coordinator_owner: JobMasterId | None = None
    """The JobMaster that has started the coordinator of the job's sources: tasks know it by this
    id.  None: the one that deploys them."""


def attempt_of(
    graph_id: ExecutionGraphID, vertex: VertexInformation, task: TaskDeployment
) -> ExecutionAttemptID:
    """The id under which a deployed attempt is reported and cancelled."""
    subtask = ExecutionVertexID(vertex.vertex_id, task.subtask_index)
    return ExecutionAttemptID(graph_id, subtask, task.attempt_number)


def pack_numbers(numbers: list[int]) -> bytes:
    """Unsigned 32-bit integers, little endian."""
    return pack_array(array("I", numbers))


def pack_array(numbers: array[int]) -> bytes:
    """The same of an array of unsigned 32-bit integers."""
    if byteorder == "big":
        numbers = array("I", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def unpack_numbers(packed: bytes) -> array[int]:
    """The reverse of :func:`pack_numbers`."""
    numbers = array("I")
    numbers.frombytes(packed)
    if byteorder == "big":
        numbers.byteswap()
    return numbers
