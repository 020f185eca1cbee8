"""The public contracts of the cluster's actors."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.messages import (
    AllocatedSlotReport,
    JobMasterRegistrationSuccess,
    JobMasterToDispatcherRegistrationSuccess,
    RefusedTask,
    TaskExecutorHeartbeat,
    TaskExecutorRegistration,
    TaskExecutorRegistrationSuccess,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.actors.task_process.gateway import TaskProcessListenerGateway
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    InstanceID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    ResourceID,
    ResourceManagerId,
    SlotID,
)
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.gateway import (
    FencedRpcGateway,
    ask_timeout,
    oneway,
    runs_to_completion,
)
from flinkray.rpc.registration import RegistrationFailure, RegistrationRejection
from flinkray.scheduler.blocklist import BlockedNode
from flinkray.scheduler.cluster_partitions import ClusterPartitionReport
from flinkray.scheduler.job_graph import JobGraph
from flinkray.scheduler.job_info import ClusterOverview, JobDetails, JobOverview, JobResult
from flinkray.scheduler.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotEvent,
    SlotRequests,
)
from flinkray.scheduler.slots import (
    AllocatedSlot,
    ResourceRequirements,
    ResourceShortage,
    SlotOffer,
    SlotOfferAnswer,
    SlotReport,
    WorkerLocation,
)
from flinkray.scheduler.states import ExecutionState, JobStatus
from flinkray.scheduler.tasks import (
    ResultPartitionID,
    TaskDeploymentDescriptor,
    TaskDeployments,
    TaskExecutionState,
)
from flinkray.spark.gateway import SparkStageListenerGateway


class DispatcherGateway(FencedRpcGateway):
    """Takes jobs, starts a JobMaster for each, answers clients; fenced by DispatcherId."""

    @abstractmethod
    @runs_to_completion
    async def submit_job(self, job_graph: JobGraph) -> None:
        """Accept a job; returns when it is stored and will run whatever dies next.

        Raises:
            DuplicateJobSubmissionError, JobSubmissionError.
        """

    @abstractmethod
    async def list_jobs(self) -> tuple[JobOverview, ...]:
        """Running and ended jobs, oldest first."""

    @abstractmethod
    async def request_job_status(self, job_id: JobID) -> JobStatus: ...

    @abstractmethod
    async def request_job_details(self, job_id: JobID) -> JobDetails: ...

    @abstractmethod
    @ask_timeout(None)
    async def request_job_result(self, job_id: JobID) -> JobResult:
        """Answers when the job has ended and its resources are back."""

    @abstractmethod
    @runs_to_completion
    async def cancel_job(self, job_id: JobID) -> None:
        """Begin cancelling (a second time is fine).  Raises JobNotFoundError, JobStateError."""

    @abstractmethod
    async def request_cluster_overview(self) -> ClusterOverview: ...

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def shut_down_cluster(self) -> None:
        """Cancel all jobs and end every process and placement group of the cluster."""

    # from JobMasters

    @abstractmethod
    async def register_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, job_master_address: str
    ) -> JobMasterToDispatcherRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        """A JobMaster presents itself, at its start and to every new Dispatcher.

        Rejected when another attempt leads the job by now; the rejected one ends itself.
        """

    @abstractmethod
    @oneway
    async def heartbeat_from_job_master(self, resource_id: ResourceID) -> None: ...

    @abstractmethod
    async def job_reached_terminal_state(
        self, job_id: JobID, job_master_id: JobMasterId, result: JobResult, details: JobDetails
    ) -> None:
        """A JobMaster is done, its tasks have ended.  Answered when the result is stored; when the
        JobMaster has then ended itself, what the job had is taken back."""


class ResourceManagerGateway(FencedRpcGateway):
    """Gives slots to jobs and starts and releases workers; fenced by ResourceManagerId."""

    @abstractmethod
    async def register_task_executor(
        self, registration: TaskExecutorRegistration
    ) -> TaskExecutorRegistrationSuccess | RegistrationFailure | RegistrationRejection: ...

    @abstractmethod
    async def send_slot_report(
        self, resource_id: ResourceID, instance_id: InstanceID, report: SlotReport
    ) -> None:
        """First report after registering.  Raises UnknownTaskExecutorError."""

    @abstractmethod
    @oneway
    async def notify_slot_available(
        self, instance_id: InstanceID, slot_id: SlotID, allocation_id: AllocationID
    ) -> None:
        """A slot is free again."""

    @abstractmethod
    async def register_job_master(
        self,
        job_master_id: JobMasterId,
        job_master_resource_id: ResourceID,
        job_master_address: str,
        job_id: JobID,
    ) -> JobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection: ...

    @abstractmethod
    async def declare_required_resources(
        self, job_master_id: JobMasterId, requirements: ResourceRequirements
    ) -> None:
        """Replace what the job wants; empty requirements give its slots and workers back.

        Raises JobNotFoundError when the job's master is not registered.
        """

    @abstractmethod
    @oneway
    async def disconnect_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, reason: str
    ) -> None:
        """The master goes (its job may get another one: requirements are kept for a while)."""

    @abstractmethod
    @ask_timeout(60.0)
    async def release_job(self, job_id: JobID, reason: str) -> None:
        """From the Dispatcher: the job has ended.  Answered when its worker groups are gone and
        their resources are back.  Idempotent; a job that is not known (any more) is fine."""

    @abstractmethod
    @oneway
    async def disconnect_task_executor(self, resource_id: ResourceID, reason: str) -> None: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_task_executor(
        self,
        resource_id: ResourceID,
        report: SlotReport,
        partitions: tuple[ClusterPartitionReport, ...],
    ) -> None: ...

    @abstractmethod
    async def block_nodes(self, nodes: tuple[BlockedNode, ...]) -> None:
        """Give nothing more from these nodes for a while; jobs keep what they have there."""

    @abstractmethod
    async def unblock_node(self, node_id: str) -> None:
        """Idempotent."""

    @abstractmethod
    async def request_blocked_nodes(self) -> tuple[BlockedNode, ...]: ...

    @abstractmethod
    async def release_cluster_data_set(self, data_set_id: IntermediateDataSetID) -> None:
        """Have all TaskExecutors release what they have of it.  Idempotent."""

    @abstractmethod
    @oneway
    async def heartbeat_from_job_master(self, resource_id: ResourceID) -> None: ...

    @abstractmethod
    async def request_resource_overview(self) -> ClusterOverview:
        """Workers, slots and resources (``jobs`` is empty)."""

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def shut_down(self) -> None:
        """Release every worker group, then stop."""


class JobMasterGateway(SparkStageListenerGateway):
    """Runs one job; fenced by JobMasterId."""

    # from TaskExecutors

    @abstractmethod
    async def register_task_executor(
        self, job_id: JobID, location: WorkerLocation
    ) -> (
        TaskExecutorToJobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection
    ): ...

    @abstractmethod
    async def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer: ...

    @abstractmethod
    @oneway
    async def fail_slot(
        self, resource_id: ResourceID, allocation_id: AllocationID, reason: str
    ) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def update_task_execution_states(self, states: tuple[TaskExecutionState, ...]) -> None:
        """States of tasks in their order, many in one message; repetitions do no harm."""

    @abstractmethod
    async def request_partition_state(self, partition: ResultPartitionID) -> ExecutionState:
        """The state of the task that produces it.

        Raises:
            ValueError: the job has no such partition.
            PartitionProducerDisposedError: it is of an attempt that is not the current one.
        """

    @abstractmethod
    @oneway
    async def disconnect_task_executor(self, resource_id: ResourceID, reason: str) -> None: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_task_executor(
        self, resource_id: ResourceID, payload: TaskExecutorHeartbeat
    ) -> None: ...

    # from the ResourceManager

    @abstractmethod
    @oneway
    async def heartbeat_from_resource_manager(self, resource_id: ResourceID) -> None: ...

    @abstractmethod
    @oneway
    async def disconnect_resource_manager(
        self, resource_manager_id: ResourceManagerId, reason: str
    ) -> None: ...

    @abstractmethod
    @oneway
    async def notify_not_enough_resources(self, shortages: tuple[ResourceShortage, ...]) -> None:
        """Why slots are missing, now (the whole list; empty: nothing is short any more)."""

    # from the SlotPool

    @abstractmethod
    @oneway
    async def slots_changed(
        self,
        pool_number: int,
        news_number: int,
        gained: tuple[AllocatedSlot, ...],
        lost: tuple[AllocationID, ...],
        events: tuple[SlotEvent, ...],
    ) -> None:
        """Slots that the pool has got and lost, and then what became of requests and slots; see
        :mod:`flinkray.scheduler.slot_requests`.

        The news of the JobMaster's *pool_number*-th pool are counted from 1, so that it is noticed
        when some are lost.
        """

    # from the Dispatcher

    @abstractmethod
    @oneway
    async def heartbeat_from_dispatcher(self, resource_id: ResourceID) -> None: ...

    @abstractmethod
    async def request_job_status(self) -> JobStatus: ...

    @abstractmethod
    async def request_job_details(self) -> JobDetails: ...

    @abstractmethod
    async def cancel(self) -> None: ...


class SlotPoolGateway(FencedRpcGateway):
    """Holds the slots of one job; fenced by the JobMasterId of its JobMaster."""

    @abstractmethod
    async def request_heartbeat(self) -> int:
        """How many news the JobMaster has been sent."""

    @abstractmethod
    async def connect_to_resource_manager(
        self, address: str, resource_manager_id: ResourceManagerId
    ) -> None:
        """Declare requirements there from now on, beginning with the present ones."""

    @abstractmethod
    async def disconnect_resource_manager(self) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def set_resource_requirements(self, requirements: ResourceRequirements) -> None:
        """What the job wants from now on (a total)."""

    @abstractmethod
    @runs_to_completion
    async def request_slots(self, wanted: SlotRequests) -> None:
        """Ask for many slots by one message; each request is answered by ``slots_changed``."""

    @abstractmethod
    @runs_to_completion
    async def cancel_slot_requests(self, cancelled: CancelSlotRequests) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def return_slots(self, returned: ReturnSlots) -> None:
        """The job does not use these slots any more; the pool may give them to other requests."""

    @abstractmethod
    @runs_to_completion
    async def notify_not_enough_resources(self, shortages: tuple[ResourceShortage, ...]) -> None:
        """What the ResourceManager has told the JobMaster; fails the requests that it concerns."""

    @abstractmethod
    @runs_to_completion
    async def set_job_restarting(self, restarting: bool) -> None:
        """While the job restarts every offered slot is kept, required or not."""

    @abstractmethod
    @runs_to_completion
    async def register_task_executor(self, location: WorkerLocation) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def release_task_executor(self, resource_id: ResourceID, reason: str) -> None:
        """A TaskExecutor is gone, its slots with it."""

    @abstractmethod
    @runs_to_completion
    async def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer: ...

    @abstractmethod
    @runs_to_completion
    async def fail_allocation(self, allocation_id: AllocationID, reason: str) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def release_slots(self, allocations: tuple[AllocationID, ...], reason: str) -> None:
        """Give slots back to their TaskExecutors."""

    @abstractmethod
    @ask_timeout(30.0)
    @runs_to_completion
    async def close_pool(self, reason: str) -> None:
        """Free every slot at its TaskExecutor, declare empty requirements, and stop."""


class TaskExecutorGateway(TaskProcessListenerGateway):
    """Has slots and runs tasks in them.  It is no leader: the ResourceManagerId and JobMasterId
    that its calls carry say on whose behalf they come, and calls of a past leader are refused."""

    @abstractmethod
    @runs_to_completion
    async def request_slot(
        self,
        slot_id: SlotID,
        job_id: JobID,
        allocation_id: AllocationID,
        profile: ResourceProfile,
        job_master_address: str,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
    ) -> SlotID:
        """Allocate a slot for a job and offer it there.  Index -1 asks for a dynamic slot, of
        exactly that profile; the answer says which one it is.  Raises SlotAllocationError."""

    @abstractmethod
    @ask_timeout(30.0)
    async def free_slot(self, allocation_id: AllocationID, reason: str) -> None:
        """End what runs in the slot and free it; answered when its processes are gone."""

    @abstractmethod
    @oneway
    async def free_inactive_slots(self, job_id: JobID, reason: str) -> None:
        """Free the slots that were given to a job and that it does not use."""

    @abstractmethod
    async def can_be_released(self) -> bool:
        """Whether nothing here is of use to anybody: no slot is allocated, no partition kept."""

    @abstractmethod
    @oneway
    async def release_cluster_partitions(
        self, data_sets: tuple[IntermediateDataSetID, ...]
    ) -> None:
        """Nobody can use these data sets any more."""

    @abstractmethod
    @runs_to_completion
    async def submit_task(
        self, descriptor: TaskDeploymentDescriptor, job_master_id: JobMasterId
    ) -> None:
        """Run a Spark stage's task in its slot."""

    @abstractmethod
    @runs_to_completion
    async def submit_tasks(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> tuple[RefusedTask, ...]:
        """Run Python tasks in their slots; returns those that will not be run.

        *blob_server* is the address from which code comes that is not in the message.
        """

    @abstractmethod
    async def cancel_task(
        self, attempt_id: ExecutionAttemptID, job_master_id: JobMasterId
    ) -> None: ...

    @abstractmethod
    async def cancel_tasks(
        self, attempts: tuple[ExecutionAttemptID, ...], job_master_id: JobMasterId
    ) -> tuple[ExecutionAttemptID, ...]:
        """Begin to cancel Python tasks; returns those that do not run here."""

    @abstractmethod
    @oneway
    async def release_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        """The job needs these results no more."""

    @abstractmethod
    @oneway
    async def heartbeat_from_resource_manager(self, resource_id: ResourceID) -> None: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_job_master(
        self, resource_id: ResourceID, report: AllocatedSlotReport
    ) -> None: ...

    @abstractmethod
    @oneway
    async def disconnect_resource_manager(self, reason: str) -> None: ...

    @abstractmethod
    @oneway
    async def disconnect_job_master(self, job_id: JobID, reason: str) -> None: ...
