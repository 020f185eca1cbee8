"""The ResourceManager with real placement groups, and TaskExecutors that are actors in them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private.state import available_resources_per_node
from ray.util import list_named_actors, placement_group_table

from flinkray.actors.gateways import JobMasterGateway, ResourceManagerGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.resource_manager import ray_driver
from flinkray.actors.resource_manager.driver import WorkerGroupRequest
from flinkray.actors.resource_manager.ray_driver import RayResourceManagerDriver
from flinkray.core.errors import RpcError
from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import EndpointSpec, Placement, RayRpcService
from flinkray.rpc.ray.directory import RayDirectory
from flinkray.scheduler.shared.slots import WorkerGroupOwner, WorkerLocation
from flinkray.testing.waiting import eventually
from tests.actors.resource_cluster import DISPATCHER, RM_ADDRESS, RM_TOKEN, Job

pytestmark = pytest.mark.ray

ONE_CPU = ResourceProfile(1.0, 128 * 2**20)


class RayResources:
    """A ResourceManager on the session's Ray, in a namespace of its own."""

    def __init__(self, cluster_id: str, client: RayRpcService, storage: Path) -> None:
        self.cluster_id = cluster_id
        self.namespace = f"flinkray-{cluster_id}"
        self.client = client
        self.storage = storage
        self.services: list[RayRpcService] = []

    async def start(self, **configuration: str) -> ResourceManagerGateway:
        settings = {
            key.replace("___", "-").replace("__", "."): value
            for key, value in configuration.items()
        }
        await self.client.spawn(
            EndpointSpec(
                kind="ResourceManager",
                name="ResourceManager",
                factory="flinkray.actors.resource_manager.endpoint:create_resource_manager",
                arguments=ClusterArguments(self.cluster_id, settings, str(self.storage)),
                placement=Placement(node_id=ray.get_runtime_context().get_node_id()),
                detached=True,
                max_restarts=-1,
            )
        )
        return await self.manager()

    async def manager(self) -> ResourceManagerGateway:
        return await self.client.connect(RM_ADDRESS, ResourceManagerGateway, RM_TOKEN)

    async def job(self) -> Job:
        job_id = JobID.generate()
        service = await RayRpcService.open(self.namespace, f"JobMaster-{job_id}")
        pool_service = await RayRpcService.open(self.namespace, Job.pool_process(job_id))
        self.services += [service, pool_service]
        job = Job(service, pool_service, job_id)
        await job.register()
        return job

    async def running_job(self, slots: int) -> Job:
        job = await self.job()
        await job.declare(slots, ONE_CPU)
        await asyncio.wait_for(job.has_slots(slots), 30)
        return job

    def groups(self) -> dict[str, dict[str, Any]]:
        """Ray's records of this cluster's placement groups that are not removed."""
        return {
            group_id: entry
            for group_id, entry in placement_group_table().items()
            if entry["name"].startswith(f"{self.namespace}-") and entry["state"] != "REMOVED"
        }

    def pid_of(self, process_name: str) -> int:
        record = RayDirectory(self.namespace).get(process_name)
        assert record is not None
        return record.pid

    def written_down(self) -> list[str]:
        """Names of TaskExecutors and task processes, as Ray's head has where they listen."""
        return RayDirectory(self.namespace).names("Task")

    def actors(self, prefix: str = "TaskExecutor") -> list[str]:
        named = list_named_actors(all_namespaces=True)
        mine = [actor["name"] for actor in named if actor["namespace"] == self.namespace]
        return sorted(name for name in mine if name.startswith(prefix))


@pytest.fixture
async def resources(ray_cluster: None, tmp_path: Path) -> AsyncIterator[RayResources]:
    cluster_id = f"rm-{uuid.uuid4().hex[:8]}"
    client = await RayRpcService.open(f"flinkray-{cluster_id}")
    resources = RayResources(cluster_id, client, tmp_path)
    yield resources
    manager = await eventually(resources.manager, 150, "the ResourceManager")
    await manager.shut_down(DISPATCHER)
    for service in (*resources.services, client):
        await service.close()
    assert resources.groups() == {}


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def free_cpus() -> float:
    return ResourceProfile.from_ray_resources(ray.available_resources()).cpu


def locations(job: Job) -> dict[int, WorkerLocation]:
    """By bundle, those that registered last."""
    registered = job.master.calls_of(JobMasterGateway.register_task_executor)
    return {report.location.bundle_index: report.location for _, report in registered}


async def test_recovered_worker_groups_are_listed_oldest_first(resources: RayResources) -> None:
    """The ResourceManager keeps the newer of two groups that have the same owner."""
    before = free_cpus()
    await resources.start()
    arguments = ClusterArguments(resources.cluster_id, {}, str(resources.storage))
    driver = RayResourceManagerDriver(resources.client, arguments)
    request = WorkerGroupRequest(None, (ResourceProfile(0.01, 2**20),))
    created = [(await driver.create_worker_group(request)).group_id for _ in range(11)]

    found = await RayResourceManagerDriver(resources.client, arguments).recover()

    assert [group.group_id for group in found] == created
    await asyncio.gather(*map(driver.release_worker_group, created))
    await eventually(lambda: free_cpus() == before, 50, "what the groups have taken")


async def test_worker_groups_of_two_resource_managers_are_all_recovered(
    resources: RayResources,
) -> None:
    """A past leader may have given a group the number that the next leader uses, too."""
    await resources.start()
    arguments = ClusterArguments(resources.cluster_id, {}, str(resources.storage))
    past, leader = (RayResourceManagerDriver(resources.client, arguments) for _ in range(2))
    owners = [WorkerGroupOwner(JobID.generate(), "default") for _ in range(2)]
    created = [
        await driver.create_worker_group(WorkerGroupRequest(owner, (ResourceProfile(0.01),)))
        for driver, owner in zip((past, leader), owners, strict=True)
    ]

    found = await leader.recover()

    assert {group.owner for group in found} == set(owners)
    await asyncio.gather(*(leader.release_worker_group(group.group_id) for group in created))


async def test_worker_group_is_not_removed_while_ray_is_placing_the_group(
    resources: RayResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would lose the processors of the group."""
    states: list[dict[str, Any]] = []

    def remove(group_id: str) -> None:
        states.append(placement_group_table()[group_id])
        removed(group_id)

    removed = ray_driver._remove
    monkeypatch.setattr(ray_driver, "_remove", remove)
    await resources.start()
    before = free_cpus()
    arguments = ClusterArguments(resources.cluster_id, {}, str(resources.storage))
    driver = RayResourceManagerDriver(resources.client, arguments)
    sizes = [ResourceProfile(cpu, 2**20) for cpu in (0.01,) * 40 + (1000.0,)]
    created = await asyncio.gather(
        *(driver.create_worker_group(WorkerGroupRequest(None, (size,))) for size in sizes)
    )

    await asyncio.gather(*(driver.release_worker_group(group.group_id) for group in created))

    assert sorted(entry["state"] for entry in states) == ["CREATED"] * 40 + ["PENDING"]
    await eventually(lambda: free_cpus() == before, 50, "what the groups have taken")


async def test_slots_of_a_job_are_the_bundles_of_one_placement_group_on_ray(
    resources: RayResources,
) -> None:
    before = free_cpus()
    manager = await resources.start()
    job = await resources.running_job(2)
    [(group_id, group)] = resources.groups().items()
    assert group["state"] == "CREATED"
    assert group["name"] == f"{resources.namespace}-{job.job_id}-default-0"
    assert group["bundles"] == dict.fromkeys((0, 1), ONE_CPU.to_ray_resources())
    where = locations(job)
    assert {location.worker_group.value for location in where.values()} == {group_id}
    assert {i: location.node_id for i, location in where.items()} == group["bundles_to_node_id"]
    held = available_resources_per_node()[where[0].node_id]
    for bundle in (0, 1):  # Ray takes a thousandth for each actor in a bundle
        assert held[f"bundle_group_{bundle}_{group_id}"] == pytest.approx(999.999)
    assert free_cpus() == pytest.approx(before - 2)
    assert resources.actors() == sorted(loc.resource_id for loc in where.values())
    overview = await manager.request_resource_overview()
    assert (overview.slots_total, overview.slots_available) == (2, 0)
    assert overview.cluster_total.cpu == ray.cluster_resources()["CPU"]
    await manager.release_job(job.job_id, DISPATCHER, "FINISHED")
    assert free_cpus() == before, "answered when the resources are back"
    assert resources.groups() == {}
    pids = [location.pid for location in where.values()]
    await eventually(lambda: not any(map(is_alive, pids)), 25, "the end of the TaskExecutors")
    assert resources.actors() == []
    assert resources.written_down() == []


@pytest.mark.kill
async def test_a_killed_task_executor_is_replaced_in_its_bundle(resources: RayResources) -> None:
    manager = await resources.start()
    job = await resources.running_job(2)
    victim = locations(job)[1]
    os.kill(victim.pid, signal.SIGKILL)
    _, resource_id, cause = await asyncio.wait_for(
        job.master.wait_for(JobMasterGateway.notify_task_executor_lost), 10
    )
    assert resource_id == victim.resource_id
    assert victim.resource_id in cause
    await asyncio.wait_for(job.has_slots(3), 30)
    replacement = locations(job)[1]
    assert replacement.worker_group == victim.worker_group
    assert replacement.pid != victim.pid
    assert is_alive(locations(job)[0].pid)
    assert len(resources.groups()) == 1
    assert len(resources.actors()) == 2
    lost = [name for name in resources.written_down() if name.endswith(victim.resource_id)]
    await manager.release_job(job.job_id, DISPATCHER, "FINISHED")
    assert resources.written_down() == [], f"of {lost}, who have died with their TaskExecutor, too"


@pytest.mark.kill
async def test_restarted_resource_manager_recovers_its_groups_and_workers(
    resources: RayResources,
) -> None:
    """HA-29"""
    before = free_cpus()
    manager = await resources.start()
    job = await resources.running_job(2)
    groups, actors = resources.groups(), resources.actors()
    os.kill(resources.pid_of("ResourceManager"), signal.SIGKILL)
    with pytest.raises(RpcError):
        await manager.request_resource_overview()
    await eventually(job.register, 150, "the restarted ResourceManager")
    await job.declare(2, ONE_CPU)
    manager = await resources.manager()

    async def all_are_back() -> bool:
        return (await manager.request_resource_overview()).slots_total == 2

    await eventually(all_are_back, 150, "the TaskExecutors' registrations")
    assert resources.groups() == groups
    assert resources.actors() == actors
    assert len(job.accepted) == 2, "no slot was offered again"
    await manager.release_job(job.job_id, DISPATCHER, "FINISHED")
    assert free_cpus() == before


@pytest.mark.kill
async def test_resource_manager_killed_during_worker_starts_starts_no_worker_twice(
    resources: RayResources,
) -> None:
    manager = await resources.start()
    job = await resources.job()
    await job.declare(2, ONE_CPU)
    await eventually(lambda: resources.actors(), 50, "the first TaskExecutor")
    os.kill(resources.pid_of("ResourceManager"), signal.SIGKILL)
    await eventually(job.register, 150, "the restarted ResourceManager")
    await job.declare(2, ONE_CPU)
    await asyncio.wait_for(job.has_slots(2), 40)
    assert len(resources.groups()) == 1
    assert len(resources.actors()) == 2
    manager = await resources.manager()
    await manager.release_job(job.job_id, DISPATCHER, "FINISHED")
    assert resources.groups() == {}


async def test_an_idle_shared_worker_gives_its_resources_back(resources: RayResources) -> None:
    before = free_cpus()
    await resources.start(resourcemanager__taskmanager___timeout="1 s", taskmanager__memory="128m")
    job = await resources.job()
    await job.declare(1, ONE_CPU, dedicated=False)
    await asyncio.wait_for(job.has_slots(1), 30)
    [group] = resources.groups().values()
    assert group["name"] == f"{resources.namespace}-shared-0"
    assert free_cpus() == before - 1
    await job.declare(0, dedicated=False)
    executor = await job.executor_of(0)
    await executor.free_slot(job.accepted[0].allocation_id, RM_TOKEN, "the job has ended")
    await eventually(lambda: free_cpus() == before, 50, "the release of the idle worker")
    assert resources.groups() == {}


async def test_too_large_slots_and_a_full_cluster_are_reported_within_5_seconds(
    resources: RayResources,
) -> None:
    """SM-14"""
    total = int(ray.cluster_resources()["CPU"])
    manager = await resources.start()
    large = await resources.job()
    declared_at = time.monotonic()
    await large.declare(1, ResourceProfile(1000.0))
    _, shortages = await asyncio.wait_for(
        large.master.wait_for(JobMasterGateway.notify_not_enough_resources), 5
    )
    assert shortages[0].unfulfillable
    assert "1000 CPU" in shortages[0].reason
    await manager.release_job(large.job_id, DISPATCHER, "FAILED")

    blocker, many = await resources.running_job(1), await resources.job()
    declared_at = time.monotonic()
    await many.declare(total, ONE_CPU)
    _, shortages = await asyncio.wait_for(
        many.master.wait_for(JobMasterGateway.notify_not_enough_resources), 5
    )
    assert time.monotonic() - declared_at < 5
    assert not shortages[0].unfulfillable
    assert shortages[0].missing == total
    assert shortages[0].cluster_available.cpu == free_cpus()
    assert "PENDING (NO_RESOURCES)" in shortages[0].reason, "Ray's own words"
    await manager.release_job(many.job_id, DISPATCHER, "CANCELED")
    assert len(resources.groups()) == 1
    await manager.release_job(blocker.job_id, DISPATCHER, "FINISHED")
    assert resources.groups() == {}
