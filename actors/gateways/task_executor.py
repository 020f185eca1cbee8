"""What a TaskExecutor answers: to the ResourceManager, JobMasters and its task processes."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    RefusedTask,
    SlotAnswer,
    WantedSlot,
)
from flinkray.actors.gateways.task_process import IO_METRICS_WAIT, TaskProcessListenerGateway
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    ResourceID,
    ResourceManagerId,
    ResultPartitionID,
)
from flinkray.rpc.gateway import (
    ask_timeout,
    oneway,
    runs_to_completion,
)
from flinkray.scheduler.checkpoints.messages import CheckpointOrder
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import TaskDeployments


class TaskExecutorGateway(TaskProcessListenerGateway):
    """Has slots and runs tasks in them.  It is no leader: the ResourceManagerId and JobMasterId
    that its calls carry say on whose behalf they come, and calls of a past leader are refused."""

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
        """Allocate slots for a job and offer them there; answers each, in the same order.

        Raises:
            SlotAllocationError: none is given to this ResourceManager.
        """

    @abstractmethod
    @ask_timeout(30.0)
    async def free_slot(
        self, allocation_id: AllocationID, leader_id: JobMasterId | ResourceManagerId, reason: str
    ) -> None:
        """End what runs in the slot and free it; answered when its processes are gone.

        *leader_id*: that of the slot's job, or of the ResourceManager.  A slot that is free stays
        so.
        """

    @abstractmethod
    @oneway
    async def free_inactive_slots(
        self, job_id: JobID, resource_manager_id: ResourceManagerId, reason: str
    ) -> None:
        """Free the slots that were given to a job and that it does not use."""

    @abstractmethod
    async def can_be_released(self, resource_manager_id: ResourceManagerId) -> bool:
        """Whether nothing here is of use to anybody: no slot is allocated, no partition kept."""

    @abstractmethod
    @oneway
    async def release_cluster_partitions(
        self,
        data_sets: tuple[IntermediateDataSetID, ...],
        leader_id: JobMasterId | ResourceManagerId,
    ) -> None:
        """Nobody can use these data sets any more; a JobMaster says so of its own job's."""

    @abstractmethod
    @runs_to_completion
    async def submit_tasks(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> tuple[RefusedTask, ...]:
        """Run tasks in their slots; returns those that will not be run.

        *blob_server* is the address from which code comes that is not in the message.
        """

    @abstractmethod
    async def cancel_tasks(
        self, attempts: tuple[ExecutionAttemptID, ...], job_master_id: JobMasterId
    ) -> None:
        """Begin to cancel tasks.  Those that do not run here are passed over: the report of
        their end is under way, or heartbeats will find that they are missing."""

    @abstractmethod
    @runs_to_completion
    async def order_checkpoint(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        order: CheckpointOrder,
        attempts: tuple[ExecutionAttemptID, ...],
    ) -> None:
        """Tell tasks to begin a checkpoint, or what has become of it; what they answer is reported.
        For those that do not run here a TriggerCheckpoint is declined, and other orders are passed
        over.

        Raises:
            TaskError: it does not lead the job here.
        """

    @abstractmethod
    @ask_timeout(2 * IO_METRICS_WAIT)
    async def request_io_metrics(
        self, job_id: JobID, job_master_id: JobMasterId
    ) -> tuple[TaskIOMetrics, ...]:
        """What the job's stream tasks here have read and written; without those whose process does
        not answer in time.  Raises TaskError."""

    @abstractmethod
    @oneway
    async def release_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """The job needs these results no more."""

    @abstractmethod
    @runs_to_completion
    async def promote_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """The job has finished; these results of it are the cluster's from now on, and are told of
        in heartbeats to the ResourceManager.  Raises TaskError."""

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
        """From the job's JobMaster, when it has decided on a report: of the slots that were in use
        when the one before was lost these are its own from now on, with the tasks in them that are
        of that execution graph.  The other tasks of the job end, and so do the results of other
        graphs; the other slots are offered when they are clean.

        Repetitions do no harm, and slots that are in use stay as they are.
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
        """From that JobMaster: it wants nothing of this TaskExecutor any more."""

    @abstractmethod
    @oneway
    async def job_master_lost(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
        reason: str,
    ) -> None:
        """From the ResourceManager: that JobMaster is gone."""

    @abstractmethod
    @runs_to_completion
    async def job_master_changed(
        self,
        job_id: JobID,
        job_master_address: str,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
    ) -> None:
        """From the ResourceManager: that JobMaster leads the job now, and is to be offered the
        slots that were kept for it."""
