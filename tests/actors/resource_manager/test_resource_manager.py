"""Registrations, heartbeats and the overview of a ResourceManager; all others only record."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway, ResourceManagerGateway, TaskExecutorGateway
from flinkray.actors.gateways.messages import (
    JobMasterRegistrationSuccess,
    TaskExecutorRegistrationSuccess,
)
from flinkray.actors.resource_manager.driver import WorkerGroupRequest
from flinkray.actors.resource_manager.endpoint import ResourceManager, ResourceManagerError
from flinkray.actors.resource_manager.fenced_driver import FencedDriver
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership, LeadershipLostError
from flinkray.core.errors import (
    FencingTokenError,
    JobNotFoundError,
    RpcConnectionError,
    SlotAllocationError,
    UnknownTaskExecutorError,
)
from flinkray.core.ids import (
    AllocationID,
    JobID,
    JobMasterId,
    LeaderSessionID,
    ResourceManagerId,
)
from flinkray.ha import (
    EmbeddedHaServices,
    LeaderElectionError,
    LeaderRetrievalService,
    MemoryDirectory,
    StandaloneHaServices,
)
from flinkray.local_cluster.local_cluster import LocalResourceManagerDriver
from flinkray.rpc import LocalRpcService, RegistrationFailure, RegistrationRejection
from flinkray.scheduler.shared.slots import SlotReport, SlotStatus
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.leaders import ManualLeaders
from tests.actors.resource_cluster import (
    ONE_CPU,
    RM_ADDRESS,
    RM_TOKEN,
    Job,
    ResourceCluster,
    Worker,
    number,
)

NO_IDLE_RELEASE = {"resourcemanager.taskmanager-timeout": "1 h"}


@on_virtual_time
async def test_second_registration_of_a_worker_replaces_the_first(tmp_path: Path) -> None:
    """RM-01"""
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    worker = Worker(cluster, "worker")
    first = await worker.register(manager)
    second = await worker.register(manager)
    assert first != second
    overview = await manager.request_resource_overview()
    assert [w.location.resource_id for w in overview.task_executors] == ["worker"]
    with pytest.raises(UnknownTaskExecutorError, match="worker is not registered"):
        await manager.send_slot_report(worker.resource_id, first, worker.report)


@on_virtual_time
async def test_calls_of_an_earlier_registration_of_a_worker_change_nothing(tmp_path: Path) -> None:
    """RM-01: such calls may arrive late."""
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    worker = Worker(cluster, "worker", slots=2)
    taken = replace(
        worker.report.slots[0], job_id=number(JobID, 1), allocation_id=number(AllocationID, 1)
    )
    free, worker.report = worker.report, SlotReport((taken, *worker.report.slots[1:]))
    first = await worker.register(manager)
    await worker.register(manager)
    await asyncio.sleep(2)
    await manager.notify_slot_available(first, taken.slot_id, number(AllocationID, 1))
    await manager.heartbeat_from_task_executor(worker.resource_id, first, free)
    await manager.disconnect_task_executor(worker.resource_id, first, "it stops")
    await asyncio.sleep(0.1)
    overview = await manager.request_resource_overview()
    assert (overview.slots_total, overview.slots_available) == (2, 1)


@on_virtual_time
async def test_worker_whose_registration_was_replaced_registers_again(
    tmp_path: Path,
) -> None:
    """Seed 36 of repeated calls: an earlier registration arrived late, heartbeats of the later one
    were ignored, and the job restarted."""
    cluster = ResourceCluster(tmp_path, configuration=NO_IDLE_RELEASE)
    manager = await cluster.start_resource_manager()
    worker = Worker(cluster, "worker")
    known = await worker.register(manager)
    await manager.register_task_executor(worker.registration)
    worker.instance_id = known

    async def register_again(*_: object) -> None:
        await worker.register(manager)

    worker.executor.on(TaskExecutorGateway.disconnect_resource_manager).calling(register_again)
    worker.executor.on(TaskExecutorGateway.heartbeat_from_resource_manager).calling(
        lambda *_: manager.heartbeat_from_task_executor(
            worker.resource_id, worker.instance_id, worker.report
        ),
    )
    await asyncio.sleep(25)  # for less than a worker may be silent
    assert len(worker.executor.calls_of(TaskExecutorGateway.disconnect_resource_manager)) == 1
    overview = await manager.request_resource_overview()
    assert [w.number_of_slots for w in overview.task_executors] == [1]


@on_virtual_time
async def test_late_earlier_registration_does_not_replace_the_newer_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RM-02"""
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    service = cluster.network.services["ResourceManager"]
    connect, first_may_connect, is_first = service.connect, asyncio.Event(), True

    async def connect_slowly_at_first(*arguments: Any) -> Any:
        nonlocal is_first
        was_first, is_first = is_first, False
        if was_first:
            await first_may_connect.wait()
        return await connect(*arguments)

    monkeypatch.setattr(service, "connect", connect_slowly_at_first)
    worker = Worker(cluster, "worker")
    delayed = asyncio.create_task(manager.register_task_executor(worker.registration))
    await asyncio.sleep(0.001)
    instance_id = await worker.register(manager)
    first_may_connect.set()
    assert isinstance(await delayed, RegistrationFailure)
    await manager.send_slot_report(worker.resource_id, instance_id, worker.report)
    overview = await manager.request_resource_overview()
    assert [w.number_of_slots for w in overview.task_executors] == [1]


@on_virtual_time
async def test_disconnected_worker_and_its_slots_are_removed_from_the_resource_overview(
    tmp_path: Path,
) -> None:
    """RM-03"""
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    worker = Worker(cluster, "worker", slots=10)
    await worker.register(manager)
    assert (await manager.request_resource_overview()).slots_total == 10
    await manager.disconnect_task_executor(worker.resource_id, worker.instance_id, "it stops")
    overview = await manager.request_resource_overview()
    assert overview.task_executors == ()
    assert overview.slots_total == 0


@on_virtual_time
async def test_dead_worker_is_removed_from_the_resource_overview(tmp_path: Path) -> None:
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    worker = Worker(cluster, "worker")
    await worker.register(manager)
    cluster.network.crash("worker")
    await asyncio.sleep(0.1)
    assert (await manager.request_resource_overview()).task_executors == ()


@on_virtual_time
async def test_resource_manager_refuses_a_registration_with_a_wrong_fencing_token(
    tmp_path: Path,
) -> None:
    """RM-04"""
    cluster = ResourceCluster(tmp_path)
    await cluster.start_resource_manager()
    worker = Worker(cluster, "worker")
    stale = await worker.service.connect(
        RM_ADDRESS, ResourceManagerGateway, number(ResourceManagerId, 7)
    )
    with pytest.raises(FencingTokenError):
        await stale.register_task_executor(worker.registration)


@on_virtual_time
async def test_registration_from_an_unreachable_address_fails_and_may_be_repeated(
    tmp_path: Path,
) -> None:
    """RM-04"""
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    worker = Worker(cluster, "worker")
    cluster.network.crash("worker")
    answer = await manager.register_task_executor(worker.registration)
    assert isinstance(answer, RegistrationFailure)
    assert worker.location.address in answer.reason
    job = cluster.job(1)
    cluster.network.crash(job.resource_id)
    other_answer = await manager.register_job_master(
        job.job_master_id, job.resource_id, job.address, job.job_id
    )
    assert isinstance(other_answer, RegistrationFailure)
    assert job.address in other_answer.reason


@on_virtual_time
async def test_a_worker_has_no_slots_before_its_first_report(tmp_path: Path) -> None:
    """RM-12"""
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    worker = Worker(cluster, "worker", slots=2)
    success = await manager.register_task_executor(worker.registration)
    assert isinstance(success, TaskExecutorRegistrationSuccess)
    [info] = (await manager.request_resource_overview()).task_executors
    assert info.location == worker.location
    assert (info.number_of_slots, info.free_slots) == (0, 0)
    await manager.send_slot_report(worker.resource_id, success.instance_id, worker.report)
    [info] = (await manager.request_resource_overview()).task_executors
    assert (info.number_of_slots, info.free_slots) == (2, 2)


@on_virtual_time
async def test_silent_worker_and_job_master_are_told_that_they_are_disconnected(
    tmp_path: Path,
) -> None:
    """RM-07"""
    cluster = ResourceCluster(tmp_path, configuration=NO_IDLE_RELEASE)
    manager = await cluster.start_resource_manager()
    worker, job = Worker(cluster, "worker"), cluster.job(1)
    await worker.register(manager)
    await job.register()
    token, reason = await worker.executor.wait_for(TaskExecutorGateway.disconnect_resource_manager)
    assert token == RM_TOKEN
    assert "no heartbeat from it for 50 s" in reason
    token, reason = await job.master.wait_for(JobMasterGateway.disconnect_resource_manager)
    assert token == RM_TOKEN
    assert "no heartbeat" in reason
    assert 50 <= cluster.service.clock.monotonic() < 60
    assert (await manager.request_resource_overview()).task_executors == ()
    with pytest.raises(JobNotFoundError):
        await job.declare(1)


@on_virtual_time
async def test_worker_and_job_master_that_answer_heartbeats_stay_registered(tmp_path: Path) -> None:
    """HB-03"""
    cluster = ResourceCluster(tmp_path, configuration=NO_IDLE_RELEASE)
    manager = await cluster.start_resource_manager()
    worker, job = Worker(cluster, "worker"), cluster.job(1)
    await worker.register(manager)
    await job.register()
    worker.executor.on(TaskExecutorGateway.heartbeat_from_resource_manager).calling(
        lambda *_: manager.heartbeat_from_task_executor(
            worker.resource_id, worker.instance_id, worker.report
        ),
    )
    job.master.on(JobMasterGateway.heartbeat_from_resource_manager).calling(
        lambda *_: manager.heartbeat_from_job_master(job.job_id, job.job_master_id),
    )
    await asyncio.sleep(200)
    assert worker.executor.calls_of(TaskExecutorGateway.disconnect_resource_manager) == []
    assert job.master.calls_of(JobMasterGateway.disconnect_resource_manager) == []
    await job.declare(0)


@on_virtual_time
async def test_requirements_of_an_unregistered_or_past_job_master_are_refused(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path)
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(0)
    job.job_master_id = number(JobMasterId, 5)
    with pytest.raises(JobNotFoundError, match="is not registered"):
        await job.declare(1)


@on_virtual_time
async def test_job_masters_with_slots_of_a_lost_worker_are_told_why_it_was_lost(
    tmp_path: Path,
) -> None:
    """SM-09"""
    cluster = ResourceCluster(tmp_path, ONE_CPU)
    manager = await cluster.start_resource_manager()
    job, other = cluster.job(1), cluster.job(2)
    await job.register()
    await other.register()
    await job.declare(0)
    await other.declare(0)
    await asyncio.sleep(0.1)
    worker = Worker(cluster, "worker", slots=3)
    owners = (job.job_id, job.job_id, other.job_id)
    worker.report = SlotReport(
        tuple(
            SlotStatus(slot.slot_id, slot.profile, owner, number(AllocationID, i))
            for i, (slot, owner) in enumerate(zip(worker.report.slots, owners, strict=True))
        )
    )
    await worker.register(manager)
    await manager.disconnect_task_executor(
        worker.resource_id, worker.instance_id, "its disk is full"
    )
    await other.master.wait_for(JobMasterGateway.notify_task_executor_lost)
    for master in (job.master, other.master):
        told = master.calls_of(JobMasterGateway.notify_task_executor_lost)
        assert {who for _, who, _ in told} == {"worker"}
        assert all("its disk is full" in cause for *_, cause in told)


class JobLeaders(StandaloneHaServices):
    """Knows who leads a job, whatever the asker was told; or knows no job at all."""

    leader: tuple[str, LeaderSessionID] | None = None

    def get_job_master_leader_retriever(
        self,
        job_id: JobID,
        default_address: str | None = None,
        default_session_id: LeaderSessionID | None = None,
    ) -> LeaderRetrievalService:
        if self.leader is None:
            raise LeaderElectionError("the election service does not answer")
        return super().get_job_master_leader_retriever(job_id, *self.leader)


async def start_with_job_leaders(cluster: ResourceCluster) -> tuple[ResourceManager, JobLeaders]:
    service = LocalRpcService("ResourceManager", cluster.network)
    services = ClusterServices.create(service, cluster.arguments)
    leaders = JobLeaders(MemoryDirectory(), service.executor)
    services = replace(services, high_availability=leaders)
    leadership = await Leadership.win(leaders.get_resource_manager_leader_election())
    driver = LocalResourceManagerDriver(service, cluster.arguments)
    manager = ResourceManager(service, services, leadership, driver)
    manager.start()
    return manager, leaders


@on_virtual_time
async def test_only_the_elected_master_of_a_job_may_register(tmp_path: Path) -> None:
    """RM-05"""
    cluster = ResourceCluster(tmp_path)
    _, leaders = await start_with_job_leaders(cluster)
    job, elected = cluster.job(1), number(LeaderSessionID, 77)
    manager = await cluster.resource_manager()
    leaders.leader = (job.address, elected)
    answer = await manager.register_job_master(
        job.job_master_id, job.resource_id, job.address, job.job_id
    )
    assert isinstance(answer, RegistrationFailure)
    assert str(elected) in answer.reason
    leaders.leader = (job.address, job.job_master_id.leader_session())
    await job.register()


@on_virtual_time
async def test_job_master_may_register_as_soon_as_its_election_is_known(
    tmp_path: Path,
) -> None:
    """RM-05: the leader that is announced first may be a past one."""
    cluster = ResourceCluster(tmp_path)
    service = LocalRpcService("ResourceManager", cluster.network)
    services = ClusterServices.create(service, cluster.arguments)
    elected = ManualLeaders(service.executor)
    services = replace(services, high_availability=elected)
    leadership = await Leadership.win(elected.get_resource_manager_leader_election())
    driver = LocalResourceManagerDriver(service, cluster.arguments)
    ResourceManager(service, services, leadership, driver).start()
    job = cluster.job(1)
    manager = await cluster.resource_manager()
    registering = asyncio.ensure_future(
        manager.register_job_master(job.job_master_id, job.resource_id, job.address, job.job_id)
    )
    await asyncio.sleep(0.5)
    elected.master.tell("JobMaster-0/jobmaster", number(JobMasterId, 99))
    await asyncio.sleep(0.5)
    assert not registering.done()
    elected.master.tell(job.address, job.job_master_id)
    assert isinstance(await registering, JobMasterRegistrationSuccess)


@on_virtual_time
async def test_resource_manager_without_leadership_cannot_change_worker_groups(
    tmp_path: Path,
) -> None:
    """HA-29: its successor manages the workers. Calls that only read are answered."""
    cluster = ResourceCluster(tmp_path, ONE_CPU)
    service = LocalRpcService("ResourceManager", cluster.network)
    services = EmbeddedHaServices(MemoryDirectory(), service.executor)
    leadership = await Leadership.win(services.get_resource_manager_leader_election())
    driver = FencedDriver(LocalResourceManagerDriver(service, cluster.arguments), leadership)
    group = await driver.create_worker_group(WorkerGroupRequest(None, (ONE_CPU,)))
    await driver.wait_until_placed(group.group_id)
    worker = driver.new_task_executor_id(group, 0)
    await services.resource_manager_leader_service.revoke_leadership()
    await asyncio.sleep(0)
    for change in (
        driver.create_worker_group(WorkerGroupRequest(None, (ONE_CPU,))),
        driver.release_worker_group(group.group_id),
        driver.start_task_executor(worker, group, 0, 1),
        driver.stop_task_executor(worker),
        driver.kill_task_executor(worker),
    ):
        with pytest.raises(LeadershipLostError):
            await change
    assert await driver.recover() == (group,)
    assert (await driver.occupied_bundles((group.group_id,)))[group.group_id] == {}


@on_virtual_time
async def test_failed_leader_retrieval_of_a_job_ends_the_resource_manager(tmp_path: Path) -> None:
    """RM-06"""
    cluster = ResourceCluster(tmp_path)
    endpoint, _ = await start_with_job_leaders(cluster)
    job = cluster.job(1)
    with pytest.raises(ResourceManagerError, match="the election service does not answer"):
        await job.register()
    with pytest.raises(ResourceManagerError):
        await endpoint.terminated


@on_virtual_time
async def test_fencing_token_is_the_leader_session_id(tmp_path: Path) -> None:
    """RM-10: an endpoint leads one session; losing it ends the endpoint."""
    cluster = ResourceCluster(tmp_path)
    endpoint, _ = await start_with_job_leaders(cluster)
    assert endpoint.fencing_token == ResourceManagerId.of(LeaderSessionID.standalone())
    await asyncio.sleep(0.1)
    await endpoint.close()
    job = cluster.job(1)
    with pytest.raises(RpcConnectionError):
        await job.register()


async def worker_with_a_slot_of(
    cluster: ResourceCluster, manager: ResourceManagerGateway, job: Job
) -> Worker:
    worker = Worker(cluster, "worker", slots=2)
    taken = replace(
        worker.report.slots[0], job_id=job.job_id, allocation_id=number(AllocationID, 1)
    )
    worker.report = SlotReport((taken, *worker.report.slots[1:]))
    await worker.register(manager)
    return worker


@on_virtual_time
async def test_workers_with_slots_of_a_dead_job_master_are_notified(tmp_path: Path) -> None:
    """A worker may not have noticed the death: a slot that was requested while the JobMaster died
    has no connection yet."""
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    worker = await worker_with_a_slot_of(cluster, manager, job)
    cluster.network.crash(job.resource_id)
    lost = await worker.executor.wait_for(TaskExecutorGateway.job_master_lost)
    assert lost[:3] == (job.job_id, job.job_master_id, RM_TOKEN)
    assert "its JobMaster is gone" in lost[3]


@on_virtual_time
async def test_silent_job_master_keeps_its_slots_and_may_register_again(tmp_path: Path) -> None:
    cluster = ResourceCluster(tmp_path, configuration=NO_IDLE_RELEASE)
    manager = await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    worker = await worker_with_a_slot_of(cluster, manager, job)
    await job.master.wait_for(JobMasterGateway.disconnect_resource_manager)
    await asyncio.sleep(1)
    assert worker.executor.calls_of(TaskExecutorGateway.job_master_lost) == []
    await job.register()
    await job.declare(1)
    changed = await worker.executor.wait_for(TaskExecutorGateway.job_master_changed)
    assert changed == (job.job_id, job.address, job.job_master_id, RM_TOKEN)


@on_virtual_time
async def test_workers_with_slots_of_a_job_are_notified_of_its_next_job_master(
    tmp_path: Path,
) -> None:
    """TM-15: the call is repeated until it succeeds."""
    cluster = ResourceCluster(tmp_path, configuration=NO_IDLE_RELEASE)
    manager = await cluster.start_resource_manager()
    first = cluster.job(1)
    await first.register()
    worker = await worker_with_a_slot_of(cluster, manager, first)
    worker.executor.on(TaskExecutorGateway.job_master_changed).raising(SlotAllocationError("late"))
    cluster.network.crash(first.resource_id)
    await worker.executor.wait_for(TaskExecutorGateway.job_master_lost)
    second = cluster.job(1, attempt=1)
    await second.register()
    await worker.executor.wait_for(TaskExecutorGateway.job_master_changed, 2)
    worker.executor.on(TaskExecutorGateway.job_master_changed).returning(None)
    told = await worker.executor.wait_for(TaskExecutorGateway.job_master_changed, 3)
    assert told == (second.job_id, second.address, second.job_master_id, RM_TOKEN)
    await asyncio.sleep(5)
    assert len(worker.executor.calls_of(TaskExecutorGateway.job_master_changed)) == 3


@on_virtual_time
async def test_registering_worker_is_notified_of_the_job_masters_of_its_assigned_slots(
    tmp_path: Path,
) -> None:
    """The ResourceManager died with the JobMaster, and the next JobMaster registered before the
    worker."""
    cluster = ResourceCluster(tmp_path, configuration=NO_IDLE_RELEASE)
    manager = await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    worker = await worker_with_a_slot_of(cluster, manager, job)
    told = await worker.executor.wait_for(TaskExecutorGateway.job_master_changed)
    assert told == (job.job_id, job.address, job.job_master_id, RM_TOKEN)


@on_virtual_time
async def test_workers_are_not_told_of_a_past_job_master_that_tries_to_register_again(
    tmp_path: Path,
) -> None:
    """The past JobMaster wakes up from a pause when no JobMaster is registered."""
    cluster = ResourceCluster(tmp_path, configuration=NO_IDLE_RELEASE)
    manager = await cluster.start_resource_manager()
    past = cluster.job(1)
    await past.register()
    worker = await worker_with_a_slot_of(cluster, manager, past)
    await worker.executor.wait_for(TaskExecutorGateway.job_master_changed)
    await past.master.wait_for(JobMasterGateway.disconnect_resource_manager)
    del cluster.network.services[past.resource_id]  # it was taken for dead, and lives
    cluster.job(1, attempt=1)
    assert isinstance(await past.try_to_register(), RegistrationRejection)
    await asyncio.sleep(5)
    assert len(worker.executor.calls_of(TaskExecutorGateway.job_master_changed)) == 1
