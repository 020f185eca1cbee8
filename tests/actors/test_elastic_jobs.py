"""Elastic jobs on real masters and TaskExecutors, in virtual time: they run with what there is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flinkray.client.python_job import PythonJobBuilder
from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.job_graph import FixedDelayRestart, JobGraph, SchedulerMode
from flinkray.scheduler.states import ExecutionState, JobStatus
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.conftest import QUICK
from tests.actors.test_python_jobs import cancelled, executions, until, waiting

ONE_CPU = ResourceProfile(1, 2**30)
TWO_SLOTS = {
    **QUICK,
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory": "1g",
    "taskmanager.numberOfTaskSlots": "2",
    "jobmanager.adaptive-scheduler.resource-wait-timeout": "60 s",
    "jobmanager.adaptive-scheduler.resource-stabilization-timeout": "5 s",
    "jobmanager.adaptive-scheduler.scaling-interval.min": "10 s",
}
"""A node of one CPU has one TaskExecutor, of two slots."""


def elastic_job(wanted: int, at_least: int = 1) -> JobGraph:
    """Two vertices that share slots."""
    builder = PythonJobBuilder(
        "elastic",
        scheduler_mode=SchedulerMode.ADAPTIVE,
        restart_strategy=FixedDelayRestart(5, 0.0),
    )
    first = builder.add(waiting(), name="first", parallelism=wanted, min_parallelism=at_least)
    second = builder.add(waiting(), name="second", parallelism=wanted, min_parallelism=at_least)
    builder.connect(first, second)
    return builder.build()


async def until_runs_with(cluster: MiniCluster, job_id: JobID, parallelism: int) -> None:
    async def runs() -> bool:
        found = await executions(cluster, job_id)
        states = {execution.state for execution in found}
        return len(found) == 2 * parallelism and states == {ExecutionState.RUNNING}

    await until(runs, f"{parallelism} subtasks of each vertex RUNNING")


@on_virtual_time
async def test_an_elastic_job_runs_with_fewer_slots_than_it_wants(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        job_id = await cluster.submit(elastic_job(6))

        await until_runs_with(cluster, job_id, 2)

        details = await cluster.details(job_id)
        assert [vertex.parallelism for vertex in details.vertices] == [2, 2]
        assert (details.status, details.restarts) == (JobStatus.RUNNING, 0)
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_an_elastic_job_grows_with_the_cluster_and_shrinks_with_it(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        job_id = await cluster.submit(elastic_job(6))
        await until_runs_with(cluster, job_id, 2)

        node = cluster.workers.add_node(ONE_CPU)
        await until_runs_with(cluster, job_id, 4)
        assert len(cluster.processes("TaskExecutor")) == 2
        assert (await cluster.details(job_id)).restarts == 0, "to grow is no failure"

        cluster.workers.node_lost(node.node_id)
        cluster.network.crash(cluster.processes("TaskExecutor")[-1])
        await until_runs_with(cluster, job_id, 2)
        details = await cluster.details(job_id)
        assert (details.status, details.restarts) == (JobStatus.RUNNING, 1)
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_an_elastic_job_that_has_all_that_it_wants_starts_at_once(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        begin = asyncio.get_running_loop().time()
        job_id = await cluster.submit(elastic_job(2))
        await until_runs_with(cluster, job_id, 2)
        assert asyncio.get_running_loop().time() - begin < 2
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_an_elastic_job_that_never_gets_what_it_must_have_fails_with_the_reason(
    tmp_path: Path,
) -> None:
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        job_id = await cluster.submit(elastic_job(6, at_least=4))
        result = await cluster.result(job_id)
        assert result.status is JobStatus.FAILED
        assert "do not suffice for the lowest parallelism" in (result.failure or "")
