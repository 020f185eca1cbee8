"""The gateway of the TaskExecutor, and the arguments with which a TaskExecutor is started."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    ClusterArguments,
    RefusedTask,
    SlotAnswer,
    WantedSlot,
)
from flinkray.actors.gateways.stream_coordinator import KeptPiece
from flinkray.actors.gateways.task_process import IO_METRICS_WAIT, TaskProcessListenerGateway
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
    JobMasterId,
    ResourceID,
    ResourceManagerId,
    ResultPartitionID,
    WorkerGroupId,
)
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.gateway import (
    ask_timeout,
    oneway,
    runs_to_completion,
)
from flinkray.scheduler.checkpoints.messages import CheckpointOrder
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import TaskDeployments


class TaskExecutorGateway(TaskProcessListenerGateway):
    """A TaskExecutor, which has slots and runs tasks in them.
    The TaskExecutor is not fenced, because it is not a leader. The ResourceManagerId or JobMasterId
    in a call names its sender, and calls of a past leader are refused.
    """

    @abstractmethod
    @runs_to_completion
    async def request_slots(
        self,
        wanted: tuple[WantedSlot, ...],
        job_id: JobID,
        job_master_address: str,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
    ) -> tuple[SlotAnswer, ...]:
        """Allocate slots for a job and offer them to its JobMaster.
        Returns one answer per slot, in order.

        Raises:
            SlotAllocationError: the TaskExecutor gives no slots to this ResourceManager.
        """

    @abstractmethod
    @ask_timeout(30.0)
    async def free_slot(
        self, allocation_id: AllocationID, leader_id: JobMasterId | ResourceManagerId, reason: str
    ) -> None:
        """End the tasks in the slot, and free the slot. Returns when its processes have ended.

        *leader_id* is the slot's JobMaster or the ResourceManager. Does nothing for a free slot.
        """

    @abstractmethod
    @oneway
    async def free_inactive_slots(
        self, job_id: JobID, resource_manager_id: ResourceManagerId, reason: str
    ) -> None:
        """Free the job's slots that are allocated here but that the job's SlotPool has not
        accepted.
        """

    @abstractmethod
    async def can_be_released(self, resource_manager_id: ResourceManagerId) -> bool:
        """Return whether no slot is allocated and no result is stored here, so that the
        TaskExecutor can be ended."""

    @abstractmethod
    async def take_over_job(
        self, job_id: JobID, job_master_address: str, job_master_id: JobMasterId
    ) -> bool:
        """Register at the JobMaster that takes over a job, if the job has slots here. May be
        repeated.

        Returns whether the job has slots here. If not, this TaskExecutor does not register. Raises
        FencingTokenError if another JobMaster leads the job, and RpcError if the JobMaster cannot
        be reached from here.
        """

    @abstractmethod
    @runs_to_completion
    async def submit_tasks(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> tuple[RefusedTask, ...]:
        """Run tasks in their slots.
        Returns the tasks that will not be run. *blob_server* is the address of the server for code
        that is not in the message.
        """

    @abstractmethod
    async def cancel_tasks(
        self, attempts: tuple[ExecutionAttemptID, ...], job_master_id: JobMasterId
    ) -> None:
        """Begin to cancel tasks. Attempts that do not run here are ignored.
        The JobMaster learns that they do not run here: by the report of their end, which is under
        way, or because they are missing in a heartbeat.
        """

    @abstractmethod
    @runs_to_completion
    async def order_checkpoint(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        order: CheckpointOrder,
        attempts: tuple[ExecutionAttemptID, ...],
    ) -> None:
        """Pass on the order that begins, completes or aborts a checkpoint to tasks.

        The tasks' answers are reported later. For tasks that do not run here, a TriggerCheckpoint
        is declined and other orders are ignored. Raises TaskError if that JobMaster does not lead
        the job here.
        """

    @abstractmethod
    @ask_timeout(2 * IO_METRICS_WAIT)
    async def request_io_metrics(
        self, job_id: JobID, job_master_id: JobMasterId
    ) -> tuple[TaskIOMetrics, ...]:
        """Return the I/O metrics of the job's stream tasks here.
        Tasks whose process does not answer in time are left out. Raises TaskError if that JobMaster
        does not lead the job here.
        """

    @abstractmethod
    @oneway
    async def release_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """Release results that the job does not need any more."""

    @abstractmethod
    @oneway
    async def heartbeat_from_resource_manager(
        self, resource_id: ResourceID, resource_manager_id: ResourceManagerId
    ) -> None: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_job_master(
        self, resource_id: ResourceID, job_master_id: JobMasterId, report: AllocatedSlotReport
    ) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def adopt_slots(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        graph_id: ExecutionGraphID,
        allocations: tuple[AllocationID, ...],
    ) -> None:
        """Give the slots of a lost JobMaster to the new JobMaster that makes this call. Idempotent.

        The new JobMaster calls this after it has decided which tasks continue. It gets the slots in
        *allocations*, with their tasks of the execution graph *graph_id*. All other tasks of the
        job are ended, and results of other graphs are released. The job's remaining slots are
        offered to the JobMaster as soon as nothing runs in them.
        """

    @abstractmethod
    @runs_to_completion
    async def keep(
        self, job_id: JobID, job_master_id: JobMasterId, copy: int, piece: KeptPiece
    ) -> bool:
        """Store one piece of a JobMaster's notes here, for the job's next JobMaster.
        Returns False if the piece is not stored: the job has no slots here, or a later copy is
        here.

        *copy* is the number of the copy to which the piece belongs. A copy is complete once its
        notes have arrived, and then replaces the earlier copy. Further pieces change the complete
        copy.

        Raises FencingTokenError if another JobMaster leads the job.
        """

    @abstractmethod
    @runs_to_completion
    async def keep_no_more(self, job_id: JobID, job_master_id: JobMasterId) -> None:
        """Drop the copy of the job's notes here, because a later copy is stored elsewhere.
        Raises FencingTokenError if another JobMaster leads the job.
        """

    @abstractmethod
    async def hand_over(
        self, job_id: JobID, job_master_id: JobMasterId, number: int
    ) -> KeptPiece | None:
        """Return piece *number*, counted from 0, of the complete copy of a JobMaster's notes.
        None after the last piece. The pieces hold finished tasks, and parts of the source
        coordinator's state. The notes themselves are in the TaskExecutor's report.

        Raises:
            FencingTokenError: another JobMaster leads the job.
        """

    @abstractmethod
    @oneway
    async def disconnect_resource_manager(
        self, resource_manager_id: ResourceManagerId, reason: str
    ) -> None: ...

    @abstractmethod
    @oneway
    async def disconnect_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, reason: str
    ) -> None:
        """Disconnect a JobMaster that needs nothing of this TaskExecutor any more.
        Called by that JobMaster.
        """

    @abstractmethod
    @oneway
    async def job_master_lost(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
        reason: str,
    ) -> None:
        """Report that a JobMaster is lost. Called by the ResourceManager.
        The job's slots stay allocated, and their tasks run on, until the next JobMaster comes.
        """

    @abstractmethod
    @runs_to_completion
    async def job_master_changed(
        self,
        job_id: JobID,
        job_master_address: str,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
    ) -> None:
        """Report which JobMaster leads the job now. Called by the ResourceManager.
        The TaskExecutor registers at this JobMaster, which may take over the job's slots here.
        """


@message
class NodeAddress:
    """A node of the cluster: Ray's node id in hex, and the IP address."""

    node_id: str
    node_ip: str


@message
class TaskExecutorArguments:
    """Arguments with which the ResourceManager's driver starts a TaskExecutor process.
    They stay the same when the process is restarted.
    """

    resource_id: ResourceID
    """Id of the TaskExecutor, and also the name of the process."""
    worker_group: WorkerGroupId
    bundle_index: int
    total_profile: ResourceProfile
    number_of_slots: int
    cluster: ClusterArguments
    is_dedicated: bool = False
    """Whether the TaskExecutor serves the Spark stage of one job.
    If so, no task processes are started ahead.
    """
    node: NodeAddress | None = None
    """Node of a process that does not run on Ray. None: the process asks Ray for its node."""
