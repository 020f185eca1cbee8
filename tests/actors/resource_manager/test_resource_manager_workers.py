"""Worker groups, TaskExecutors and slots of jobs, with real TaskExecutors on a local network."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway, SlotPoolGateway, TaskExecutorGateway
from flinkray.actors.gateways.messages import ClusterArguments, SlotAnswer, WantedSlot
from flinkray.actors.gateways.task_executor import TaskExecutorArguments
from flinkray.actors.resource_manager.driver import WorkerGroupRequest
from flinkray.actors.resource_manager.endpoint import ResourceManager, lead_resource_manager
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership
from flinkray.actors.task_executor.endpoint import TaskExecutor, create_task_executor
from flinkray.actors.task_executor.host import TaskExecutorHost
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID, ResourceID, SlotID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.local_cluster.local_cluster import LocalResourceManagerDriver
from flinkray.rpc import (
    LocalRpcService,
    RegistrationFailure,
    RegistrationRejection,
    RpcEndpoint,
    RpcService,
)
from flinkray.scheduler.resources.slot_manager_actions import StartTaskExecutor
from flinkray.scheduler.shared.slots import WorkerGroupOwner
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import (
    DISPATCHER,
    ONE_CPU,
    RM_TOKEN,
    Job,
    ResourceCluster,
    Worker,
    number,
)

TWO_CPUS = ONE_CPU.times(2)
FOUR_CPUS = ONE_CPU.times(4)


async def running_job(cluster: ResourceCluster, value: int, slots: int, attempt: int = 0) -> Job:
    job = cluster.job(value, attempt)
    await job.register()
    await job.declare(slots)
    await job.has_slots(slots)
    return job


def used(cluster: ResourceCluster) -> list[ResourceProfile]:
    return [node.used for node in cluster.workers.nodes]


NOTHING = ResourceProfile(0.0)


# --- groups and slots -----------------------------------------------------------------------------


@on_virtual_time
async def test_job_on_dedicated_workers_gets_exactly_the_bundles_of_its_own_worker_group(
    tmp_path: Path,
) -> None:
    """TM-09"""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    manager = await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    [group] = cluster.workers.created_groups
    assert group.is_own_of(job.job_id)
    assert group.bundles == (ONE_CPU, ONE_CPU)
    locations = [
        report.location
        for _, report in job.master.calls_of(JobMasterGateway.register_task_executor)
    ]
    assert sorted(location.bundle_index for location in locations) == [0, 1]
    assert {location.worker_group for location in locations} == {group.group_id}
    assert len(cluster.workers.starts) == 2
    overview = await manager.request_resource_overview()
    assert (overview.slots_total, overview.slots_available) == (2, 0)
    assert overview.cluster_available == NOTHING


@on_virtual_time
async def test_task_processes_are_started_ahead_in_shared_worker_groups_only(
    tmp_path: Path,
) -> None:
    """Executors of Spark run in a group of a job's own. A process that waited in a slot with a
    device would take the device."""
    device = replace(ONE_CPU, extended={"GPU": 1.0})
    cluster = ResourceCluster(tmp_path, replace(FOUR_CPUS, extended={"GPU": 1.0}))
    await cluster.start_resource_manager()

    def task_processes() -> list[str]:
        return [name for name in cluster.network.services if name.startswith("TaskProcess")]

    await running_job(cluster, 1, 2)
    await asyncio.sleep(1)
    assert task_processes() == []
    with_device = cluster.job(3)
    await with_device.register()
    await with_device.declare(1, device, dedicated=False)
    await with_device.has_slots(1)
    await asyncio.sleep(1)
    assert task_processes() == []
    shared = cluster.job(2)
    await shared.register()
    await shared.declare(1, dedicated=False)
    await shared.has_slots(1)
    await asyncio.sleep(1)
    assert len(task_processes()) == 1


@on_virtual_time
async def test_slot_requirements_declared_within_50_ms_lead_to_one_worker_group(
    tmp_path: Path,
) -> None:
    """SM-16"""
    cluster = ResourceCluster(tmp_path, FOUR_CPUS)
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    for count in (1, 2, 3):
        await job.declare(count)
    await job.has_slots(3)
    assert [len(group.bundles) for group in cluster.workers.created_groups] == [3]


@on_virtual_time
async def test_two_jobs_have_own_groups_and_only_the_ended_job_loses_its_group(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    manager = await cluster.start_resource_manager()
    first, second = await running_job(cluster, 1, 1), await running_job(cluster, 2, 1)
    await manager.release_job(first.job_id, DISPATCHER, "FINISHED")
    assert used(cluster) == [ONE_CPU]
    [worker] = (await manager.request_resource_overview()).task_executors
    assert worker.jobs == (second.job_id,)


@on_virtual_time
async def test_request_to_release_an_ended_job_is_answered_once_its_resources_are_free(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    manager = await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    await manager.release_job(job.job_id, DISPATCHER, "CANCELED")
    assert used(cluster) == [NOTHING]
    assert not [name for name in cluster.network.services if name.startswith("TaskExecutor")]
    await manager.release_job(job.job_id, DISPATCHER, "again")
    assert (await manager.request_resource_overview()).task_executors == ()


class StubbornTaskExecutor(TaskExecutor):
    """Does not end by itself."""

    async def on_stop(self) -> None:
        await asyncio.sleep(1000)


async def create_stubborn_task_executor(
    rpc_service: RpcService, arguments: TaskExecutorArguments
) -> TaskExecutor:
    services = ClusterServices.create(rpc_service, arguments.cluster)
    host = TaskExecutorHost.find(arguments.node)
    return StubbornTaskExecutor(rpc_service, services, arguments, host, {})


@on_virtual_time
async def test_worker_group_whose_task_executor_does_not_stop_is_removed_after_5_s(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, ONE_CPU)
    cluster.workers.factory = f"{__name__}:create_stubborn_task_executor"
    manager = await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 1)
    releasing = asyncio.ensure_future(manager.release_job(job.job_id, DISPATCHER, "FINISHED"))
    await asyncio.sleep(4)
    assert used(cluster) == [ONE_CPU]
    await asyncio.sleep(2)
    assert used(cluster) == [NOTHING]
    await releasing


@on_virtual_time
async def test_job_released_right_after_declaring_slot_requirements_gets_no_worker_group(
    tmp_path: Path,
) -> None:
    """SM-16: the declaration was to be handled a little later."""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    manager = await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(2)
    await manager.release_job(job.job_id, DISPATCHER, "CANCELED")
    await asyncio.sleep(1)
    assert cluster.workers.created_groups == []


@on_virtual_time
async def test_returned_slot_is_not_requested_again_for_requirements_that_were_withdrawn(
    tmp_path: Path,
) -> None:
    """SM-16: a moment before, the job has declared that it needs no slot."""
    cluster = ResourceCluster(tmp_path)
    group = cluster.workers.create(WorkerGroupRequest(None, (ONE_CPU,)))
    worker = Worker(cluster, "te")
    cluster.workers.started(group.group_id, 0, worker.resource_id)
    manager = await cluster.start_resource_manager()

    def given(wanted: tuple[WantedSlot, ...], *_: object) -> tuple[SlotAnswer, ...]:
        return tuple(SlotAnswer(SlotID(worker.resource_id, one.slot_index)) for one in wanted)

    worker.executor.on(TaskExecutorGateway.request_slots).calling(given)
    worker.location = replace(worker.location, worker_group=group.group_id)
    worker.registration = replace(worker.registration, location=worker.location)
    instance_id = await worker.register(manager)
    job = cluster.job(1)
    await job.register()
    await job.declare(1, dedicated=False)
    ((one,), *_) = await worker.executor.wait_for(TaskExecutorGateway.request_slots)
    await asyncio.sleep(1)
    await job.declare(0)
    slot_id = SlotID(worker.resource_id, one.slot_index)
    await manager.notify_slot_available(instance_id, slot_id, one.allocation_id)
    await asyncio.sleep(1)
    assert len(worker.executor.calls_of(TaskExecutorGateway.request_slots)) == 1


@on_virtual_time
async def test_job_released_while_its_worker_group_waits_for_room_leaves_no_group(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    manager = await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(3)
    await asyncio.sleep(1)
    assert len(cluster.workers.groups) == 1
    await manager.release_job(job.job_id, DISPATCHER, "CANCELED")
    assert cluster.workers.groups == {}
    cluster.workers.add_node(FOUR_CPUS)
    await asyncio.sleep(1)
    assert cluster.workers.starts == []


@on_virtual_time
async def test_jobs_without_spark_share_workers_which_are_released_when_idle(
    tmp_path: Path,
) -> None:
    """SM-15"""
    configuration = {"taskmanager.numberOfTaskSlots": "2", "taskmanager.cpu.cores": "2"}
    cluster = ResourceCluster(tmp_path, FOUR_CPUS, configuration=configuration)
    manager = await cluster.start_resource_manager()
    half = ResourceProfile(1.0, 2**29)
    jobs = [cluster.job(1), cluster.job(2)]
    for job in jobs:
        await job.register()
        await job.declare(1, half, dedicated=False)
        await job.has_slots(1)
    [group] = cluster.workers.created_groups
    assert group.owner is None
    for job in jobs:
        await job.declare(0, dedicated=False)
        executor = await job.executor_of(0)
        await executor.free_slot(job.accepted[0].allocation_id, RM_TOKEN, "the job has ended")
    freed_at = cluster.service.clock.monotonic()
    await asyncio.sleep(0.1)
    assert (await manager.request_resource_overview()).slots_available == 2
    await cluster.group_removed()
    assert 30 <= cluster.service.clock.monotonic() - freed_at < 32
    assert used(cluster) == [NOTHING]


# --- deaths ---------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_killed_task_executor_is_replaced_in_the_same_bundle(tmp_path: Path) -> None:
    """SM-09"""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    victim = job.master.pool.calls_of(SlotPoolGateway.offer_slots)[1][0].resource_id
    bundle = int(victim.split("-")[2])
    cluster.network.crash(victim)
    assert (await job.master.wait_for(JobMasterGateway.notify_task_executor_lost))[1] == victim
    await job.has_slots(3)
    replacement = job.master.pool.calls_of(SlotPoolGateway.offer_slots)[2][0].resource_id
    assert replacement != victim
    assert int(replacement.split("-")[2]) == bundle
    assert len(cluster.workers.created_groups) == 1
    assert len(cluster.workers.starts) == 3


@on_virtual_time
async def test_failed_start_of_a_task_executor_is_repeated(tmp_path: Path) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    works, cluster.workers.factory = cluster.workers.factory, "flinkray.no_such_module:nothing"
    job = cluster.job(1)
    await job.register()
    await job.declare(1)
    await asyncio.sleep(5)
    assert len(cluster.workers.starts) > 1
    assert job.accepted == []
    cluster.workers.factory = works
    await job.has_slots(1)


@on_virtual_time
async def test_worker_starts_and_releases_do_not_list_all_task_executors(
    tmp_path: Path,
) -> None:
    """Each list has all named actors of the Ray: at 1,000 nodes, a thousand times a thousand."""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    manager = await cluster.start_resource_manager()
    looks = cluster.workers.lists
    for value in range(1, 6):
        job = await running_job(cluster, value, slots=2)
        victim = job.master.pool.calls_of(SlotPoolGateway.offer_slots)[0][0].resource_id
        cluster.network.crash(victim)
        await job.has_slots(3)
        await manager.release_job(job.job_id, DISPATCHER, "it has ended")
        await asyncio.sleep(1)
    assert len(cluster.workers.starts) == 15
    assert cluster.workers.groups == {}
    assert cluster.workers.lists == looks


@on_virtual_time
async def test_recovered_task_executors_are_listed_once_for_all_worker_groups(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS, TWO_CPUS)
    await cluster.start_resource_manager()
    jobs = [await running_job(cluster, value, slots=2) for value in (1, 2)]
    looks = cluster.workers.lists
    cluster.network.crash("ResourceManager")
    await asyncio.sleep(5)
    for job in jobs:
        await job.register()
        await job.declare(2)
    victim = jobs[0].master.pool.calls_of(SlotPoolGateway.offer_slots)[0][0].resource_id
    cluster.network.crash(victim)
    await jobs[0].has_slots(3)
    assert len(cluster.workers.starts) == 5
    assert cluster.workers.lists == looks + 1


async def create_late_task_executor(
    rpc_service: RpcService, arguments: TaskExecutorArguments
) -> TaskExecutor:
    await asyncio.sleep(20)
    return await create_task_executor(rpc_service, arguments)


@on_virtual_time
async def test_task_executor_dead_before_reregistration_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TaskExecutor died after the new ResourceManager had listed it. The ResourceManager must
    not wait for its registration until the timeout of 60 s."""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = await running_job(cluster, 1, slots=2)
    victim = job.master.pool.calls_of(SlotPoolGateway.offer_slots)[0][0].resource_id
    occupied = cluster.workers.occupied

    def dies(group_id: WorkerGroupId) -> dict[int, ResourceID]:
        found = occupied(group_id)
        cluster.network.crash(victim)
        return found

    monkeypatch.setattr(cluster.workers, "occupied", dies)
    cluster.network.crash("ResourceManager")
    await asyncio.sleep(2)
    await job.register()
    await job.declare(2)
    await asyncio.wait_for(job.has_slots(3), 5)
    assert len(cluster.workers.created_groups) == 1


@on_virtual_time
async def test_new_resource_manager_waits_for_a_task_executor_that_is_starting(
    tmp_path: Path,
) -> None:
    """No process is at the TaskExecutor's address yet."""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    cluster.workers.factory = f"{__name__}:create_late_task_executor"
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(1)
    await asyncio.sleep(10)
    cluster.network.crash("ResourceManager")
    await asyncio.sleep(2)
    await job.register()
    await job.declare(1)
    await asyncio.wait_for(job.has_slots(1), 10)
    assert len(cluster.workers.starts) == 1
    looks = cluster.workers.lists
    await asyncio.sleep(100)
    assert cluster.workers.lists == looks, "it is looked for no more"


@on_virtual_time
async def test_older_of_two_recovered_worker_groups_of_one_job_is_released(
    tmp_path: Path,
) -> None:
    """The last ResourceManager died before it could release the older group."""
    cluster = ResourceCluster(tmp_path, FOUR_CPUS)
    owner = WorkerGroupOwner(number(JobID, 1), "default")
    request = WorkerGroupRequest(owner, (ONE_CPU,))
    _, newer = cluster.workers.create(request), cluster.workers.create(request)
    await cluster.start_resource_manager()
    await running_job(cluster, 1, slots=1)
    assert list(cluster.workers.groups) == [newer.group_id]


@on_virtual_time
async def test_worker_that_registers_late_is_not_killed_by_the_start_of_its_replacement(
    tmp_path: Path,
) -> None:
    """The start of the worker was given up before the worker registered. The next start killed it,
    and another start killed the next worker, without end (seed 1510 of the whole cluster)."""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = await running_job(cluster, 1, slots=1)
    (group,) = cluster.workers.groups
    (manager,) = cluster.network.services["ResourceManager"].endpoints()
    assert isinstance(manager, ResourceManager)
    launcher = manager._slots._launcher
    for delay in (0.0, 1.0):
        launcher.start_task_executor(StartTaskExecutor(group, 0, ONE_CPU, 1, delay))
        launcher.task_executor_registered(group, 0)
        await asyncio.sleep(5)
    assert len(cluster.workers.starts) == 1
    assert len(job.accepted) == 1


@on_virtual_time
async def test_failed_creation_of_a_worker_group_is_repeated(tmp_path: Path) -> None:
    """SM-02"""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    cluster.workers.refusal = "the provider is out of order"
    job = cluster.job(1)
    await job.register()
    await job.declare(1)
    await asyncio.sleep(5)
    cluster.workers.refusal = None
    await job.has_slots(1)
    assert len(cluster.workers.created_groups) == 1


@on_virtual_time
async def test_worker_group_removed_from_outside_is_created_again(tmp_path: Path) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    [first] = cluster.workers.created_groups
    cluster.workers.remove(first.group_id)
    await job.has_slots(4)
    assert len(cluster.workers.created_groups) == 2
    assert used(cluster) == [TWO_CPUS]


@on_virtual_time
async def test_the_next_master_of_a_job_gets_the_slots_of_its_predecessor(tmp_path: Path) -> None:
    """TM-15"""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    first = await running_job(cluster, 1, 2)
    cluster.network.crash(first.resource_id)
    second = await running_job(cluster, 1, 2, attempt=1)
    assert second.job_master_id != first.job_master_id
    assert len(cluster.workers.created_groups) == 1
    assert len(cluster.workers.starts) == 2
    old = {offer.allocation_id for offer in first.accepted}
    assert old == {offer.allocation_id for offer in second.accepted}


@on_virtual_time
async def test_workers_of_a_job_without_a_next_job_master_are_released_when_idle(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    cluster.network.crash(job.resource_id)
    died_at = cluster.service.clock.monotonic()
    await cluster.group_removed()
    kept, idle = 60, 30
    assert kept + idle <= cluster.service.clock.monotonic() - died_at < kept + idle + 2
    assert used(cluster) == [NOTHING]


@on_virtual_time
async def test_restarted_resource_manager_takes_over_workers_and_starts_none_twice(
    tmp_path: Path,
) -> None:
    """HA-29"""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    cluster.network.crash("ResourceManager")
    await asyncio.sleep(5)
    await job.register()
    await job.declare(2)
    await asyncio.sleep(40)
    assert len(job.accepted) == 2, "no slot was offered again"
    assert len(cluster.workers.created_groups) == 1
    assert len(cluster.workers.starts) == 2
    manager = await cluster.resource_manager()
    overview = await manager.request_resource_overview()
    assert (overview.slots_total, overview.slots_available) == (2, 0)
    await manager.release_job(job.job_id, DISPATCHER, "FINISHED")
    assert used(cluster) == [NOTHING]


class LateWorkers(LocalResourceManagerDriver):
    """Begins to start each worker after 3 s."""

    async def start_task_executor(self, *arguments: Any) -> None:
        await asyncio.sleep(3)
        await super().start_task_executor(*arguments)


async def create_manager_of_late_workers(
    rpc_service: LocalRpcService, arguments: ClusterArguments
) -> RpcEndpoint:
    driver = LateWorkers(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)


@on_virtual_time
async def test_resource_manager_death_during_worker_starts_leaves_no_extra_worker(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager(f"{__name__}:create_manager_of_late_workers")
    job = cluster.job(1)
    await job.register()
    await job.declare(2)
    await asyncio.sleep(2)
    assert len(cluster.workers.created_groups) == 1
    assert job.accepted == []
    cluster.network.crash("ResourceManager")
    await asyncio.sleep(5)
    await job.register()
    await job.declare(2)
    await job.has_slots(2)
    assert len(cluster.workers.created_groups) == 1
    processes = [name for name in cluster.network.services if name.startswith("TaskExecutor")]
    assert len(processes) == 2
    await (await cluster.resource_manager()).release_job(job.job_id, DISPATCHER, "FINISHED")
    assert used(cluster) == [NOTHING]


@on_virtual_time
async def test_workers_whose_job_master_does_not_return_after_a_restart_are_released(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    cluster.network.crash("ResourceManager")
    cluster.network.crash(job.resource_id)
    await cluster.group_removed()
    assert used(cluster) == [NOTHING]
    assert cluster.service.clock.monotonic() < 100


@on_virtual_time
async def test_shutting_down_ends_every_worker_and_the_resource_manager(tmp_path: Path) -> None:
    cluster = ResourceCluster(tmp_path, FOUR_CPUS)
    manager = await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    waiting = cluster.job(2)
    await waiting.register()
    await waiting.declare(3)
    await asyncio.sleep(1)
    await manager.shut_down(DISPATCHER)
    assert cluster.workers.groups == {}
    assert used(cluster) == [NOTHING]
    await asyncio.sleep(0.1)
    others = {name for name in cluster.network.services if not name.startswith("SlotPool-")}
    assert others == {"client", job.resource_id, waiting.resource_id}
    with pytest.raises(FlinkRayError):
        await manager.request_resource_overview()


class SlowProvider(LocalResourceManagerDriver):
    """What it is asked for takes 0.2 s until it is done, and as long until that is told."""

    async def _take_time(self) -> None:
        await asyncio.sleep(0.2)


@on_virtual_time
async def test_resource_declaration_during_the_shutdown_starts_no_worker_group(
    tmp_path: Path,
) -> None:
    """Nobody would release the worker group. Registrations are refused, too."""
    cluster = ResourceCluster(tmp_path, FOUR_CPUS)
    service = LocalRpcService("ResourceManager", cluster.network)
    services = ClusterServices.create(service, cluster.arguments)
    election = services.high_availability.get_resource_manager_leader_election()
    leadership = await Leadership.win(election)
    ResourceManager(service, services, leadership, SlowProvider(service, cluster.arguments)).start()
    job = await running_job(cluster, 1, 1)
    manager = await cluster.resource_manager()
    shutting_down = asyncio.ensure_future(manager.shut_down(DISPATCHER))
    await asyncio.sleep(0.1)
    await job.declare(2)
    late = Worker(cluster, "late")
    answer = await manager.register_task_executor(late.registration)
    assert isinstance(answer, RegistrationRejection)
    assert isinstance(await cluster.job(2).try_to_register(), RegistrationFailure)
    await shutting_down
    await asyncio.sleep(1)
    assert len(cluster.workers.created_groups) == 1
    assert used(cluster) == [NOTHING]


# --- why am I pending -----------------------------------------------------------------------------


@on_virtual_time
async def test_a_slot_larger_than_any_node_is_reported_at_once(tmp_path: Path) -> None:
    """SM-14"""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(2, ResourceProfile(8.0, 2**30))
    _, shortages = await job.master.wait_for(JobMasterGateway.notify_not_enough_resources)
    assert cluster.service.clock.monotonic() < 0.2
    [shortage] = shortages
    assert shortage.unfulfillable
    assert shortage.missing == 2
    assert shortage.profile == ResourceProfile(8.0, 2**30)
    assert shortage.largest_node == TWO_CPUS
    assert "8 CPU" in shortage.reason


@on_virtual_time
async def test_slot_shortage_is_reported_to_the_job_after_a_delay_and_withdrawn_later(
    tmp_path: Path,
) -> None:
    """SP-28"""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    manager = await cluster.start_resource_manager()
    first, job = await running_job(cluster, 1, 1), cluster.job(2)
    await job.register()
    declared_at = cluster.service.clock.monotonic()
    await job.declare(2)
    _, shortages = await job.master.wait_for(JobMasterGateway.notify_not_enough_resources)
    assert 2.0 <= cluster.service.clock.monotonic() - declared_at < 2.5
    [shortage] = shortages
    assert not shortage.unfulfillable
    assert shortage.missing == 2
    assert shortage.cluster_total == TWO_CPUS
    assert shortage.cluster_available == ONE_CPU
    assert "no room" in shortage.reason, "the provider's own words are part of the answer"
    await manager.release_job(first.job_id, DISPATCHER, "FINISHED")
    await job.has_slots(2)
    told = job.master.calls_of(JobMasterGateway.notify_not_enough_resources)
    while told[-1][1] != ():
        told.append(
            await job.master.wait_for(JobMasterGateway.notify_not_enough_resources, len(told) + 1)
        )


@on_virtual_time
async def test_more_slots_than_the_cluster_can_hold_are_reported_at_once(tmp_path: Path) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(3)
    _, shortages = await job.master.wait_for(JobMasterGateway.notify_not_enough_resources)
    assert cluster.service.clock.monotonic() < 0.2
    assert shortages[0].unfulfillable
    assert shortages[0].missing == 3


@on_virtual_time
async def test_slot_shortage_is_reported_again_only_when_it_changes(tmp_path: Path) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    manager = await cluster.start_resource_manager()
    first = await running_job(cluster, 1, 1)
    second = await running_job(cluster, 2, 1)
    job = cluster.job(3)
    await job.register()
    await job.declare(2)
    await asyncio.sleep(4)
    [(_, shortages)] = job.master.calls_of(JobMasterGateway.notify_not_enough_resources)
    assert shortages[0].cluster_available == NOTHING
    await manager.release_job(first.job_id, DISPATCHER, "FINISHED")
    _, shortages = await job.master.wait_for(JobMasterGateway.notify_not_enough_resources, 2)
    assert shortages[0].cluster_available == ONE_CPU
    await manager.release_job(second.job_id, DISPATCHER, "FINISHED")
    await job.has_slots(2)


@on_virtual_time
async def test_no_slot_shortage_is_reported_to_a_job_whose_slots_come_in_time(
    tmp_path: Path,
) -> None:
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = await running_job(cluster, 1, 2)
    await asyncio.sleep(30)
    assert job.master.calls_of(JobMasterGateway.notify_not_enough_resources) == []


@on_virtual_time
async def test_slot_shortage_is_reported_again_to_a_job_master_that_registers_again(
    tmp_path: Path,
) -> None:
    """The JobMaster has dropped the ResourceManager with its reports, which the ResourceManager has
    not noticed."""
    cluster = ResourceCluster(tmp_path, TWO_CPUS)
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(3)
    await asyncio.sleep(10)
    told = job.master.calls_of(JobMasterGateway.notify_not_enough_resources)
    await job.register()
    await job.declare(3)
    await asyncio.sleep(10)
    again = job.master.calls_of(JobMasterGateway.notify_not_enough_resources)
    assert again == [*told, told[-1]]
