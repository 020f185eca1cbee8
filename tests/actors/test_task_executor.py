"""One TaskExecutor; its ResourceManager and JobMasters only record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.actors.cluster_services import ClusterServices
from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    TaskExecutorGateway,
)
from flinkray.actors.messages import (
    AllocatedSlotReport,
    ClusterArguments,
    SlotAnswer,
    TaskExecutorRegistrationSuccess,
    TaskExecutorToJobMasterRegistrationSuccess,
    WantedSlot,
)
from flinkray.actors.registration_timeout import RegistrationTimeoutError
from flinkray.actors.task_errors import TaskError
from flinkray.actors.task_executor import TaskExecutor
from flinkray.actors.task_executor_arguments import NodeAddress, TaskExecutorArguments
from flinkray.actors.task_executor_host import TaskExecutorHost
from flinkray.actors.task_runners import TaskRunner
from flinkray.core.errors import RecipientUnreachableError, SlotAllocationError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    InstanceID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResourceManagerId,
    SlotID,
    WorkerGroupId,
)
from flinkray.ha import (
    HighAvailabilityServices,
)
from flinkray.rpc import LocalNetwork, LocalRpcService, RegistrationRejection
from flinkray.scheduler.slots import SlotOffer, SlotOfferAnswer, SlotReport
from flinkray.scheduler.states import ExecutionState
from flinkray.scheduler.tasks import TaskDeploymentDescriptor
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.leaders import ManualLeaders
from tests.actors.resource_cluster import ONE_CPU, RM_ADDRESS, RM_TOKEN, number

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

    async def run(self, descriptor: TaskDeploymentDescriptor, job_master_id: JobMasterId) -> None:
        end = asyncio.get_running_loop().create_future()
        self.failures[descriptor.attempt_id] = end
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
        self, token: JobMasterId = MASTER, name: str = "JobMaster-1"
    ) -> TestingGateway[JobMasterGateway]:
        service = LocalRpcService(name, self.network)
        master = TestingGateway(JobMasterGateway, token).lenient()
        master.start(service, "jobmaster")
        success = TaskExecutorToJobMasterRegistrationSuccess(ResourceID(name))
        master.on(JobMasterGateway.register_task_executor).returning(success)
        master.on(JobMasterGateway.offer_slots).calling(accept_all)
        return master

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

    async def latest_report(self, executor: TaskExecutorGateway) -> SlotReport:
        count = len(self.manager.calls_of(ResourceManagerGateway.heartbeat_from_task_executor))
        await executor.heartbeat_from_resource_manager(RM_NAME)
        _, report, _ = await self.manager.wait_for(
            ResourceManagerGateway.heartbeat_from_task_executor, count + 1
        )
        return report  # type: ignore[no-any-return]


def accept_all(_: ResourceID, offers: tuple[SlotOffer, ...]) -> SlotOfferAnswer:
    return SlotOfferAnswer(tuple(offer.allocation_id for offer in offers))


def accept_only(allocation: AllocationID) -> Callable[..., SlotOfferAnswer]:
    def answer(_: ResourceID, offers: tuple[SlotOffer, ...]) -> SlotOfferAnswer:
        taken = [offer.allocation_id for offer in offers if offer.allocation_id == allocation]
        return SlotOfferAnswer(tuple(taken))

    return answer


def task(
    allocation: AllocationID, attempt: int = 0, kind: str = "testing"
) -> TaskDeploymentDescriptor:
    attempt_id = ExecutionAttemptID(ExecutionVertexID(number(JobVertexID, 1), 0), attempt)
    return TaskDeploymentDescriptor(JOB, "job", attempt_id, "task", 1, allocation, kind)


def allocations(report: SlotReport) -> list[AllocationID | None]:
    return [slot.allocation_id for slot in report.slots]


# --- the ResourceManager --------------------------------------------------------------------------


@on_virtual_time
async def test_it_registers_at_once_and_sends_its_slots(tmp_path: Path) -> None:
    """TM-01"""
    bench = Bench(tmp_path)
    await bench.start()
    assert bench.client.clock.monotonic() < 0.1
    [(registration,)] = bench.manager.calls_of(ResourceManagerGateway.register_task_executor)
    assert registration.location == bench.endpoint.location
    assert registration.number_of_slots == 2
    [(name, instance, report)] = bench.manager.calls_of(ResourceManagerGateway.send_slot_report)
    assert (name, instance) == (NAME, bench.instance(1))
    assert allocations(report) == [None, None]


@on_virtual_time
async def test_it_registers_anew_when_its_resource_manager_restarts(tmp_path: Path) -> None:
    """TM-01, TM-06"""
    bench = Bench(tmp_path)
    await bench.start()
    bench.network.crash(RM_NAME)
    await asyncio.sleep(5)
    bench.start_resource_manager()
    _, instance, _ = await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    assert instance == bench.instance(2)
    await asyncio.sleep(200)
    assert len(bench.manager.calls_of(ResourceManagerGateway.register_task_executor)) > 1, (
        "heartbeats time out later"
    )


@on_virtual_time
async def test_a_silent_resource_manager_is_left_and_registered_at_again(tmp_path: Path) -> None:
    """TM-04"""
    bench = Bench(tmp_path)
    await bench.start()
    _, reason = await bench.manager.wait_for(ResourceManagerGateway.disconnect_task_executor)
    assert "no heartbeat from it for 50 s" in reason
    assert 50 <= bench.client.clock.monotonic() < 51
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report, 2)
    assert bench.client.clock.monotonic() < 52


@on_virtual_time
async def test_it_registers_again_when_the_resource_manager_disconnects_it(tmp_path: Path) -> None:
    """TM-04"""
    bench = Bench(tmp_path)
    executor = await bench.start()
    await executor.disconnect_resource_manager("no heartbeat")
    _, instance, _ = await bench.manager.wait_for(ResourceManagerGateway.send_slot_report, 2)
    assert instance == bench.instance(2)


@on_virtual_time
async def test_a_refused_slot_report_makes_it_register_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start_resource_manager()
    bench.manager.on(ResourceManagerGateway.send_slot_report).raising(
        RecipientUnreachableError("who are you?")
    )
    await bench.start_task_executor()
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report, 2)
    assert len(bench.manager.calls_of(ResourceManagerGateway.register_task_executor)) >= 2


@on_virtual_time
async def test_it_ends_itself_when_it_finds_no_resource_manager(tmp_path: Path) -> None:
    """TM-07"""
    bench = Bench(tmp_path)
    await bench.start_task_executor()
    with pytest.raises(RegistrationTimeoutError, match="within 300 s"):
        await bench.endpoint.terminated
    assert bench.client.clock.monotonic() == pytest.approx(300, abs=1)


@on_virtual_time
async def test_it_ends_itself_when_a_lost_resource_manager_stays_away(tmp_path: Path) -> None:
    """TM-07"""
    bench = Bench(tmp_path, {"taskmanager.registration.timeout": "20 s"})
    await bench.start()
    await asyncio.sleep(30)
    bench.network.crash(RM_NAME)
    with pytest.raises(RegistrationTimeoutError, match="within 20 s"):
        await bench.endpoint.terminated
    assert bench.client.clock.monotonic() == pytest.approx(50, abs=1)


@on_virtual_time
async def test_it_ends_itself_when_the_resource_manager_rejects_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start_resource_manager()
    bench.manager.on(ResourceManagerGateway.register_task_executor).returning(
        RegistrationRejection("we shut down")
    )
    await bench.start_task_executor()
    await bench.endpoint.terminated


@on_virtual_time
async def test_it_follows_a_change_of_the_leading_resource_manager(tmp_path: Path) -> None:
    """TM-01, TM-06"""
    bench = Bench(tmp_path)
    bench.leaders = leaders = ManualLeaders(bench.client.executor)
    first = bench.start_resource_manager()
    await bench.start_task_executor()
    await asyncio.sleep(10)
    assert first.calls == [], "nobody leads yet"
    leaders.manager.tell(RM_ADDRESS, RM_TOKEN)
    await first.wait_for(ResourceManagerGateway.send_slot_report)
    leaders.manager.tell(None, None)
    await asyncio.sleep(100)
    assert first.calls_of(ResourceManagerGateway.disconnect_task_executor) == [], (
        "it is not monitored any more"
    )
    assert len(first.calls_of(ResourceManagerGateway.register_task_executor)) == 1
    service = LocalRpcService("ResourceManager-2", bench.network)
    token = number(ResourceManagerId, 2)
    second = TestingGateway(ResourceManagerGateway, token).lenient()
    second.start(service, "resourcemanager")
    success = TaskExecutorRegistrationSuccess(bench.instance(5), RM_NAME)
    second.on(ResourceManagerGateway.register_task_executor).returning(success)
    leaders.manager.tell("ResourceManager-2/resourcemanager", token)
    _, instance, _ = await second.wait_for(ResourceManagerGateway.send_slot_report)
    assert instance == bench.instance(5)
    assert len(first.calls_of(ResourceManagerGateway.register_task_executor)) == 1


@on_virtual_time
async def test_a_job_master_that_lost_its_job_is_left_until_it_leads_again(tmp_path: Path) -> None:
    """TM-24"""
    bench = Bench(tmp_path)
    bench.leaders = leaders = ManualLeaders(bench.client.executor)
    bench.start_resource_manager()
    executor, master = await bench.start_task_executor(), bench.start_job_master()
    leaders.manager.tell(RM_ADDRESS, RM_TOKEN)
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    await bench.request(executor, 0, A)
    leaders.master.tell("JobMaster-1/jobmaster", MASTER)
    await master.wait_for(JobMasterGateway.offer_slots)
    await executor.submit_task(task(A), MASTER)
    bench.runner.may_clean.clear()
    leaders.master.tell(None, None)
    await asyncio.sleep(100)
    assert len(master.calls_of(JobMasterGateway.register_task_executor)) == 1
    leaders.master.tell("JobMaster-1/jobmaster", MASTER)
    await master.wait_for(JobMasterGateway.register_task_executor, 2)


# --- slots ----------------------------------------------------------------------------------------


@on_virtual_time
async def test_slots_are_refused_to_others_than_the_leading_resource_manager(
    tmp_path: Path,
) -> None:
    """TM-08"""
    bench = Bench(tmp_path)
    executor = await bench.start_task_executor()
    await asyncio.sleep(0.01)
    with pytest.raises(SlotAllocationError, match="not registered"):
        await bench.request(executor, 0, A)
    bench.start_resource_manager()
    await bench.manager.wait_for(ResourceManagerGateway.send_slot_report)
    with pytest.raises(SlotAllocationError, match="not registered"):
        await bench.request(executor, 0, A, manager=number(ResourceManagerId, 9))
    await bench.request(executor, 0, A)


@on_virtual_time
async def test_of_slots_requested_together_one_that_is_refused_takes_no_other_with_it(
    tmp_path: Path,
) -> None:
    """TM-09, TM-19."""
    bench = Bench(tmp_path)
    executor = await bench.start()
    master = bench.start_job_master()
    wanted = (
        WantedSlot(0, A, ONE_CPU),
        WantedSlot(0, number(AllocationID, 9), ONE_CPU),
        WantedSlot(1, B, ONE_CPU),
    )

    first, second, third = await executor.request_slots(
        wanted, JOB, "JobMaster-1/jobmaster", MASTER, RM_TOKEN
    )

    assert (first, third) == (SlotAnswer(SlotID(NAME, 0)), SlotAnswer(SlotID(NAME, 1)))
    assert second.slot_id == SlotID(NAME, 0)
    assert second.refusal is not None
    _, offers = await master.wait_for(JobMasterGateway.offer_slots)
    assert [offer.allocation_id for offer in offers] == [A, B], "both by one message"


@on_virtual_time
async def test_slots_are_offered_once_the_job_master_is_there(tmp_path: Path) -> None:
    """TM-09"""
    bench = Bench(tmp_path)
    executor = await bench.start()
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await asyncio.sleep(2)
    master = bench.start_job_master()
    resource_id, offers = await master.wait_for(JobMasterGateway.offer_slots)
    assert resource_id == NAME
    assert [(offer.allocation_id, offer.slot_index) for offer in offers] == [(A, 0), (B, 1)]
    assert master.calls_of(JobMasterGateway.register_task_executor) == [
        (JOB, bench.endpoint.location)
    ]


@on_virtual_time
async def test_of_two_offered_slots_the_rejected_one_is_free_again(tmp_path: Path) -> None:
    """TM-10"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    master.on(JobMasterGateway.offer_slots).calling(accept_only(A))
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    freed = await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available)
    assert freed == (bench.instance(1), SlotID(NAME, 1), B)
    await executor.submit_task(task(A), MASTER)
    with pytest.raises(SlotAllocationError, match="is not there"):
        await executor.submit_task(task(B, attempt=1), MASTER)
    assert allocations(await bench.latest_report(executor)) == [A, None]
    again = number(AllocationID, 12)
    await bench.request(executor, 1, again)
    assert allocations(await bench.latest_report(executor)) == [A, again]


@on_virtual_time
async def test_a_task_submitted_before_the_offer_is_answered_runs(tmp_path: Path) -> None:
    """TM-11"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    may_answer = asyncio.Event()

    async def accept_none(_: ResourceID, offers: tuple[SlotOffer, ...]) -> SlotOfferAnswer:
        await may_answer.wait()
        return SlotOfferAnswer(())

    master.on(JobMasterGateway.offer_slots).calling(accept_none)
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await master.wait_for(JobMasterGateway.offer_slots)
    await executor.submit_task(task(A), MASTER)
    may_answer.set()
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == B
    await asyncio.sleep(1)
    assert allocations(await bench.latest_report(executor)) == [A, None]
    assert master.calls_of(JobMasterGateway.update_task_execution_states) == []


@on_virtual_time
async def test_an_offer_without_an_answer_is_repeated_and_the_slot_kept(tmp_path: Path) -> None:
    """TM-13"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()

    async def never(*_: object) -> SlotOfferAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    master.on(JobMasterGateway.offer_slots).calling(never)
    await bench.request(executor, 0, A)
    await asyncio.sleep(5)
    await executor.submit_task(task(A), MASTER)  # active: it does not time out itself
    await bench.request(executor, 1, B)
    await asyncio.sleep(5.1)
    master.on(JobMasterGateway.offer_slots).calling(accept_all)
    _, offers = await master.wait_for(JobMasterGateway.offer_slots, 2)
    assert [offer.allocation_id for offer in offers] == [B]
    await asyncio.sleep(20)
    assert allocations(await bench.latest_report(executor)) == [A, B]


@on_virtual_time
async def test_a_job_master_that_cannot_take_slots_yet_is_asked_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    master.on(JobMasterGateway.offer_slots).raising(
        RecipientUnreachableError("no SlotPool at present")
    )
    await bench.request(executor, 0, A)
    await master.wait_for(JobMasterGateway.offer_slots, 3)
    master.on(JobMasterGateway.offer_slots).calling(accept_all)
    await asyncio.sleep(20)
    assert allocations(await bench.latest_report(executor)) == [A, None]


@on_virtual_time
async def test_a_slot_that_no_job_takes_is_free_after_10_seconds(tmp_path: Path) -> None:
    """TM-21"""
    bench = Bench(tmp_path)
    executor = await bench.start()
    await bench.request(executor, 0, A)
    freed = await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available)
    assert freed[2] == A
    assert 10 <= bench.client.clock.monotonic() < 10.5
    assert bench.runner.cleaned == [], "nothing ran there"


@on_virtual_time
async def test_freeing_a_slot_ends_its_task_and_answers_when_it_is_clean(tmp_path: Path) -> None:
    """TM-21"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await master.wait_for(JobMasterGateway.offer_slots)
    await executor.submit_task(task(A), MASTER)
    bench.runner.may_clean.clear()
    freeing = asyncio.ensure_future(executor.free_slot(A, "enough"))
    ((state,),) = await master.wait_for(JobMasterGateway.update_task_execution_states)
    assert state.state is ExecutionState.CANCELED
    await asyncio.sleep(1)
    assert not freeing.done()
    assert bench.manager.calls_of(ResourceManagerGateway.notify_slot_available) == []
    assert allocations(await bench.latest_report(executor)) == [A, None]
    bench.runner.may_clean.set()
    await freeing
    assert bench.runner.cleaned == [JOB]
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == A
    await executor.free_slot(A, "again")


@on_virtual_time
async def test_the_job_master_is_left_when_the_jobs_last_slot_is_freed(tmp_path: Path) -> None:
    """TM-14"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await master.wait_for(JobMasterGateway.offer_slots)
    await executor.free_slot(A, "enough")
    await asyncio.sleep(0.1)
    with pytest.raises(TaskError, match="does not lead the job here"):
        await executor.submit_task(task(A), MASTER)
    await executor.heartbeat_from_job_master(
        ResourceID("JobMaster-1"), AllocatedSlotReport(JOB, ())
    )
    await asyncio.sleep(1)
    assert master.calls_of(JobMasterGateway.heartbeat_from_task_executor) == []
    bench.network.crash("JobMaster-1")
    await asyncio.sleep(5)
    assert len(bench.manager.calls_of(ResourceManagerGateway.notify_slot_available)) == 1


# --- JobMasters -----------------------------------------------------------------------------------


@on_virtual_time
async def test_a_dead_job_masters_slots_are_freed_and_the_resource_manager_told(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await master.wait_for(JobMasterGateway.offer_slots)
    await executor.submit_task(task(A), MASTER)
    bench.network.crash("JobMaster-1")
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == A
    assert bench.client.clock.monotonic() < 1
    assert bench.runner.cleaned == [JOB]
    assert allocations(await bench.latest_report(executor)) == [None, None]


@on_virtual_time
async def test_the_next_job_master_gets_slots_and_the_past_one_is_refused(tmp_path: Path) -> None:
    """TM-15"""
    bench = Bench(tmp_path)
    executor, first = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await first.wait_for(JobMasterGateway.offer_slots)
    await executor.submit_task(task(A), MASTER)
    second = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    await bench.request(executor, 1, B, master=NEXT_MASTER, address="JobMaster-2/jobmaster")
    _, offers = await second.wait_for(JobMasterGateway.offer_slots)
    assert [offer.allocation_id for offer in offers] == [B]
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == A
    with pytest.raises(TaskError, match="does not lead the job here"):
        await executor.submit_task(task(B, attempt=1), MASTER)
    await executor.submit_task(task(B), NEXT_MASTER)


@on_virtual_time
async def test_end_of_a_past_job_masters_task_is_not_reported_to_the_next_one(
    tmp_path: Path,
) -> None:
    """JM-18.  Each counts its attempts from 0: the next one took it for the end of its own."""
    bench = Bench(tmp_path)
    executor, first = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await first.wait_for(JobMasterGateway.offer_slots)
    bench.runner.is_stubborn = True
    await executor.submit_task(task(A), MASTER)
    second = bench.start_job_master(NEXT_MASTER, "JobMaster-2")
    await bench.request(executor, 1, B, master=NEXT_MASTER, address="JobMaster-2/jobmaster")
    await second.wait_for(JobMasterGateway.offer_slots)
    with pytest.raises(TaskError, match="of a past JobMaster has not ended here yet"):
        await executor.submit_task(task(B), NEXT_MASTER)
    bench.runner.failures[task(A).attempt_id].set_exception(TaskError("at last"))
    await asyncio.sleep(1)

    assert second.calls_of(JobMasterGateway.update_task_execution_states) == []
    await executor.submit_task(task(B), NEXT_MASTER)


@on_virtual_time
async def test_a_silent_job_master_is_told_goodbye_and_registered_at_again(tmp_path: Path) -> None:
    """TM-05"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    bench.runner.may_clean.clear()
    await master.wait_for(JobMasterGateway.offer_slots)
    await executor.submit_task(task(A), MASTER)
    resource_id, reason = await master.wait_for(JobMasterGateway.disconnect_task_executor)
    assert resource_id == NAME
    assert "no heartbeat" in reason
    assert 50 <= bench.client.clock.monotonic() < 51
    await master.wait_for(JobMasterGateway.register_task_executor, 2)
    assert bench.client.clock.monotonic() < 52


@on_virtual_time
async def test_a_job_master_that_rejects_the_registration_gets_no_slots(tmp_path: Path) -> None:
    """TM-17"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    master.on(JobMasterGateway.register_task_executor).returning(
        RegistrationRejection("I run another job")
    )
    await bench.request(executor, 0, A)
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == A
    assert bench.client.clock.monotonic() < 1
    assert master.calls_of(JobMasterGateway.offer_slots) == []


@on_virtual_time
async def test_slots_of_both_sides_are_compared_in_heartbeats(tmp_path: Path) -> None:
    """TM-16"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await master.wait_for(JobMasterGateway.offer_slots)
    await executor.submit_task(task(A), MASTER)
    await executor.submit_task(task(B, attempt=1), MASTER)
    only_there = number(AllocationID, 12)
    report = AllocatedSlotReport(JOB, (A, only_there))
    await executor.heartbeat_from_job_master(ResourceID("JobMaster-1"), report)
    name, lost, _ = await master.wait_for(JobMasterGateway.fail_slot)
    assert (name, lost) == (NAME, only_there)
    assert allocations(await bench.latest_report(executor)) == [A, B], "one report may be late"
    await executor.heartbeat_from_job_master(ResourceID("JobMaster-1"), report)
    assert (await bench.manager.wait_for(ResourceManagerGateway.notify_slot_available))[2] == B
    assert allocations(await bench.latest_report(executor)) == [A, None]
    _, payload = await master.wait_for(JobMasterGateway.heartbeat_from_task_executor)
    assert set(payload.attempts) == {task(A).attempt_id, task(B, attempt=1).attempt_id}


# --- tasks ----------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_cancelled_task_is_reported_and_the_other_one_runs_on(tmp_path: Path) -> None:
    """TM-26"""
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await bench.request(executor, 1, B)
    await master.wait_for(JobMasterGateway.offer_slots)
    first, second = task(A), task(B, attempt=1)
    await executor.submit_task(first, MASTER)
    await executor.submit_task(second, MASTER)
    with pytest.raises(TaskError, match="does not lead"):
        await executor.cancel_task(first.attempt_id, NEXT_MASTER)
    await executor.cancel_task(first.attempt_id, MASTER)
    ((state,),) = await master.wait_for(JobMasterGateway.update_task_execution_states)
    assert (state.attempt_id, state.state) == (first.attempt_id, ExecutionState.CANCELED)
    await asyncio.sleep(1)
    assert len(master.calls_of(JobMasterGateway.update_task_execution_states)) == 1
    assert allocations(await bench.latest_report(executor)) == [A, B], "the slot stays the job's"
    with pytest.raises(TaskError, match="does not run"):
        await executor.cancel_task(first.attempt_id, MASTER)


@on_virtual_time
async def test_a_failed_task_is_reported_with_its_cause(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, master = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await master.wait_for(JobMasterGateway.offer_slots)
    await executor.submit_task(task(A), MASTER)
    await asyncio.sleep(0.1)
    bench.runner.failures[task(A).attempt_id].set_exception(TaskError("the disk is full"))
    ((state,),) = await master.wait_for(JobMasterGateway.update_task_execution_states)
    assert (state.state, state.failure) == (ExecutionState.FAILED, "the disk is full")


@on_virtual_time
async def test_a_task_of_an_unknown_kind_or_a_past_master_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    with pytest.raises(TaskError, match=r"of kind 'cobol'; this TaskExecutor runs \['testing'\]"):
        await executor.submit_task(task(A, kind="cobol"), MASTER)
    with pytest.raises(TaskError, match="does not lead the job here"):
        await executor.submit_task(task(A), NEXT_MASTER)
    await executor.submit_task(task(A), MASTER)
    with pytest.raises(SlotAllocationError, match="already"):
        await executor.submit_task(task(A), MASTER)


@on_virtual_time
async def test_it_stops_when_all_its_tasks_have_ended(tmp_path: Path) -> None:
    """TM-18"""
    bench = Bench(tmp_path)
    executor, _ = await bench.start(), bench.start_job_master()
    await bench.request(executor, 0, A)
    await executor.submit_task(task(A), MASTER)
    bench.runner.may_clean.clear()
    stopped = bench.endpoint.close()
    await asyncio.sleep(2)
    assert not stopped.done()
    with pytest.raises(SlotAllocationError, match="shutting down"):
        await bench.request(executor, 1, B)
    bench.runner.may_clean.set()
    await stopped
    assert bench.runner.cleaned == [JOB]
    assert bench.manager.calls_of(ResourceManagerGateway.disconnect_task_executor) == [
        (NAME, "it stops")
    ]
