"""Defines the deployments that a JobMaster sends, and the reports of TaskExecutors about tasks."""

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
from flinkray.core.recurring_errors import ProgramError
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
"""Largest size in bytes of a failure's text in a shortened message."""


@message
class TaskExecutionState:
    """A TaskExecutor's report of an attempt's state."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    state: ExecutionState
    failure: str | None = None
    traceback: str | None = None
    suppress_restarts: bool = False
    """Whether the failure would happen again after a restart."""
    missing_partitions: tuple[ResultPartitionID, ...] = ()
    """Partitions that do not exist.
    The task failed because it could not read the first; the others were found missing at the same
    time."""
    io_metrics: IOMetrics | None = None
    """Metrics of a streaming task that has ended; otherwise None."""
    program_error: ProgramError | None = None
    """Identifies the error, to find out whether another attempt ends with the same error."""

    def shortened(self) -> TaskExecutionState:
        """Return the report without traceback, with a short failure text and at most one missing
        partition. For reports that are too large for a message."""
        text = None if self.failure is None else sendable(self.failure, _SHORT)
        first = self.missing_partitions[:1]
        return replace(self, failure=text, traceback=None, missing_partitions=first)


# --- deployments in bulk --------------------------------------------------------------------------


@message
class JobInformation:
    """Information that all tasks of a job share."""

    job_id: JobID
    job_name: str
    files: tuple[JobFile, ...] = ()
    cancellation_interval: float | None = None
    """Seconds between interrupts of a task that is being canceled.
    None: the cluster's ``task.cancellation.interval``."""
    cancellation_timeout: float | None = None
    """Seconds after which a canceled task is ended by force.
    None: the cluster's ``task.cancellation.timeout``."""
    takes_checkpoints: bool = False
    """Whether the job takes periodic checkpoints, not only requested ones."""
    is_exactly_once: bool = True
    """Whether checkpoints contain no effects of records that came after their barriers."""
    inline_threshold: int | None = None
    """Bytes below which state is stored in its handle.
    None: the cluster's ``execution.checkpointing.data-inline-threshold``."""
    max_waiting_records: int | None = None
    """Number of waiting records in a subtask of a look-up from which on sources are not read.
    None: the cluster's ``execution.spark.max-waiting-records``."""
    has_stream_sources: bool = True
    """Whether a program of the job has a source. If not, the job has no StreamCoordinator."""


@message
class ConsumerInformation:
    """One consumer of a result: its distribution pattern and parallelism. With the number of
    producers, these determine the number of subpartitions of a partition
    (:func:`flinkray.scheduler.graph.distribution.number_of_subpartitions`)."""

    pattern: DistributionPattern
    parallelism: int
    max_parallelism: int
    """Number of key groups, which decide where keyed records are sent."""


@message
class ResultInformation:
    """A result of a vertex; each subtask produces a partition of it."""

    data_set_id: IntermediateDataSetID
    result_type: ResultPartitionType
    consumers: tuple[ConsumerInformation, ...]
    medium: ResultMedium = ResultMedium.CHANNELS


@message
class InputInformation:
    """A result that a vertex reads. Together with the vertex's own parallelism, the pattern and the
    producer's parallelism determine which part each subtask reads."""

    data_set_id: IntermediateDataSetID
    result_type: ResultPartitionType
    pattern: DistributionPattern
    producer_vertex_id: JobVertexID
    producer_parallelism: int
    medium: ResultMedium = ResultMedium.CHANNELS
    is_written_whole: bool = False
    """Whether the producer's coordinator has written all partitions as one set of files."""


@message
class VertexInformation:
    """Information that all subtasks of a vertex share."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    max_parallelism: int
    invokable: Invokable
    inputs: tuple[InputInformation, ...]
    results: tuple[ResultInformation, ...]

    def task(self, subtask_index: int) -> str:
        """Return the name of a subtask: ``<vertex> (<subtask, from 1>/<parallelism>)``."""
        return f"{self.name} ({subtask_index + 1}/{self.parallelism})"


@message
class PartitionLocations:
    """Tells consumers where the producers of consecutive partitions of a data set are. ``places``
    and ``attempts`` contain unsigned 32-bit integers, little endian."""

    graph_id: ExecutionGraphID
    data_set_id: IntermediateDataSetID
    first_partition: int
    task_executors: tuple[WorkerLocation, ...]
    places: bytes
    """Index into ``task_executors`` for each partition."""
    attempts: bytes
    """Attempt number of the producer for each partition."""
    coordinator_attempt: int = 0
    """If the producers' coordinator has written the data set: the attempt that wrote it."""

    @property
    def number_of_partitions(self) -> int:
        return len(self.places) // 4

    def location_of(self, partition: int) -> WorkerLocation:
        """Return the location of a partition; *partition* is its index in the data set."""
        return self.task_executors[unpack_numbers(self.places)[partition - self.first_partition]]

    def partition_id(self, partition: int) -> ResultPartitionID:
        """Return the id of a partition; *partition* is its index in the data set."""
        attempt = unpack_numbers(self.attempts)[partition - self.first_partition]
        return ResultPartitionID(self.graph_id, self.data_set_id, partition, attempt)

    def partitions_at(self, location: WorkerLocation) -> Iterator[ResultPartitionID]:
        """Yield the ids of the partitions whose producers are at *location*, in ascending order."""
        place = self.task_executors.index(location)
        numbers = zip(unpack_numbers(self.places), unpack_numbers(self.attempts), strict=True)
        for number, (where, attempt) in enumerate(numbers):
            if where == place:
                yield ResultPartitionID(
                    self.graph_id, self.data_set_id, self.first_partition + number, attempt
                )


@message
class SharedPart:
    """Information that many deployments need and refer to by its key. It is sent to each
    TaskExecutor once per version. The TaskExecutor keeps it for the execution graph, until a newer
    version of the same key replaces it."""

    key: int
    version: int
    content: JobInformation | VertexInformation | PartitionLocations


@message
class RestoredTask:
    """The state with which a restored task starts, and the checkpoint that contains the state."""

    checkpoint_id: int
    state: TaskState | None
    """State of the task's operators; None if the task has no state in the checkpoint."""
    is_foreign: bool = False
    """Whether another job has taken the checkpoint.
    If so, a restart does not help if the state does not fit, and results that the other job had
    collected are not restored."""


@message
class TaskDeployment:
    """Tells a TaskExecutor to run one attempt of a subtask. ``vertex`` and ``inputs`` are keys of
    information that is sent separately, once for many deployments (SharedPart)."""

    vertex: int
    subtask_index: int
    attempt_number: int
    allocation_id: AllocationID
    inputs: tuple[int, ...] = ()
    """Key of the PartitionLocations for each input of the vertex."""
    restored: RestoredTask | None = None
    """State from which the task starts; None: the task starts without state."""
    coordinator_attempt: int = 0
    """Number of the coordinator's attempt to which the task belongs; 0 without a coordinator."""
    restores: int = 0
    """How often the job's coordinators had been restored when the task was deployed.
    The task belongs to their state since that restore."""
    deployed_at: float = 0.0
    """Seconds since the epoch, by the clock of the deploying JobMaster; 0 if unknown."""


@message
class TaskDeployments:
    """All deployments for a TaskExecutor, in one message."""

    job_id: JobID
    graph_id: ExecutionGraphID
    """Execution graph of these tasks and parts."""
    job: int
    """Key of the JobInformation."""
    parts: tuple[SharedPart, ...]
    """Parts that the TaskExecutor has not received yet."""
    tasks: tuple[TaskDeployment, ...]
    source_coordinator_owner: JobMasterId | None = None
    """JobMaster that started the coordinator of the job's sources; tasks identify it by this id.
    None: the JobMaster that deploys the tasks."""


def attempt_of(
    graph_id: ExecutionGraphID, vertex: VertexInformation, task: TaskDeployment
) -> ExecutionAttemptID:
    """Return the id under which a deployed attempt is reported and canceled."""
    subtask = ExecutionVertexID(vertex.vertex_id, task.subtask_index)
    return ExecutionAttemptID(graph_id, subtask, task.attempt_number)


def pack_numbers(numbers: list[int]) -> bytes:
    """Pack unsigned 32-bit integers, little endian."""
    return pack_array(array("I", numbers))


def pack_array(numbers: array[int]) -> bytes:
    """Pack an array of unsigned 32-bit integers, little endian."""
    if byteorder == "big":
        numbers = array("I", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def unpack_numbers(packed: bytes) -> array[int]:
    """Unpack the result of :func:`pack_numbers`."""
    numbers = array("I")
    numbers.frombytes(packed)
    if byteorder == "big":
        numbers.byteswap()
    return numbers
