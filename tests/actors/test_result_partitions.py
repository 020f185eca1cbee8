"""Results that stay after their tasks: until the job, or the cluster, needs them no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from flinkray.actors.gateways import ResourceManagerGateway
from flinkray.actors.gateways.task_process import (
    JobPartition,
    PartitionData,
    TaskProcessGateway,
    TaskProcessListenerGateway,
)
from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.client.python_job import PythonJobBuilder
from flinkray.core.ids import IntermediateDataSetID, JobID, ResourceID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import JobGraph, JobType, NoRestart, ResultPartitionType
from flinkray.scheduler.job.job_scheduler_actions import PromotePartitions
from flinkray.scheduler.resources.cluster_partitions import ClusterDataSet
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.conftest import QUICK
from tests.actors.resource_cluster import DISPATCHER, RM_ADDRESS, RM_TOKEN
from tests.actors.test_python_jobs import cancelled, executions, finishing, until, waiting

ONE_SLOT = {**QUICK, "taskmanager.cpu.cores": "1", "taskmanager.memory": "1g"}
BLOCKING = ResultPartitionType.BLOCKING


def job_master(cluster: MiniCluster) -> JobMaster:
    (name,) = cluster.processes("JobMaster")
    (endpoint,) = cluster.network.services[name].endpoints()
    assert isinstance(endpoint, JobMaster)
    return endpoint


async def until_third_runs(cluster: MiniCluster, job_id: JobID) -> None:
    async def third_runs() -> bool:
        found = await executions(cluster, job_id)
        return len(found) == 4 and found[3].state is ExecutionState.RUNNING

    await until(third_runs, "the third RUNNING")


@on_virtual_time
async def test_task_executor_without_slots_is_kept_while_its_results_are_needed(
    tmp_path: Path,
) -> None:
    """JM-15."""

    async def reads_when_told(context: Any) -> None:
        await asyncio.sleep(60)
        assert await context.inputs[0].read_all() == []

    configuration = {**ONE_SLOT, "slot.idle.timeout": "1 s"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        builder = PythonJobBuilder("chain", job_type=JobType.BATCH, restart_strategy=NoRestart())
        vertices = [
            builder.add(function, parallelism=parallelism, cpu=1, slot_sharing_group=group)
            for function, parallelism, group in (
                (finishing(), 2, "a"),
                (reads_when_told, 1, "b"),
                (waiting(), 1, "c"),
            )
        ]
        builder.connect(vertices[0], vertices[1], result_type=BLOCKING)
        builder.connect(vertices[1], vertices[2], result_type=BLOCKING)
        job_id = await cluster.submit(builder.build())

        async def second_runs() -> bool:
            found = await executions(cluster, job_id)
            return len(found) == 4 and found[2].state is ExecutionState.RUNNING

        await until(second_runs, "the second RUNNING")
        await asyncio.sleep(50)
        slots, connections = job_master(cluster)._slots, job_master(cluster)._task_executors
        *first, second, _ = [
            ResourceID((e.location or "-").split()[0]) for e in await executions(cluster, job_id)
        ]
        (where,) = [executor for executor in first if executor != second]
        assert slots.ledger.on(where) == ()
        assert connections.is_connected(where), "its result is still to be read"

        await until_third_runs(cluster, job_id)
        assert not connections.is_connected(where), "it was read"
        deployments = job_master(cluster)._scheduler._outbox.bulk
        assert where not in deployments.task_executors, "what it was sent is forgotten"
        assert second in deployments.task_executors
        assert not slots._offers_in_flight
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


# --- results that outlive their job ---------------------------------------------------------------


def leaving(data: bytes, then: Callable[[Any], Awaitable[None]] | None = None) -> Any:
    async def leaves(context: Any) -> None:
        await context.outputs[0].write(0, data)
        if then is not None:
            await then(context)

    return leaves


def persisting(function: Any, parallelism: int = 2) -> tuple[JobGraph, IntermediateDataSetID]:
    builder = PythonJobBuilder("persist", job_type=JobType.BATCH, restart_strategy=NoRestart())
    vertex = builder.add(function, parallelism=parallelism, cpu=1)
    data_set_id = builder.persist(vertex)
    return builder.build(), data_set_id


async def resource_manager(cluster: MiniCluster) -> ResourceManagerGateway:
    return await cluster.client.connect(RM_ADDRESS, ResourceManagerGateway, RM_TOKEN)


async def data_sets(cluster: MiniCluster) -> tuple[ClusterDataSet, ...]:
    """After the next heartbeats."""
    await asyncio.sleep(25)
    return await (await resource_manager(cluster)).list_cluster_data_sets()


async def read(
    cluster: MiniCluster, job_id: JobID, data_set_id: IntermediateDataSetID
) -> list[bytes]:
    """What is left of it on all TaskExecutors."""
    found: list[bytes] = []
    for name in cluster.processes("TaskExecutor"):
        executor = await cluster.client.connect(f"{name}/taskexecutor", TaskProcessListenerGateway)
        places = await executor.find_partitions(job_id, data_set_id)
        for address, partitions in zip(places.addresses, places.partitions, strict=True):
            process = await cluster.client.connect(address, TaskProcessGateway)
            for partition in partitions:
                one: PartitionData = await process.read_partition(
                    JobPartition(job_id, partition), 0, 0, 1000
                )
                found += one.buffers
    return found


@on_virtual_time
async def test_persistent_results_outlive_their_job_and_keep_their_task_executors(
    tmp_path: Path,
) -> None:
    """TM-28, RM-11: the results are promoted when the job has finished, then listed, and kept until
    they are released."""
    configuration = {**ONE_SLOT, "resourcemanager.taskmanager-timeout": "5 s"}
    node = ResourceProfile(4, 8 * 2**30)
    async with MiniCluster(str(tmp_path), node, configuration=configuration) as cluster:
        graph, data_set_id = persisting(leaving(b"data"))
        job_id = await cluster.submit(graph)
        result = await cluster.result(job_id)
        assert result.status is JobStatus.FINISHED, result.failure

        assert await data_sets(cluster) == (ClusterDataSet(data_set_id, 2, 2),)
        await asyncio.sleep(100)
        assert len(cluster.processes("TaskExecutor")) == 2, "idle, and not released"
        assert await read(cluster, job_id, data_set_id) == [b"data"] * 2

        await (await resource_manager(cluster)).release_cluster_data_set(data_set_id, DISPATCHER)
        assert await data_sets(cluster) == ()
        await asyncio.sleep(100)
        assert cluster.processes("TaskExecutor") == []


@on_virtual_time
async def test_persistent_results_of_a_job_that_fails_are_released(tmp_path: Path) -> None:
    """TM-28, JM-21."""

    async def second_fails(context: Any) -> None:
        if context.subtask_index == 1:
            await asyncio.sleep(5)
            raise ValueError("no")

    async with MiniCluster(str(tmp_path), configuration=ONE_SLOT) as cluster:
        graph, data_set_id = persisting(leaving(b"data", second_fails))
        job_id = await cluster.submit(graph)
        assert (await cluster.result(job_id)).status is JobStatus.FAILED

        assert await data_sets(cluster) == ()
        assert await read(cluster, job_id, data_set_id) == []


@on_virtual_time
async def test_persistent_result_is_released_when_the_task_process_that_has_it_dies(
    tmp_path: Path,
) -> None:
    """RM-11: the TaskExecutor of the process lives, and reports the loss."""
    configuration = {**ONE_SLOT, "resourcemanager.taskmanager-timeout": "1 h"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        graph, data_set_id = persisting(leaving(b"data"))
        job_id = await cluster.submit(graph)
        await cluster.result(job_id)
        assert await data_sets(cluster) == (ClusterDataSet(data_set_id, 2, 2),)

        cluster.crash("TaskProcess")

        assert await data_sets(cluster) == ()
        assert await read(cluster, job_id, data_set_id) == []
        assert len(cluster.processes("TaskExecutor")) == 2


@on_virtual_time
async def test_persistent_result_lost_before_its_job_finished_is_reproduced(
    tmp_path: Path,
) -> None:
    """TM-28."""

    async def second_waits(context: Any) -> None:
        if context.subtask_index == 1 and context.attempt_number == 0:
            await asyncio.sleep(30)

    async with MiniCluster(str(tmp_path), configuration=ONE_SLOT) as cluster:
        builder = PythonJobBuilder("persist", job_type=JobType.BATCH)
        vertex = builder.add(leaving(b"data", second_waits), parallelism=2, cpu=1)
        data_set_id = builder.persist(vertex)
        job_id = await cluster.submit(builder.build())

        async def first_finished() -> bool:
            found = await executions(cluster, job_id)
            return bool(found) and found[0].state is ExecutionState.FINISHED

        await until(first_finished, "the first FINISHED")
        where = ((await executions(cluster, job_id))[0].location or "").split()[0]
        cluster.network.crash(where)

        assert (await cluster.result(job_id)).status is JobStatus.FINISHED
        assert await data_sets(cluster) == (ClusterDataSet(data_set_id, 2, 2),)
        assert (await executions(cluster, job_id))[0].attempt_number == 1


@on_virtual_time
async def test_partly_promoted_persistent_result_is_released(
    tmp_path: Path,
) -> None:
    """TM-28: one TaskExecutor died as the job finished. Otherwise the other TaskExecutor would keep
    its part for ever."""

    async with MiniCluster(str(tmp_path), configuration=ONE_SLOT) as cluster:
        dead: list[str] = []

        async def dies_at_the_end() -> None:
            master = job_master(cluster)
            promote = master._deployer.promote

            def dies(action: PromotePartitions) -> None:
                if not dead:
                    dead.append(str(action.location.resource_id))
                    cluster.network.crash(dead[0])
                promote(action)

            master._deployer.promote = dies  # type: ignore[method-assign]

        graph, data_set_id = persisting(leaving(b"data", lambda _: asyncio.sleep(5)))
        job_id = await cluster.submit(graph)

        async def all_run() -> bool:
            found = await executions(cluster, job_id)
            return {e.state for e in found} == {ExecutionState.RUNNING}

        await until(all_run, "all RUNNING")
        await dies_at_the_end()
        assert (await cluster.result(job_id)).status is JobStatus.FINISHED

        assert dead
        assert await data_sets(cluster) == ()
        assert await read(cluster, job_id, data_set_id) == []
