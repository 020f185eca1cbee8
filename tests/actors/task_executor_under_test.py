"""One TaskExecutor; its ResourceManager and JobMasters only record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
    TaskExecutorGateway,
)
from flinkray.actors.gateways.job_processes import slot_pool_process
from flinkray.actors.gateways.messages import (
    ClusterArguments,
    RefusedTask,
    TaskExecutorRegistrationSuccess,
    TaskExecutorToJobMasterRegistrationSuccess,
    WantedSlot,
)
from flinkray.actors.gateways.task_executor import NodeAddress, TaskExecutorArguments
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.actors.task_executor.host import TaskExecutorHost
from flinkray.actors.task_executor.task_runners import RunnerTask, TaskRunner
from flinkray.core.errors import SlotAllocationError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    InstanceID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResourceManagerId,
    WorkerGroupId,
)
from flinkray.ha import (
    HighAvailabilityServices,
)
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import Invokable
from flinkray.scheduler.shared.slots import SlotOffer, SlotOfferAnswer, SlotReport, WorkerLocation
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    VertexInformation,
    attempt_of,
)
from flinkray.testing import TestingGateway
from flinkray.testing.function_tasks import FUNCTION_TASK_PROCESS
from tests.actors.resource_cluster import GRAPH, ONE_CPU, RM_TOKEN, TestingJobMaster, number

NAME = ResourceID("TaskExecutor-1")
RM_NAME = ResourceID("ResourceManager")
A, B = number(AllocationID, 10), number(AllocationID, 11)
JOB = number(JobID, 1)
MASTER, NEXT_MASTER = number(JobMasterId, 1), number(JobMasterId, 2)


class TestingRunner(TaskRunner):
    """Tasks run until they are cancelled or ended by the test; cleaning waits for ``may_clean``."""

    __test__ = False

    def __init__(self) -> None:
        self.cleaned: list[JobID] = []
        self.may_clean = asyncio.Event()
        self.may_clean.set()
        self.failures: dict[ExecutionAttemptID, asyncio.Future[None]] = {}
        self.is_stubborn = False
        """Whether being cancelled does not end a task."""

    async def run(self, task: RunnerTask) -> None:
        end = asyncio.get_running_loop().create_future()
        self.failures[task.attempt_id] = end
        if not self.is_stubborn:
            await end
        while not end.done():
            try:
                await asyncio.shield(end)
            except asyncio.CancelledError:
                continue
        await end

    async def clean_up(self, job_id: JobID) -> None:
        await self.may_clean.wait()
        self.cleaned.append(job_id)


class Bench:
    """A TaskExecutor of two slots and those it talks to, each in a process of its own."""

    def __init__(self, storage: Path, configuration: dict[str, str] | None = None) -> None:
        self.network = LocalNetwork()
        self.client = LocalRpcService("client", self.network)
        self.cluster = ClusterArguments("test", configuration or {}, str(storage))
        self.runner = TestingRunner()
        self.leaders: HighAvailabilityServices | None = None
        """In place of those without an election."""
        self.instances = 0

    def start_resource_manager(
        self, token: ResourceManagerId = RM_TOKEN
    ) -> TestingGateway[ResourceManagerGateway]:
        self.manager_service = LocalRpcService(RM_NAME, self.network)
        self.manager = TestingGateway(ResourceManagerGateway, token).lenient()
        self.manager.start(self.manager_service, "resourcemanager")
        self.manager.on(ResourceManagerGateway.register_task_executor).calling(self._registered)
        return self.manager

    def _registered(self, registration: object) -> TaskExecutorRegistrationSuccess:
        self.instances += 1
        return TaskExecutorRegistrationSuccess(self.instance(self.instances), RM_NAME)

    @staticmethod
    def instance(count: int) -> InstanceID:
        return number(InstanceID, count)

    async def start_task_executor(self) -> TaskExecutorGateway:
        service = LocalRpcService(NAME, self.network)
        arguments = TaskExecutorArguments(
            resource_id=NAME,
            worker_group=WorkerGroupId("g"),
            bundle_index=0,
            total_profile=ONE_CPU.times(2),
            number_of_slots=2,
            cluster=self.cluster,
        )
        services = ClusterServices.create(service, self.cluster)
        if self.leaders is not None:
            services = replace(services, high_availability=self.leaders)
        self.endpoint = TaskExecutor(
            service,
            services,
            arguments,
            TaskExecutorHost(NodeAddress("node-0", "127.0.0.1"), 1, None),
            {"testing": self.runner},
            FUNCTION_TASK_PROCESS,
        )
        self.endpoint.start()
        await asyncio.sleep(0)
        return await self.client.connect(self.endpoint.address, TaskExecutorGateway)

    async def start(self) -> TaskExecutorGateway:
        """Both, registered."""
        self.start_resource_manager()
        executor = await self.start_task_executor()
        await self.manager.wait_for(ResourceManagerGateway.send_slot_report)
        return executor

    def start_job_master(
        self, token: JobMasterId = MASTER, name: str = "JobMaster-1", job_id: JobID = JOB
    ) -> TestingJobMaster:
        service = LocalRpcService(name, self.network)
        master = TestingJobMaster(token)
        master.start(service, "jobmaster")
        pool_service = LocalRpcService(slot_pool_process(job_id, token), self.network)
        master.pool.start(pool_service, "slotpool")
        master.pool.on(SlotPoolGateway.offer_slots).calling(accept_all)
        success = TaskExecutorToJobMasterRegistrationSuccess(ResourceID(name))
        master.on(JobMasterGateway.register_task_executor).returning(success)
        return master

    async def start_with_slot(
        self,
    ) -> tuple[TaskExecutorGateway, TestingJobMaster]:
        """Both, and a JobMaster that has been offered the slot 0."""
        executor, master = await self.start(), self.start_job_master()
        await self.request(executor, 0, A)
        await master.pool.wait_for(SlotPoolGateway.offer_slots)
        return executor, master

    async def request(
        self,
        executor: TaskExecutorGateway,
        index: int,
        allocation: AllocationID,
        *,
        job_id: JobID = JOB,
        master: JobMasterId = MASTER,
        address: str = "JobMaster-1/jobmaster",
        manager: ResourceManagerId = RM_TOKEN,
    ) -> None:
        (answer,) = await executor.request_slots(
            (WantedSlot(index, allocation, ONE_CPU),), job_id, address, master, manager
        )
        if answer.refusal is not None:
            raise SlotAllocationError(answer.refusal)

    async def next_job_master(self, executor: TaskExecutorGateway) -> TestingJobMaster:
        """The second one leads the job, and the TaskExecutor is registered there."""
        second = self.start_job_master(NEXT_MASTER, "JobMaster-2")
        await executor.job_master_changed(JOB, "JobMaster-2/jobmaster", NEXT_MASTER, RM_TOKEN)
        await second.wait_for(JobMasterGateway.register_task_executor)
        await asyncio.sleep(0.1)
        return second

    async def latest_report(self, executor: TaskExecutorGateway) -> SlotReport:
        count = len(self.manager.calls_of(ResourceManagerGateway.heartbeat_from_task_executor))
        await executor.heartbeat_from_resource_manager(RM_NAME, RM_TOKEN)
        _, _, report = await self.manager.wait_for(
            ResourceManagerGateway.heartbeat_from_task_executor, count + 1
        )
        return report  # type: ignore[no-any-return]


def accept_all(_: WorkerLocation, offers: tuple[SlotOffer, ...]) -> SlotOfferAnswer:
    return SlotOfferAnswer(tuple(offer.allocation_id for offer in offers))


def accept_only(allocation: AllocationID) -> Callable[..., SlotOfferAnswer]:
    def answer(_: WorkerLocation, offers: tuple[SlotOffer, ...]) -> SlotOfferAnswer:
        taken = [offer.allocation_id for offer in offers if offer.allocation_id == allocation]
        return SlotOfferAnswer(tuple(taken))

    return answer


@dataclass(frozen=True)
class DeployedTask:
    """A task alone in its message."""

    attempt_id: ExecutionAttemptID
    deployments: TaskDeployments

    async def submit(
        self, executor: TaskExecutorGateway, job_master_id: JobMasterId = MASTER
    ) -> tuple[RefusedTask, ...]:
        return await executor.submit_tasks(self.deployments, job_master_id, None)


def task(
    allocation: AllocationID,
    attempt: int = 0,
    kind: str = "testing",
    graph_id: ExecutionGraphID = GRAPH,
) -> DeployedTask:
    vertex_id = number(JobVertexID, 1)
    vertex = VertexInformation(vertex_id, "task", 1, 128, Invokable(kind, b""), (), ())
    parts = (SharedPart(0, 0, JobInformation(JOB, "job")), SharedPart(1, 0, vertex))
    deployed = TaskDeployment(1, 0, attempt, allocation)
    return DeployedTask(
        attempt_of(graph_id, vertex, deployed),
        TaskDeployments(JOB, graph_id, 0, parts, (deployed,)),
    )


def allocations(report: SlotReport) -> list[AllocationID | None]:
    return [slot.allocation_id for slot in report.slots]
