"""Elastic jobs on real masters and TaskExecutors, in virtual time: they run with what there is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flinkray.core.errors import JobStateError, RpcError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    FixedDelayRestart,
    JobGraph,
    ParallelismBounds,
    SchedulerMode,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder, python_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import dispatcher_is_back, on_cluster
from tests.actors.chaos_cluster import ChaosCluster
from tests.actors.conftest import QUICK
from tests.actors.resource_cluster import number
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
async def test_elastic_job_runs_with_fewer_slots_than_it_wants(tmp_path: Path) -> None:
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
async def test_elastic_job_with_all_wanted_slots_starts_at_once(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        begin = asyncio.get_running_loop().time()
        job_id = await cluster.submit(elastic_job(2))
        await until_runs_with(cluster, job_id, 2)
        assert asyncio.get_running_loop().time() - begin < 2
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_elastic_job_without_its_minimum_of_slots_fails_with_reason(
    tmp_path: Path,
) -> None:
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        job_id = await cluster.submit(elastic_job(6, at_least=4))
        result = await cluster.result(job_id)
        assert result.status is JobStatus.FAILED
        assert "do not suffice for the lowest parallelism" in (result.failure or "")


# --- other bounds for a running job ---------------------------------------------------------------


def bounds(graph: JobGraph, lower: int, upper: int) -> tuple[ParallelismBounds, ...]:
    """For all its vertices."""
    return tuple(ParallelismBounds(v.vertex_id, lower, upper) for v in graph.vertices)


@on_virtual_time
async def test_running_elastic_job_grows_and_shrinks_with_its_parallelism_bounds(
    tmp_path: Path,
) -> None:
    """DI-20: one change may follow another, and the job shrinks without waiting."""
    async with MiniCluster(str(tmp_path), ONE_CPU, ONE_CPU, configuration=TWO_SLOTS) as cluster:
        graph = elastic_job(2)
        job_id = await cluster.submit(graph)
        await until_runs_with(cluster, job_id, 2)
        dispatcher = await cluster.dispatcher()

        await dispatcher.resize_job(job_id, bounds(graph, 1, 4))
        await until_runs_with(cluster, job_id, 4)
        await dispatcher.resize_job(job_id, bounds(graph, 1, 1))
        begin = asyncio.get_running_loop().time()
        await until_runs_with(cluster, job_id, 1)

        assert asyncio.get_running_loop().time() - begin < 2
        details = await cluster.details(job_id)
        assert (details.status, details.restarts) == (JobStatus.RUNNING, 0)
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_resize_to_impossible_parallelism_bounds_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    """DI-20."""
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        graph, fixed = elastic_job(2), python_job(waiting())
        job_id, fixed_id = await cluster.submit(graph), await cluster.submit(fixed)
        await until_runs_with(cluster, job_id, 2)
        dispatcher = await cluster.dispatcher()
        unknown = ParallelismBounds(number(JobVertexID, 9), 1, 2)

        for wanted, text in (
            ((), "no vertex is named"),
            (bounds(graph, 3, 2), "min parallelism 3"),
            (bounds(graph, 0, 2), "min parallelism 0"),
            (bounds(graph, 1, 100_000), "parallelism"),
            ((unknown,), "has no vertex"),
        ):
            with pytest.raises(JobStateError, match=text):
                await dispatcher.resize_job(job_id, wanted)
        with pytest.raises(JobStateError, match="its parallelism is fixed"):
            await dispatcher.resize_job(fixed_id, bounds(fixed, 1, 2))
        await asyncio.sleep(30)

        await until_runs_with(cluster, job_id, 2)
        assert {e.attempt_number for e in await executions(cluster, job_id)} == {1}, "the first"
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED
        with pytest.raises(JobStateError, match="it has ended"):
            await dispatcher.resize_job(job_id, bounds(graph, 1, 3))


@on_virtual_time
async def test_second_of_two_simultaneous_resizes_of_a_job_is_refused(tmp_path: Path) -> None:
    """DI-20."""
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        graph = elastic_job(2)
        job_id = await cluster.submit(graph)
        await until_runs_with(cluster, job_id, 2)
        dispatcher = await cluster.dispatcher()

        answers = await asyncio.gather(
            dispatcher.resize_job(job_id, bounds(graph, 1, 1)),
            dispatcher.resize_job(job_id, bounds(graph, 1, 3)),
            return_exceptions=True,
        )

        assert answers[0] is None
        assert isinstance(answers[1], JobStateError)
        assert "another change of its parallelism" in str(answers[1])
        await until_runs_with(cluster, job_id, 1)
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_virtual_time
async def test_new_parallelism_bounds_of_a_job_outlive_its_job_master_and_the_dispatcher(
    tmp_path: Path,
) -> None:
    """DI-20."""
    async with MiniCluster(str(tmp_path), ONE_CPU, configuration=TWO_SLOTS) as cluster:
        graph = elastic_job(2)
        job_id = await cluster.submit(graph)
        await until_runs_with(cluster, job_id, 2)
        await (await cluster.dispatcher()).resize_job(job_id, bounds(graph, 1, 1))
        cluster.crash("JobMaster")
        cluster.crash("Dispatcher")

        async def answers() -> bool:
            try:
                await cluster.details(job_id)
            except RpcError:
                return False
            return True

        await until(answers, "the next Dispatcher")
        await until_runs_with(cluster, job_id, 1)
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED


@on_cluster(ONE_CPU, configuration=TWO_SLOTS)
async def test_parallelism_bounds_that_cannot_be_stored_are_refused_and_not_applied(
    cluster: ChaosCluster,
) -> None:
    """DI-20: the next Dispatcher does not apply the bounds either. When the storage works again,
    other bounds are accepted."""
    graph = elastic_job(2)
    job_id = await cluster.submit(graph)

    async def runs_with(parallelism: int) -> bool:
        vertices = (await cluster.details(job_id)).vertices
        found = [e.state for vertex in vertices for e in vertex.executions]
        return found == [ExecutionState.RUNNING] * (2 * parallelism)

    await eventually(lambda: runs_with(2), 150, "two subtasks of each")
    cluster.fail_storage(20)
    with pytest.raises(JobStateError, match="could not be stored"):
        await (await cluster.dispatcher()).resize_job(job_id, bounds(graph, 1, 1))
    await asyncio.sleep(40)
    assert await runs_with(2)
    cluster.crash("Dispatcher")
    cluster.crash("JobMaster")
    await dispatcher_is_back(cluster)
    await eventually(lambda: runs_with(2), 300, "two subtasks of each")

    await (await cluster.dispatcher()).resize_job(job_id, bounds(graph, 1, 1))

    await eventually(lambda: runs_with(1), 300, "one subtask of each")
