"""A job's slots stay the job's when its JobMaster dies: the next one takes them over."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.ids import AllocationID, JobID
from flinkray.rpc import RegistrationRejection
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, JobType, ResultPartitionType
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.function_jobs import PythonJobBuilder, python_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import (
    NODE,
    RUNS,
    dispatcher_is_back,
    on_cluster,
    starts_of,
    until_executing,
)
from tests.actors.chaos_cluster import ChaosCluster
from tests.actors.conftest import QUICK
from tests.actors.test_python_jobs import (
    cancelled,
    executions,
    finishing,
    until,
    until_running,
    waiting,
)

FOUR_SLOTS = {
    **QUICK,
    "taskmanager.numberOfTaskSlots": "4",
    "taskmanager.cpu.cores": "1",
    "slotmanager.number-of-slots.max": "4",
    "restart-strategy.fixed-delay.attempts": "1000",
    "slot.request.timeout": "1 h",
}
"""Of all jobs together, and who gets none waits."""


def job_masters(cluster: MiniCluster, job_id: JobID) -> list[JobMaster]:
    endpoints = [e for s in cluster.network.services.values() for e in s.endpoints()]
    return [e for e in endpoints if isinstance(e, JobMaster) and e._job_id == job_id]


def allocations(cluster: MiniCluster, job_id: JobID) -> set[AllocationID]:
    """Of the slots that the job's JobMaster knows."""
    return {s.allocation_id for m in job_masters(cluster, job_id) for s in m._slots.ledger.all()}


async def crash_job_master(cluster: MiniCluster, job_id: JobID) -> None:
    (master,) = job_masters(cluster, job_id)
    cluster.network.crash(master.rpc_service.process_name)
    await eventually(lambda: len(job_masters(cluster, job_id)) == 1, 150, "another JobMaster")


async def used_slots(cluster: ChaosCluster) -> int:
    services = ClusterServices.create(cluster.client, cluster.arguments)
    overview = await (await services.connect_to_resource_manager()).request_resource_overview()
    return overview.slots_total - overview.slots_available


async def until_it_waits(cluster: MiniCluster, job_id: JobID) -> None:
    async def waits() -> bool:
        return (await cluster.status(job_id)) is JobStatus.RUNNING

    await until(waits, "RUNNING")


@on_virtual_time
async def test_next_job_master_keeps_the_slots_of_its_job_although_another_job_waits(
    tmp_path: Path,
) -> None:
    """Otherwise the slots would be freed, and given to the job that has waited longest."""
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        job_id = await cluster.submit(python_job(waiting(), parallelism=4))
        await until_running(cluster, job_id)
        before = allocations(cluster, job_id)
        assert len(before) == 4
        greedy = await cluster.submit(python_job(finishing()))
        await until_it_waits(cluster, greedy)

        for _ in range(3):
            await crash_job_master(cluster, job_id)
            await until_running(cluster, job_id)
            assert allocations(cluster, job_id) == before

        assert allocations(cluster, greedy) == set()
        assert len(cluster.processes("TaskExecutor")) == 1
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED
        assert (await cluster.result(greedy)).status is JobStatus.FINISHED


@on_virtual_time
async def test_slots_not_required_yet_by_the_next_job_master_are_taken_over_as_well(
    tmp_path: Path,
) -> None:
    """The first stage of the job needs one slot of the four that the last stage had."""
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        builder = PythonJobBuilder("stages", job_type=JobType.BATCH)
        first = builder.add(finishing(), name="first")
        second = builder.add(waiting(), name="second", parallelism=4)
        builder.connect(first, second, result_type=ResultPartitionType.BLOCKING)
        job_id = await cluster.submit(builder.build())

        async def second_stage_runs() -> bool:
            found = await executions(cluster, job_id)
            return len(found) == 5 and all(e.state is ExecutionState.RUNNING for e in found[1:])

        await until(second_stage_runs, "the second stage RUNNING")
        before = allocations(cluster, job_id)
        greedy = await cluster.submit(python_job(finishing()))
        await until_it_waits(cluster, greedy)

        await crash_job_master(cluster, job_id)
        await until(second_stage_runs, "the second stage RUNNING again")

        assert allocations(cluster, job_id) == before
        assert await cluster.status(greedy) is JobStatus.RUNNING


@on_virtual_time
async def test_rejected_job_master_leaves_its_slots_to_its_successor(tmp_path: Path) -> None:
    """A rejected JobMaster, which may have woken up from a pause, must not give the slots back."""
    async with MiniCluster(str(tmp_path), configuration=FOUR_SLOTS) as cluster:
        job_id = await cluster.submit(python_job(waiting(), parallelism=4))
        await until_running(cluster, job_id)
        before = allocations(cluster, job_id)
        greedy = await cluster.submit(python_job(finishing()))
        await until_it_waits(cluster, greedy)

        (master,) = job_masters(cluster, job_id)
        master.registration_rejected(RegistrationRejection("another one leads the job"))
        await master.terminated
        await until_running(cluster, job_id)

        assert job_masters(cluster, job_id) != [master]
        assert allocations(cluster, job_id) == before


@on_virtual_time
async def test_slots_of_a_job_that_fails_with_its_job_master_are_free_at_once(
    tmp_path: Path,
) -> None:
    configuration = {**FOUR_SLOTS, "jobmaster.max-failovers": "0"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        job_id = await cluster.submit(python_job(waiting(), parallelism=4))
        await until_running(cluster, job_id)
        greedy = await cluster.submit(python_job(finishing()))
        await until_it_waits(cluster, greedy)

        (master,) = job_masters(cluster, job_id)
        cluster.network.crash(master.rpc_service.process_name)

        assert (await cluster.result(job_id)).status is JobStatus.FAILED
        assert (await asyncio.wait_for(cluster.result(greedy), 10)).status is JobStatus.FINISHED
        assert [name for name in cluster.processes() if job_id.hex() in name] == []


@on_cluster(NODE)
async def test_worker_group_of_a_spark_stage_stays_when_its_job_master_dies(
    cluster: ChaosCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(9, 0.0)))
    await until_executing(cluster, job_id)
    groups = list(cluster.workers.groups)
    cluster.crash("JobMaster")
    await eventually(lambda: starts_of(cluster, "JobMaster") == 2, 50, "another JobMaster")
    await until_executing(cluster, job_id)

    assert list(cluster.workers.groups) == groups
    assert len(cluster.workers.starts) == 2, "in the same TaskExecutors"


@on_cluster(NODE, configuration={"jobmaster.takeover-timeout": "20 s"})
async def test_slots_of_a_job_without_a_job_master_are_freed_after_a_timeout(
    cluster: ChaosCluster,
) -> None:
    """The Dispatcher is away for longer than the timeout, and starts no JobMaster."""
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=FixedDelayRestart(9, 0.0)))
    await until_executing(cluster, job_id)
    cluster.set_conditions(restart=(80.0, 80.0))
    cluster.crash("Dispatcher")
    cluster.crash("JobMaster")
    await asyncio.sleep(15)
    assert await used_slots(cluster) == 2
    await asyncio.sleep(10)
    assert await used_slots(cluster) == 0
    await asyncio.sleep(35)
    assert not cluster.workers.groups, "the time for which unused workers are kept is over, too"
    await dispatcher_is_back(cluster)
    await until_executing(cluster, job_id)
