"""Spark stages whose JobMaster dies, with scripted drivers."""

from __future__ import annotations

import pytest

from flinkray.core.ids import JobID
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.mini_cluster import MiniCluster
from tests.actors.test_jobs_on_a_local_cluster import RUNS, end, eventually, until_executing


async def until_taken_over(cluster: MiniCluster, job_id: JobID, failovers: int = 1) -> None:
    async def is_taken_over() -> bool:
        details = await cluster.details(job_id)
        return details.failovers == failovers and bool(details.vertices)

    await eventually(is_taken_over, "the next JobMaster's details")
    await until_executing(cluster, job_id)


async def attempts(cluster: MiniCluster, job_id: JobID) -> list[int]:
    (vertex,) = (await cluster.details(job_id)).vertices
    return [execution.attempt_number for execution in vertex.executions]


async def test_driver_and_executors_live_on_when_job_masters_die(cluster: MiniCluster) -> None:
    job_id = await cluster.submit(scripted_job(["register", "progress 3", "wait"]))
    await until_executing(cluster, job_id)
    drivers, task_executors = cluster.processes("SparkDriver"), cluster.processes("TaskExecutor")

    for death in (1, 2, 3):
        cluster.crash("JobMaster")
        await until_taken_over(cluster, job_id, death)

        assert cluster.processes("SparkDriver") == drivers
        assert cluster.processes("TaskExecutor") == task_executors
        assert await attempts(cluster, job_id) == [0, 0]
        (vertex,) = (await cluster.details(job_id)).vertices
        assert vertex.completed_tasks == 3
    await (await cluster.dispatcher()).cancel_job(job_id)
    assert (await end(cluster, job_id)).status is JobStatus.CANCELED


async def test_what_ends_without_a_job_master_is_told_to_the_next_one(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(["register", "row a", "pause 0.3", "finish"]))
    await until_executing(cluster, job_id)

    cluster.crash("JobMaster")

    result = await end(cluster, job_id)
    assert (result.status, result.num_rows) == (JobStatus.FINISHED, 1)
    details = await cluster.details(job_id)
    assert (details.restarts, details.failovers) == (0, 1)


async def test_a_failure_without_a_job_master_restarts_the_stage(cluster: MiniCluster) -> None:
    job_id = await cluster.submit(scripted_job(["register", "pause 0.3", "fail it broke"], RUNS))
    await until_executing(cluster, job_id)

    cluster.crash("JobMaster")

    async def is_restarted() -> bool:
        details = await cluster.details(job_id)
        running = [e.state for v in details.vertices for e in v.executions]
        return details.restarts == 1 and running == [ExecutionState.RUNNING] * 2

    await eventually(is_restarted, "the restart")
    assert await attempts(cluster, job_id) == [1, 1]
    assert any("it broke" in each.text for each in (await cluster.details(job_id)).exceptions)
    assert len(cluster.processes("SparkDriver")) == 1


@pytest.mark.parametrize("victim", ["SparkDriver", "TaskExecutor"])
async def test_what_dies_with_the_job_master_is_restarted(
    cluster: MiniCluster, victim: str
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)

    cluster.crash(victim)
    cluster.crash("JobMaster")
    await until_taken_over(cluster, job_id)

    async def is_restarted() -> bool:
        return await attempts(cluster, job_id) == [1, 1]

    await eventually(is_restarted, "the next attempts")
    await until_executing(cluster, job_id)
    assert len(cluster.processes("SparkDriver")) == 1


async def test_a_driver_of_which_no_notes_are_left_ends_and_the_job_begins_anew(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    (past,) = cluster.processes("SparkDriver")

    cluster.crash("SlotPool")
    cluster.crash("JobMaster")
    await until_taken_over(cluster, job_id)

    async def has_another_driver() -> bool:
        drivers = cluster.processes("SparkDriver")
        return len(drivers) == 1 and past not in drivers

    await eventually(has_another_driver, "the end of the past driver")
    await until_executing(cluster, job_id)
    assert await attempts(cluster, job_id) == [0, 0]
    await (await cluster.dispatcher()).cancel_job(job_id)
    await end(cluster, job_id)
