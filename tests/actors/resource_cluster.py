"""A ResourceManager with local workers, and JobMasters that only record, for the tests here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
    TaskExecutorGateway,
)
from flinkray.actors.gateways.job_processes import slot_pool_process
from flinkray.actors.gateways.messages import (
    ClusterArguments,
    JobMasterRegistrationSuccess,
    TaskExecutorRegistration,
    TaskExecutorRegistrationSuccess,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.core.ids import (
    AbstractID,
    DispatcherId,
    ExecutionGraphID,
    InstanceID,
    JobID,
    JobMasterId,
    LeaderSessionID,
    ResourceID,
    ResourceManagerId,
    SlotID,
    WorkerGroupId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.local_cluster.local_cluster import LocalCluster, LocalWorkers
from flinkray.rpc import EndpointSpec, LocalNetwork, LocalRpcService, RpcService
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
    SlotOffer,
    SlotOfferAnswer,
    SlotReport,
    SlotStatus,
    WorkerLocation,
)
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.testing import TestingGateway

ONE_CPU = ResourceProfile(1.0, 2**30)
RM_TOKEN = ResourceManagerId.of(LeaderSessionID.standalone())
DISPATCHER = DispatcherId.of(LeaderSessionID.standalone())
RM_ADDRESS = "ResourceManager/resourcemanager"


Id = TypeVar("Id", bound=AbstractID)


def number(kind: type[Id], value: int) -> Id:
    """An id of *kind* that a reader can tell from others."""
    return kind(value.to_bytes(kind.SIZE, "big"))


GRAPH = number(ExecutionGraphID, 1)
NEXT_GRAPH = number(ExecutionGraphID, 2)
"""Of the job's next JobMaster."""


class TestingJobMaster(TestingGateway[JobMasterGateway]):
    """A JobMaster and its SlotPool, which only record."""

    __test__ = False

    def __init__(self, token: JobMasterId) -> None:
        super().__init__(JobMasterGateway, token)
        self.lenient()
        self.pool = TestingGateway(SlotPoolGateway, token).lenient()


class Job:
    """A recording JobMaster in a process of its own, whose SlotPool takes every slot that it is
    offered, and nothing that an earlier JobMaster has left to run."""

    def __init__(
        self, service: RpcService, pool_service: RpcService, job_id: JobID, attempt: int = 0
    ) -> None:
        self.job_id = job_id
        self.job_master_id = self.id_of(job_id, attempt)
        self.resource_id = ResourceID(service.process_name)
        self.service = service
        self.master = TestingJobMaster(self.job_master_id)
        self.master.start(self.service, "jobmaster")
        self.master.pool.start(pool_service, "slotpool")
        self.accepted: list[SlotOffer] = []
        self.master.on(JobMasterGateway.register_task_executor).calling(self._registered)
        self.master.pool.on(SlotPoolGateway.offer_slots).calling(self._accept)
        self.manager: ResourceManagerGateway | None = None

    @staticmethod
    def id_of(job_id: JobID, attempt: int = 0) -> JobMasterId:
        first = 1000 * int.from_bytes(job_id.value, "big") % 2**120
        return number(JobMasterId, first + attempt)

    @classmethod
    def pool_process(cls, job_id: JobID, attempt: int = 0) -> str:
        """The name of the SlotPool's process."""
        return slot_pool_process(job_id, cls.id_of(job_id, attempt))

    def _registered(
        self, job_id: JobID, report: TaskExecutorReport
    ) -> TaskExecutorToJobMasterRegistrationSuccess:
        if report.slots:
            self._adopting = asyncio.ensure_future(self._adopt_nothing(report.location.address))
        return TaskExecutorToJobMasterRegistrationSuccess(self.resource_id)

    async def _adopt_nothing(self, address: str) -> None:
        executor = await self.service.connect(address, TaskExecutorGateway)
        await executor.adopt_slots(self.job_id, self.job_master_id, NEXT_GRAPH, ())

    def _accept(self, _: WorkerLocation, offers: tuple[SlotOffer, ...]) -> SlotOfferAnswer:
        self.accepted += offers
        return SlotOfferAnswer(tuple(offer.allocation_id for offer in offers))

    @property
    def address(self) -> str:
        return self.master.address

    async def try_to_register(self) -> object:
        self.manager = await self.service.connect(RM_ADDRESS, ResourceManagerGateway, RM_TOKEN)
        return await self.manager.register_job_master(
            self.job_master_id, self.resource_id, self.address, self.job_id
        )

    async def register(self) -> JobMasterRegistrationSuccess:
        success = await self.try_to_register()
        assert isinstance(success, JobMasterRegistrationSuccess), success
        return success

    async def declare(
        self, count: int, profile: ResourceProfile = ONE_CPU, *, dedicated: bool = True
    ) -> None:
        constraint = SameWorkerGroup("default", count) if dedicated and count else None
        requirements = (ResourceRequirement(profile, count, constraint),) if count else ()
        assert self.manager is not None
        await self.manager.declare_required_resources(
            self.job_master_id,
            ResourceRequirements(self.job_id, self.address, requirements),
        )

    async def has_slots(self, count: int) -> None:
        """Return when so many slots were offered in all."""
        offers = 1
        while len(self.accepted) < count:
            await self.master.pool.wait_for(SlotPoolGateway.offer_slots, offers)
            offers += 1

    async def executor_of(self, index: int) -> TaskExecutorGateway:
        """The TaskExecutor that offered the *index*-th slot."""
        (location, _) = self.master.pool.calls_of(SlotPoolGateway.offer_slots)[index]
        return await self.service.connect(location.address, TaskExecutorGateway)


class ResourceCluster:
    """Starts what a test asks for on one network."""

    def __init__(
        self, storage: Path, *nodes: ResourceProfile, configuration: dict[str, str] | None = None
    ) -> None:
        self.network = LocalNetwork(restart_delay=1.5)
        self.workers = LocalWorkers(self.network, *nodes)
        self.arguments = ClusterArguments("test", configuration or {}, str(storage))
        self.service = LocalRpcService("client", self.network)

    async def start_resource_manager(
        self, factory: str = LocalCluster.masters["ResourceManager"]
    ) -> ResourceManagerGateway:
        await self.service.spawn(
            EndpointSpec(
                kind="ResourceManager",
                name="ResourceManager",
                factory=factory,
                arguments=self.arguments,
                detached=True,
                max_restarts=-1,
            )
        )
        return await self.resource_manager()

    async def group_removed(self) -> None:
        """Wait until the first worker group is removed."""
        group_id = self.workers.created_groups[0].group_id
        record = self.workers.groups[group_id]
        while group_id in self.workers.groups:
            changed = asyncio.Event()
            record.listeners.append(changed.set)
            await changed.wait()

    async def resource_manager(self) -> ResourceManagerGateway:
        return await self.service.connect(RM_ADDRESS, ResourceManagerGateway, RM_TOKEN)

    def job(self, value: int, attempt: int = 0) -> Job:
        job_id = number(JobID, value)
        service = LocalRpcService(f"JobMaster-{job_id}", self.network)
        pool_service = LocalRpcService(Job.pool_process(job_id, attempt), self.network)
        return Job(service, pool_service, job_id, attempt)


class Worker:
    """A recording TaskExecutor in a process of its own, with free slots of one CPU."""

    def __init__(self, cluster: ResourceCluster, name: str, slots: int = 1) -> None:
        self.resource_id = ResourceID(name)
        self.service = LocalRpcService(name, cluster.network)
        self.executor = TestingGateway(TaskExecutorGateway).lenient()
        self.executor.start(self.service, "taskexecutor")
        self.location = WorkerLocation(
            self.resource_id, self.executor.address, "node-0", "127.0.0.1", 1, WorkerGroupId("g"), 0
        )
        self.registration = TaskExecutorRegistration(self.location, ONE_CPU.times(slots), slots)
        self.report = SlotReport(
            tuple(SlotStatus(SlotID(self.resource_id, i), ONE_CPU) for i in range(slots))
        )

    async def register(self, manager: ResourceManagerGateway) -> InstanceID:
        """Register and send the first report."""
        success = await manager.register_task_executor(self.registration)
        assert isinstance(success, TaskExecutorRegistrationSuccess), success
        self.instance_id = success.instance_id
        await manager.send_slot_report(self.resource_id, success.instance_id, self.report)
        return success.instance_id
