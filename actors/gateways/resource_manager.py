"""The gateway of the ResourceManager, for TaskExecutors, JobMasters, Dispatcher and clients."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.messages import (
    JobMasterRegistrationSuccess,
    TaskExecutorRegistration,
    TaskExecutorRegistrationSuccess,
)
from flinkray.core.ids import (
    AllocationID,
    DispatcherId,
    InstanceID,
    JobID,
    JobMasterId,
    ResourceID,
    SlotID,
)
from flinkray.rpc.gateway import (
    FencedRpcGateway,
    ask_timeout,
    oneway,
    runs_to_completion,
)
from flinkray.rpc.liveness.registration import RegistrationFailure, RegistrationRejection
from flinkray.scheduler.reports.job_info import ClusterNumbers, ClusterOverview
from flinkray.scheduler.resources.blocklist import BlockedNode
from flinkray.scheduler.shared.slots import (
    ResourceRequirements,
    SlotReport,
)


class ResourceManagerGateway(FencedRpcGateway):
    """Assigns slots to jobs, and starts and releases workers. Fenced by ResourceManagerId."""

    @abstractmethod
    async def register_task_executor(
        self, registration: TaskExecutorRegistration
    ) -> TaskExecutorRegistrationSuccess | RegistrationFailure | RegistrationRejection: ...

    @abstractmethod
    async def send_slot_report(
        self, resource_id: ResourceID, instance_id: InstanceID, report: SlotReport
    ) -> None:
        """Receive the first slot report after a registration. Raises UnknownTaskExecutorError."""

    @abstractmethod
    @oneway
    async def notify_slot_available(
        self, instance_id: InstanceID, slot_id: SlotID, allocation_id: AllocationID
    ) -> None:
        """Report that a TaskExecutor's slot, which had this allocation, is free again."""

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
        """Set the requirements of the job, in place of earlier ones.
        Empty requirements give back all slots and workers of the job. Raises JobNotFoundError if
        the job's JobMaster is not registered.
        """

    @abstractmethod
    @oneway
    async def disconnect_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, reason: str
    ) -> None:
        """Disconnect a JobMaster that goes away.
        The job's requirements are cleared. Its workers stay for a while, because the job may get
        another JobMaster.
        """

    @abstractmethod
    @ask_timeout(20.0)
    async def release_job(self, job_id: JobID, dispatcher_id: DispatcherId, reason: str) -> None:
        """Release the resources of an ended job.
        Called by the Dispatcher. Returns when the job's worker groups are gone and their resources
        are back. Idempotent, also for unknown jobs.
        """

    @abstractmethod
    @oneway
    async def disconnect_task_executor(
        self, resource_id: ResourceID, instance_id: InstanceID, reason: str
    ) -> None: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_task_executor(
        self, resource_id: ResourceID, instance_id: InstanceID, report: SlotReport
    ) -> None: ...

    @abstractmethod
    async def block_nodes(self, nodes: tuple[BlockedNode, ...]) -> None:
        """Assign no more slots on these nodes until their block ends.
        Jobs keep the slots that they have there.
        """

    @abstractmethod
    async def unblock_node(self, node_id: str) -> None:
        """End the block of a node, so that slots are assigned there again. Idempotent."""

    @abstractmethod
    async def request_blocked_nodes(self) -> tuple[BlockedNode, ...]: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_job_master(
        self, job_id: JobID, job_master_id: JobMasterId
    ) -> None: ...

    @abstractmethod
    async def request_cluster_numbers(self) -> ClusterNumbers: ...

    @abstractmethod
    async def request_resource_overview(self) -> ClusterOverview:
        """Return the cluster's workers, slots and resources, with an empty field ``jobs``."""

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def shut_down(self, dispatcher_id: DispatcherId) -> None:
        """Release every worker group, wait until all are gone, then end the ResourceManager."""
