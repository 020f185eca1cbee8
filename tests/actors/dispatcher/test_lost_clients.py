"""Jobs that end with their client: when it is missed, what follows, and when nothing does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.dispatcher.job_cancelling import ClientLeases
from flinkray.actors.gateways import DispatcherGateway
from flinkray.client.job_result import JobExecutionResult
from flinkray.core.errors import JobCancelledError, RpcError
from flinkray.core.ids import JobID
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint
from flinkray.rpc.calls.proxy import asks_within
from flinkray.scheduler.graph.job_graph import AttachedClient, JobGraph
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.function_jobs import python_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Simulation, simulate
from flinkray.testing.virtual_time import block_for, on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import RUNS
from tests.actors.conftest import QUICK
from tests.actors.test_python_jobs import finishing, until_running, waiting

ONE, TWO = JobID(b"the first job   "), JobID(b"the second job  ")
CLIENT = AttachedClient("a program, process 7 on a node", 180.0, "nobody else can read its results")
CAUSE = (
    "its client, a program, process 7 on a node, is lost: nothing was heard of it for 180 s "
    "(client.heartbeat.timeout); the job is cancelled, because nobody else can read its results"
)


class Missing:
    """Leases, and the times at which clients were missed."""

    def __init__(self) -> None:
        service = LocalRpcService("Dispatcher", LocalNetwork())
        endpoint = RpcEndpoint(service, "dispatcher")
        endpoint.start()
        self.missed: list[tuple[JobID, float]] = []
        self.leases = ClientLeases(
            endpoint, lambda job_id: self.missed.append((job_id, service.clock.monotonic()))
        )


# --- when a client is missed ----------------------------------------------------------------------


@on_virtual_time
async def test_client_timeout_of_each_job_starts_at_the_last_heartbeat_for_the_job() -> None:
    all_of = Missing()
    all_of.leases.begin(ONE, 180.0)
    all_of.leases.begin(TWO, 20.0)
    for _ in range(3):
        await asyncio.sleep(15)
        all_of.leases.heard_of((TWO, ONE))
    await asyncio.sleep(19)
    assert all_of.missed == []
    await asyncio.sleep(600)
    assert all_of.missed == [(TWO, 45 + 20), (ONE, 45 + 180)]


@on_virtual_time
async def test_no_client_timeout_occurs_for_a_job_that_has_ended() -> None:
    all_of = Missing()
    all_of.leases.begin(ONE, 10.0)
    all_of.leases.end(ONE)
    all_of.leases.end(ONE)
    all_of.leases.heard_of((ONE,))
    await asyncio.sleep(60)
    all_of.leases.begin(TWO, 10.0)
    all_of.leases.stop()
    await asyncio.sleep(60)
    assert all_of.missed == []


@on_virtual_time
async def test_client_heartbeat_handled_after_a_dispatcher_stall_prevents_the_timeout() -> None:
    all_of = Missing()
    all_of.leases.begin(ONE, 20.0)
    all_of.leases.begin(TWO, 20.0)
    await asyncio.sleep(19.9)
    block_for(600)
    await asyncio.sleep(0.5)
    all_of.leases.heard_of((ONE,))
    await asyncio.sleep(10)
    assert [job_id for job_id, _ in all_of.missed] == [TWO]


# --- what follows ---------------------------------------------------------------------------------


def reading(job: JobGraph) -> JobGraph:
    """The same, with a client that it ends with."""
    return replace(job, client=CLIENT)


@contextlib.asynccontextmanager
async def running(tmp_path: Path, job: JobGraph) -> AsyncIterator[MiniCluster]:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        await cluster.submit(job)
        await until_running(cluster, job.job_id)
        yield cluster


async def status_after(cluster: MiniCluster, seconds: float, job: JobGraph) -> JobStatus:
    await asyncio.sleep(seconds)
    return await cluster.status(job.job_id)


@on_virtual_time
async def test_job_with_a_silent_client_is_cancelled_and_names_the_client_timeout_as_cause(
    tmp_path: Path,
) -> None:
    job = reading(python_job(waiting()))
    async with running(tmp_path, job) as cluster:
        assert await status_after(cluster, 170, job) is JobStatus.RUNNING
        result = await cluster.result(job.job_id)
        assert result.status is JobStatus.CANCELED
        assert [e.text for e in (await cluster.details(job.job_id)).exceptions] == [CAUSE]
        with pytest.raises(JobCancelledError) as cancelled:
            JobExecutionResult.of(result)
        assert str(cancelled.value) == f"job {job.job_id}: {job.name!r} was cancelled: {CAUSE}"


@on_virtual_time
async def test_job_runs_on_while_its_client_sends_heartbeats(tmp_path: Path) -> None:
    job = reading(python_job(waiting()))
    async with running(tmp_path, job) as cluster:
        dispatcher = await cluster.dispatcher()
        for _ in range(20):
            assert await status_after(cluster, 150, job) is JobStatus.RUNNING
            await dispatcher.heartbeat_from_client((TWO, job.job_id))


@on_virtual_time
async def test_jobs_without_client_and_ended_jobs_have_no_client_timeout(tmp_path: Path) -> None:
    job, other = python_job(waiting()), reading(python_job(waiting()))
    async with running(tmp_path, job) as cluster:
        dispatcher = await cluster.dispatcher()
        await cluster.submit(other)
        await dispatcher.cancel_job(other.job_id)
        assert (await cluster.result(other.job_id)).cancel_cause is None
        assert await status_after(cluster, 1800, job) is JobStatus.RUNNING
        finished = await cluster.submit(reading(python_job(finishing())))
        assert (await cluster.result(finished)).status is JobStatus.FINISHED
        await asyncio.sleep(600)
        for job_id in (other.job_id, finished):
            assert (await cluster.details(job_id)).exceptions == ()


async def replace_dispatcher(cluster: MiniCluster) -> None:
    cluster.crash("Dispatcher")

    async def answers() -> bool:
        return bool(await (await cluster.dispatcher()).list_jobs())

    await eventually(answers, 150, "a new Dispatcher")


@on_virtual_time
async def test_new_dispatcher_begins_the_timeout_of_each_client_again(tmp_path: Path) -> None:
    job = reading(python_job(waiting()))
    async with running(tmp_path, job) as cluster:
        for _ in range(5):
            assert await status_after(cluster, 170, job) is JobStatus.RUNNING
            await replace_dispatcher(cluster)
        assert await status_after(cluster, 170, job) is JobStatus.RUNNING
        result = await cluster.result(job.job_id)
        assert (result.status, result.cancel_cause) == (JobStatus.CANCELED, CAUSE)


def slow_to_end() -> Callable[[Any], Awaitable[None]]:
    async def lingers(context: Any) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0.9)

    return lingers


async def is_missed(cluster: MiniCluster, job: JobGraph) -> bool:
    dispatcher = await cluster.dispatcher()
    return [e.text for e in await dispatcher.request_job_exceptions(job.job_id)] == [CAUSE]


@on_virtual_time
async def test_cancel_cause_of_a_client_timeout_outlives_the_dispatcher(
    tmp_path: Path,
) -> None:
    job = reading(python_job(slow_to_end()))
    async with running(tmp_path, job) as cluster:
        await eventually(lambda: is_missed(cluster, job), 300, "that the client is missed")
        await replace_dispatcher(cluster)
        assert await cluster.status(job.job_id) is JobStatus.CANCELLING
        result = await cluster.result(job.job_id)
        assert (result.status, result.cancel_cause) == (JobStatus.CANCELED, CAUSE)
        assert [e.text for e in (await cluster.details(job.job_id)).exceptions] == [CAUSE]


async def keep_saying_that_it_lives(cluster: SimulatedCluster, job_id: JobID) -> None:
    while True:
        with contextlib.suppress(RpcError), asks_within(5):
            dispatcher: DispatcherGateway = await cluster.dispatcher()
            await dispatcher.heartbeat_from_client((job_id,))
        await asyncio.sleep(10)


@simulate(seeds=10)
async def test_stalled_dispatcher_handles_waiting_heartbeats_before_a_client_timeout(
    simulation: Simulation,
) -> None:
    cluster = SimulatedCluster(simulation)
    await cluster.start()
    job = scripted_job(RUNS)
    client = replace(CLIENT, heartbeat_timeout=60.0)
    await cluster.submit(replace(job, client=client))
    living = asyncio.ensure_future(keep_saying_that_it_lives(cluster, job.job_id))
    for _ in range(3):
        await asyncio.sleep(60)
        simulation.hang("Dispatcher")
        await asyncio.sleep(59)
        simulation.resume("Dispatcher")
    await asyncio.sleep(60)
    assert await cluster.status(job.job_id) is JobStatus.RUNNING
    living.cancel()
    assert (await cluster.result(job.job_id)).status is JobStatus.CANCELED
