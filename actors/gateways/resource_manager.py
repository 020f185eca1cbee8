"""What a ResourceManager answers: to TaskExecutors, JobMasters, the Dispatcher and clients."""

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
    IntermediateDataSetID,
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
from flinkray.scheduler.resources.cluster_partitions import ClusterDataSet, ClusterPartitionReport
from flinkray.scheduler.shared.slots import (
    ResourceRequirements,
    SlotReport,
)


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
    async def release_job(self, job_id: JobID, dispatcher_id: DispatcherId, reason: str) -> None:
        """From the Dispatcher: the job has ended.  Answered when its worker groups are gone and
        their resources are back.  Idempotent; a job that is not known (any more) is fine."""

    @abstractmethod
    @oneway
    async def disconnect_task_executor(
        self, resource_id: ResourceID, instance_id: InstanceID, reason: str
    ) -> None: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_task_executor(
        self,
        resource_id: ResourceID,
        instance_id: InstanceID,
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
    async def list_cluster_data_sets(self) -> tuple[ClusterDataSet, ...]:
        """What finished jobs have left, as the TaskExecutors have told by their heartbeats."""

    @abstractmethod
    async def release_cluster_data_set(
        self, data_set_id: IntermediateDataSetID, dispatcher_id: DispatcherId
    ) -> None:
        """Have all TaskExecutors release what they have of it.  Idempotent."""

    @abstractmethod
    @oneway
    async def heartbeat_from_job_master(
        self, job_id: JobID, job_master_id: JobMasterId
    ) -> None: ...

    @abstractmethod
    async def request_cluster_numbers(self) -> ClusterNumbers: ...

    @abstractmethod
    async def request_resource_overview(self) -> ClusterOverview:
        """Workers, slots and resources (``jobs`` is empty)."""

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def shut_down(self, dispatcher_id: DispatcherId) -> None:
        """Release every worker group, then stop."""
