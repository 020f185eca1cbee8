"""The contracts between a TaskExecutor, its task processes, and tasks that read each other."""

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
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskDeployments
from flinkray.streaming.network import DataAddress

TASK_PROCESS_ENDPOINT = "taskprocess"

READ_WAIT = 5.0
"""Seconds that a read waits for data before it is answered with none."""

IO_METRICS_WAIT = 1.0
"""Seconds for which who wants to see a job waits for a task process that does not answer."""


class ResultPartitionNotFoundError(FlinkRayError):
    """A result partition is not where it should be: not there yet, lost or released."""

    retryable = True

    def __init__(
        self, partition: ResultPartitionID, where: str, others: tuple[ResultPartitionID, ...] = ()
    ) -> None:
        """*others*: of the same data set, that are not there either."""
        super().__init__(partition, where, others)
        self.partition = partition
        self.where = where
        self.others = others

    def __str__(self) -> str:
        more = f" (nor {len(self.others)} more of them)" if self.others else ""
        return f"partition {self.partition} is not found at {self.where}{more}"

    @property
    def missing(self) -> tuple[ResultPartitionID, ...]:
        """All that is known not to be there."""
        return (self.partition, *self.others)


@message
class TaskProcessArguments:
    """What a task process is started with."""

    cluster_id: str
    configuration: dict[str, str]
    """The cluster's."""
    task_executor_address: str
    storage_dir: str
    """The cluster's."""


@message
class TaskProcessHost:
    """The operating system's process."""

    pid: int
    started: int
    """In ticks since the machine was started: ids of processes are used again."""
    namespace: int
    """In which the id is one."""

    @property
    def mark(self) -> str:
        """In the environment of what it starts, under ``PROCESS_MARK``."""
        return f"{self.namespace}-{self.pid}-{self.started}"


PROCESS_MARK = "FLINKRAY_TASK_PROCESS"


@message
class JobPartition:
    """A partition; the ids of data sets are those of the job's graph, which may be run twice."""

    job_id: JobID
    partition: ResultPartitionID


@message
class PartitionData:
    """A piece of a subpartition, beginning at the position that was asked for."""

    buffers: tuple[bytes, ...]
    is_end: bool
    """Nothing follows these."""
    committed: int = 0
    """So many buffers will not come again, whatever fails (collected results)."""


@message
class PartitionPlaces:
    """Where the partitions of a data set are that a TaskExecutor has."""

    addresses: tuple[str, ...]
    """Of task processes."""
    partitions: tuple[tuple[ResultPartitionID, ...], ...]
    """Of each."""


@message
class ChannelPlaces:
    """Where the partitions of a data set are that a TaskExecutor has."""

    addresses: tuple[DataAddress, ...]
    partitions: tuple[tuple[ResultPartitionID, ...], ...]
    """At each."""


class TaskProcessGateway(RpcGateway):
    """Runs the tasks of one job in some slots of one TaskExecutor, which alone calls it, but for
    reads."""

    @abstractmethod
    async def host(self) -> TaskProcessHost | None:
        """None: the process is pretended."""

    @abstractmethod
    async def request_heartbeat(self) -> None:
        """Answered at once, as long as the process answers at all."""

    @abstractmethod
    @ask_timeout(None)
    @runs_to_completion
    async def run_tasks(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> None:
        """Begin these, on behalf of that JobMaster; what becomes of each is told to the
        TaskExecutor.

        The parts are those that this process was not sent yet.
        """

    @abstractmethod
    @oneway
    async def cancel_tasks(self, attempts: tuple[ExecutionAttemptID, ...]) -> None:
        """Idempotent, also for tasks that have ended."""

    @abstractmethod
    @oneway
    async def fail_task(self, attempt_id: ExecutionAttemptID, cause: str) -> None:
        """End a task as failed with this cause; one that has ended stays as it is."""

    @abstractmethod
    @runs_to_completion
    async def order_checkpoint(
        self, order: CheckpointOrder, attempts: tuple[ExecutionAttemptID, ...]
    ) -> None:
        """Answered when the tasks are told; what they answer is told to the TaskExecutor.  Other
        orders than a TriggerCheckpoint may be told twice, and after later ones.  Tasks that have
        ended are passed over."""

    @abstractmethod
    @ask_timeout(IO_METRICS_WAIT)
    async def request_io_metrics(self, job_id: JobID) -> tuple[TaskIOMetrics, ...]:
        """Of the job's stream tasks that run here."""

    @abstractmethod
    @runs_to_completion
    async def free_slot(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """Forget what the slot's tasks have loaded: they have ended."""

    @abstractmethod
    @oneway
    async def release_partitions(self, partitions: tuple[JobPartition, ...]) -> None:
        """Nobody needs these any more."""

    @abstractmethod
    @oneway
    async def forget_job(self, job_id: JobID) -> None:
        """No deployments of this JobMaster follow: forget what earlier ones have sent."""

    @abstractmethod
    async def data_address(self) -> DataAddress:
        """Where the channels of this process are reached.

        Raises:
            TaskError: it has no sockets.
        """

    # from tasks, and clients, that read

    @abstractmethod
    @ask_timeout(3 * READ_WAIT)
    async def read_partition(
        self, partition: JobPartition, subpartition: int, position: int, max_bytes: int
    ) -> PartitionData:
        """The buffers from number *position* on: at least one, about *max_bytes* at most; none when
        none comes within READ_WAIT.  Asking for a position says that what is before it was read.

        Raises:
            ResultPartitionNotFoundError: it is not here.
        """


class TaskProcessListenerGateway(RpcGateway):
    """The side of a TaskExecutor that its task processes, and tasks elsewhere, talk to."""

    @abstractmethod
    @runs_to_completion
    async def tasks_reported(self, process_name: str, reports: tuple[TaskReport, ...]) -> None:
        """Of the tasks of a process, in their order, many in one message."""

    @abstractmethod
    async def find_partitions(
        self, job_id: JobID, data_set_id: IntermediateDataSetID
    ) -> PartitionPlaces:
        """Those of the data set that this TaskExecutor has, for calls of ``read_partition``."""

    @abstractmethod
    async def find_channels(
        self, job_id: JobID, data_set_id: IntermediateDataSetID
    ) -> ChannelPlaces:
        """The same, for channels."""

    # handed on to the JobMaster; see there

    @abstractmethod
    async def request_partition_state(
        self, job_id: JobID, partition: ResultPartitionID
    ) -> ExecutionState: ...

    @abstractmethod
    async def request_next_input_split(
        self, attempt_id: ExecutionAttemptID, number: int
    ) -> InputSplit | None: ...

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

    @abstractmethod
    @ask_timeout(60.0)
    async def update_global_aggregate(
        self, attempt_id: ExecutionAttemptID, number: int, name: str, value: bytes, function: bytes
    ) -> bytes: ...
