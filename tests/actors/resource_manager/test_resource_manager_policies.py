"""The ResourceManager's policies through the actor: start-up, blocked nodes, dynamic slots, idle
workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from flinkray.actors.gateways import JobMasterGateway, TaskExecutorGateway
from flinkray.actors.gateways.messages import SlotAnswer, WantedSlot
from flinkray.actors.gateways.task_executor import TaskExecutorArguments
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.actors.task_executor.host import TaskExecutorHost
from flinkray.core.errors import SlotAllocationError
from flinkray.core.ids import AllocationID, SlotID
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import RpcService
from flinkray.scheduler.resources.blocklist import BlockedNode
from flinkray.scheduler.shared.slots import ResourceShortage
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import ONE_CPU, RM_TOKEN, Job, ResourceCluster, Worker, number

FOUR_CPUS = ONE_CPU.times(4)
HALF_CPU = ResourceProfile(0.5, 2**29)
SHARED = {
    "taskmanager.cpu.cores": "4",
    "taskmanager.memory": "4g",
    "taskmanager.numberOfTaskSlots": "4",
}


def told(job: Job) -> list[tuple[ResourceShortage, ...]]:
    return [args[1] for args in job.master.calls_of(JobMasterGateway.notify_not_enough_resources)]


async def job_that_asks_for_too_much(cluster: ResourceCluster) -> Job:
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(1, FOUR_CPUS.times(2), dedicated=False)
    return job


@on_virtual_time
async def test_impossible_requirements_fail_only_after_the_start_up_period(tmp_path: Path) -> None:
    """RM-09, SM-14."""
    configuration = {**SHARED, "resourcemanager.standalone.start-up-time": "30 s"}
    cluster = ResourceCluster(tmp_path, FOUR_CPUS, configuration=configuration)
    job = await job_that_asks_for_too_much(cluster)
    await asyncio.sleep(29.0)
    before = [shortage.unfulfillable for (shortage,) in told(job)]
    assert before
    assert not any(before)
    await asyncio.sleep(2.0)
    assert [shortage.unfulfillable for (shortage,) in told(job)] == [*before, True]


@on_virtual_time
async def test_impossible_requirements_never_fail_where_start_up_never_ends(
    tmp_path: Path,
) -> None:
    """RM-09."""
    configuration = {**SHARED, "resourcemanager.standalone.start-up-time": "never"}
    cluster = ResourceCluster(tmp_path, FOUR_CPUS, configuration=configuration)
    job = await job_that_asks_for_too_much(cluster)
    await asyncio.sleep(600.0)
    assert not any(shortage.unfulfillable for shortages in told(job) for shortage in shortages)


@on_virtual_time
async def test_start_up_period_begins_again_with_the_next_resource_manager(tmp_path: Path) -> None:
    """RM-09: the first report to the job says that the job waits."""
    configuration = {**SHARED, "resourcemanager.standalone.start-up-time": "30 s"}
    cluster = ResourceCluster(tmp_path, FOUR_CPUS, configuration=configuration)
    job = await job_that_asks_for_too_much(cluster)
    await asyncio.sleep(35.0)
    assert told(job)[-1][0].unfulfillable
    cluster.network.crash("ResourceManager")
    await asyncio.sleep(5.0)
    job.master.calls.clear()
    await job.register()
    await job.declare(1, FOUR_CPUS.times(2), dedicated=False)
    await asyncio.sleep(10.0)
    assert told(job)
    assert not any(shortage.unfulfillable for (shortage,) in told(job))


class PickyTaskExecutor(TaskExecutor):
    """Refuses, of the first request that it gets, the slots that a test names; None: all."""

    refused: ClassVar[tuple[int, ...] | None]
    messages: ClassVar[list[list[int]]]

    async def request_slots(
        self, wanted: tuple[WantedSlot, ...], *whose: Any
    ) -> tuple[SlotAnswer, ...]:
        self.messages.append([one.slot_index for one in wanted])
        refused = self.refused if len(self.messages) == 1 else ()
        if refused is None:
            raise SlotAllocationError("none is given")
        given = tuple(one for one in wanted if one.slot_index not in refused)
        answers = list(await super().request_slots(given, *whose))
        return tuple(
            SlotAnswer(SlotID(self.location.resource_id, one.slot_index), "not yet")
            if one.slot_index in refused
            else answers.pop(0)
            for one in wanted
        )


async def create_picky(
    rpc_service: RpcService, arguments: TaskExecutorArguments
) -> PickyTaskExecutor:
    services = ClusterServices.create(rpc_service, arguments.cluster)
    host = TaskExecutorHost.find(arguments.node)
    return PickyTaskExecutor(rpc_service, services, arguments, host, {})


async def requests_of_three_slots(
    storage: Path, refused: tuple[int, ...] | None
) -> list[list[int]]:
    """The indexes of the slots in each message to the TaskExecutor, until the job has all three."""
    PickyTaskExecutor.refused, PickyTaskExecutor.messages = refused, []
    cluster = ResourceCluster(storage, FOUR_CPUS, configuration=SHARED)
    cluster.workers.factory = f"{__name__}:create_picky"
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(3, dedicated=False)
    await job.has_slots(3)
    return PickyTaskExecutor.messages


@on_virtual_time
async def test_slots_of_a_worker_are_requested_together_and_a_refused_slot_is_replaced(
    tmp_path: Path,
) -> None:
    """SM-05."""
    first, second = await requests_of_three_slots(tmp_path, refused=(1,))
    assert first == [0, 1, 2]
    assert second == [3], "in place of the one"


@on_virtual_time
async def test_all_slots_of_a_failed_slot_request_are_requested_again(tmp_path: Path) -> None:
    """SM-05."""
    first, *others = await requests_of_three_slots(tmp_path, refused=None)
    assert first == [0, 1, 2]
    assert len({index for message in others for index in message}) == 3


@on_virtual_time
async def test_small_slots_are_cut_out_of_a_shared_worker(tmp_path: Path) -> None:
    """TM-19, TM-22: eight halves of a CPU on a worker of four static slots."""
    cluster = ResourceCluster(tmp_path, FOUR_CPUS, configuration=SHARED)
    manager = await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(8, HALF_CPU, dedicated=False)
    await job.has_slots(8)
    assert len(cluster.workers.starts) == 1
    assert sorted(offer.slot_index for offer in job.accepted) == list(range(4, 12))
    assert {offer.profile for offer in job.accepted} == {HALF_CPU}
    await asyncio.sleep(30.0)
    overview = await manager.request_resource_overview()
    assert (overview.slots_total, overview.slots_available) == (12, 4)
    await job.declare(0)
    executor = await job.executor_of(0)
    for offer in job.accepted:
        await executor.free_slot(offer.allocation_id, RM_TOKEN, "done")
    await asyncio.sleep(1.0)
    overview = await manager.request_resource_overview()
    assert (overview.slots_total, overview.slots_available) == (4, 4)


@on_virtual_time
async def test_worker_without_slots_agrees_to_be_released_and_is_released_when_idle(
    tmp_path: Path,
) -> None:
    """SM-15."""
    cluster = ResourceCluster(tmp_path, FOUR_CPUS, configuration=SHARED)
    await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(1, dedicated=False)
    await job.has_slots(1)
    await job.declare(0)
    executor = await job.executor_of(0)
    assert not await executor.can_be_released(RM_TOKEN)
    await executor.free_slot(job.accepted[0].allocation_id, RM_TOKEN, "done")
    assert await executor.can_be_released(RM_TOKEN)
    await asyncio.sleep(29.0)
    assert cluster.workers.groups
    await asyncio.sleep(10.0)
    assert not cluster.workers.groups


@on_virtual_time
async def test_free_slots_of_a_blocked_node_are_given_to_no_job(tmp_path: Path) -> None:
    cluster = ResourceCluster(tmp_path, FOUR_CPUS, configuration=SHARED)
    manager = await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    await job.declare(1, dedicated=False)
    await job.has_slots(1)
    block = BlockedNode("node-0", "its disk is full", 100.0)
    await manager.block_nodes((block,))
    assert await manager.request_blocked_nodes() == (block,)
    await job.declare(2, dedicated=False)
    await asyncio.sleep(20.0)
    assert len(job.accepted) == 1
    await manager.unblock_node("node-0")
    await job.has_slots(2)
    assert await manager.request_blocked_nodes() == ()


@on_virtual_time
async def test_slots_of_a_job_master_that_fell_silent_are_freed_if_unused(tmp_path: Path) -> None:
    """SM-18: each TaskExecutor with slots of the job is asked."""
    cluster = ResourceCluster(
        tmp_path, configuration={"resourcemanager.taskmanager-timeout": "1 h"}
    )
    manager = await cluster.start_resource_manager()
    worker, job = Worker(cluster, "worker"), cluster.job(1)
    await worker.register(manager)
    await job.register()
    status = replace(
        worker.report.slots[0], job_id=job.job_id, allocation_id=number(AllocationID, 7)
    )
    seen = replace(worker.report, slots=(status,))
    worker.executor.on(TaskExecutorGateway.heartbeat_from_resource_manager).calling(
        lambda *_: manager.heartbeat_from_task_executor(
            worker.resource_id, worker.instance_id, seen
        ),
    )
    job_id, token, _ = await worker.executor.wait_for(TaskExecutorGateway.free_inactive_slots)
    assert (job_id, token) == (job.job_id, RM_TOKEN)
    assert status.slot_id == SlotID(worker.resource_id, 0)
