"""Gateways between a TaskExecutor, its task processes, and tasks that read from each other."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    ResultPartitionID,
)
from flinkray.core.kv_states import KvStateRegistration
from flinkray.core.message import message
from flinkray.rpc.gateway import RpcGateway, ask_timeout, oneway, runs_to_completion
from flinkray.scheduler.checkpoints.messages import CheckpointOrder
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskDeployments
from flinkray.streaming.network import DataAddress

TASK_PROCESS_ENDPOINT = "taskprocess"

READ_WAIT = 5.0
"""Seconds that a read waits for data before it returns without data."""

IO_METRICS_WAIT = 1.0
"""Seconds that a request for I/O metrics waits for a task process."""


class ResultPartitionNotFoundError(FlinkRayError):
    """Raised when a result partition is not where it is read: not there yet, lost or released."""

    retryable = True

    def __init__(
        self, partition: ResultPartitionID, where: str, others: tuple[ResultPartitionID, ...] = ()
    ) -> None:
        """Create the error for *partition*, which is missing at *where*.
        *others*: partitions of the same data set that are missing there, too.
        """
        super().__init__(partition, where, others)
        self.partition = partition
        self.where = where
        self.others = others

    def __str__(self) -> str:
        more = f" (nor {len(self.others)} more of them)" if self.others else ""
        return f"partition {self.partition} is not found at {self.where}{more}"

    @property
    def missing(self) -> tuple[ResultPartitionID, ...]:
        """The partition that was not found, and all others that are known to be missing."""
        return (self.partition, *self.others)


@message
class TaskProcessArguments:
    """Arguments with which a task process is started."""

    cluster_id: str
    configuration: dict[str, str]
    """Configuration of the cluster."""
    task_executor_address: str
    storage_dir: str
    """Storage directory of the cluster."""


@message
class TaskProcessHost:
    """Identifies a task process for its operating system, even if its pid is reused later."""

    pid: int
    started: int
    """Start time in clock ticks since the machine's start.
    Distinguishes processes with a reused id.
    """
    namespace: int
    """The pid namespace in which the process id is valid."""

    @property
    def mark(self) -> str:
        """The text that identifies the process: ``PROCESS_MARK`` in the environment of its child
        processes.
        """
        return f"{self.namespace}-{self.pid}-{self.started}"


PROCESS_MARK = "FLINKRAY_TASK_PROCESS"


@message
class JobPartition:
    """Id of a result partition together with its job's id.
    The partition's id alone is not unique: it comes from the job's graph, which may run twice.
    """

    job_id: JobID
    partition: ResultPartitionID

    def __str__(self) -> str:
        return f"{self.partition} of job {self.job_id}"


@message
class PartitionData:
    """Buffers of a subpartition, from the requested position on."""

    buffers: tuple[bytes, ...]
    is_end: bool
    """Whether the subpartition ends with these buffers."""
    committed: int = 0
    """Number of buffers that will not be sent again, whatever fails. Used for collected results."""


@message
class PartitionPlaces:
    """The addresses of a TaskExecutor's task processes that have partitions of one data set, and
    which partitions each has. Partitions are read by messages: calls of ``read_partition``."""

    addresses: tuple[str, ...]
    """Addresses of task processes."""
    partitions: tuple[tuple[ResultPartitionID, ...], ...]
    """For each of *addresses* the partitions there."""


@message
class ChannelPlaces:
    """The addresses of a TaskExecutor's task processes that have partitions of one data set, and
    which partitions each has. Partitions are read through channels (direct connections)."""

    addresses: tuple[DataAddress, ...]
    partitions: tuple[tuple[ResultPartitionID, ...], ...]
    """For each of *addresses* the partitions there."""


class TaskProcessGateway(RpcGateway):
    """A task process, which runs the tasks of one job in some slots of one TaskExecutor.
    Only this TaskExecutor calls the process, except for reads.
    """

    @abstractmethod
    async def host(self) -> TaskProcessHost | None:
        """Return which operating system process this is. None for a simulated process."""

    @abstractmethod
    async def request_heartbeat(self) -> None:
        """Answer at once. The answer shows that the process lives and is not stuck."""

    @abstractmethod
    @ask_timeout(None)
    @runs_to_completion
    async def run_tasks(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> None:
        """Start tasks on behalf of a JobMaster. Their states are reported to the TaskExecutor.
        The call is never repeated: without an answer, the TaskExecutor kills this process.

        Information that many deployments share (``SharedPart``) is in the message only if it was
        not sent to this process before.
        """

    @abstractmethod
    @oneway
    async def cancel_tasks(self, attempts: tuple[ExecutionAttemptID, ...]) -> None:
        """Begin to cancel tasks. Idempotent; tasks that have ended are ignored."""

    @abstractmethod
    @oneway
    async def fail_task(self, attempt_id: ExecutionAttemptID, cause: str) -> None:
        """End a task as failed with this cause. A task that has ended is left alone."""

    @abstractmethod
    @runs_to_completion
    async def order_checkpoint(
        self, order: CheckpointOrder, attempts: tuple[ExecutionAttemptID, ...]
    ) -> None:
        """Pass a checkpoint order to tasks, and return when the order is passed on.
        Their answers are reported to the TaskExecutor. Orders other than a TriggerCheckpoint may be
        repeated, and may come after later orders. Tasks that have ended are ignored.
        """

    @abstractmethod
    @ask_timeout(IO_METRICS_WAIT)
    async def request_io_metrics(self, job_id: JobID) -> tuple[TaskIOMetrics, ...]:
        """Return the I/O metrics of the job's stream tasks that run here."""

    @abstractmethod
    @runs_to_completion
    async def free_slot(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """Drop the user code that no task uses except ended tasks of this slot."""

    @abstractmethod
    @oneway
    async def release_partitions(self, partitions: tuple[JobPartition, ...]) -> None:
        """Drop the stored results of these partitions: nobody needs them any more."""

    @abstractmethod
    @oneway
    async def forget_job(self, job_id: JobID) -> None:
        """Drop the information that the job's deployments shared, because no more tasks are
        deployed here by this JobMaster.
        """

    @abstractmethod
    async def data_address(self) -> DataAddress:
        """Return the address at which other processes reach the channels of this process.

        Raises:
            TaskError: the process has no sockets.
        """

    # called by tasks and clients that read

    @abstractmethod
    @ask_timeout(3 * READ_WAIT)
    async def read_partition(
        self, partition: JobPartition, subpartition: int, position: int, max_bytes: int
    ) -> PartitionData:
        """Return the buffers from number *position* on: at least one, about *max_bytes* at most.

        Returns no buffers if none arrives within READ_WAIT. A request for a position confirms that
        everything before the position was read. Raises ResultPartitionNotFoundError.
        """


class TaskProcessListenerGateway(RpcGateway):
    """The part of the TaskExecutor's gateway that its task processes call, and tasks of other
    TaskExecutors that look for their inputs.
    """

    @abstractmethod
    @runs_to_completion
    async def tasks_reported(self, process_name: str, reports: tuple[TaskReport, ...]) -> None:
        """Receive many reports of the tasks of a process in one message, in their order."""

    @abstractmethod
    async def find_partitions(
        self, job_id: JobID, data_set_id: IntermediateDataSetID
    ) -> PartitionPlaces:
        """Return this TaskExecutor's partitions of the data set, for ``read_partition``."""

    @abstractmethod
    async def find_channels(
        self, job_id: JobID, data_set_id: IntermediateDataSetID
    ) -> ChannelPlaces:
        """Return this TaskExecutor's partitions of the data set, for reading by channels."""

    # forwarded to the JobMaster, whose gateway documents these methods

    @abstractmethod
    async def request_partition_state(
        self, job_id: JobID, partition: ResultPartitionID
    ) -> ExecutionState: ...

    @abstractmethod
    @runs_to_completion
    async def notify_kv_states_registered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def notify_kv_states_unregistered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None: ...
