"""Callers that stop waiting midway: handlers that must not be stopped there go on to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from flinkray.core.errors import JobNotFoundError, RpcError, RpcTimeoutError
from flinkray.core.ids import JobID
from flinkray.rpc.calls.proxy import asks_within
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Simulation, simulate

MESSAGE = 0.1
"""Virtual seconds that each message takes."""
PATIENCE = [0.15, 0.21, 0.25, 0.35, 0.45, 0.65, 0.85, 1.05]
"""Seconds that a caller waits; an answer takes at least two messages."""


async def started(simulation: Simulation) -> SimulatedCluster:
    cluster = SimulatedCluster(simulation)
    await cluster.start()
    return cluster


def messages_are_slow(cluster: SimulatedCluster) -> None:
    network = cluster.network
    network.set_conditions(replace(network.conditions, latency=(MESSAGE, MESSAGE)))


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"never saw {what}")


async def has_status(cluster: SimulatedCluster, job_id: JobID, status: JobStatus) -> bool:
    try:
        return await cluster.status(job_id) is status
    except RpcError:
        return False


@pytest.mark.parametrize("patience", PATIENCE)
@simulate(seeds=2)
async def test_job_whose_submission_timed_out_either_runs_or_is_unknown(
    simulation: Simulation, patience: float
) -> None:
    cluster = await started(simulation)
    messages_are_slow(cluster)
    dispatcher = await cluster.dispatcher()
    job = scripted_job(["register", "wait"])
    try:
        with asks_within(patience):
            await dispatcher.submit_job(job)
    except RpcTimeoutError:
        await asyncio.sleep(5)
        try:
            await cluster.status(job.job_id)
        except JobNotFoundError:
            return
    await eventually(lambda: has_status(cluster, job.job_id, JobStatus.RUNNING), "the job running")


@pytest.mark.parametrize("patience", PATIENCE)
@simulate(seeds=2)
async def test_job_is_cancelled_although_the_caller_gave_up(
    simulation: Simulation, patience: float
) -> None:
    cluster = await started(simulation)
    job_id = await cluster.submit(scripted_job(["register", "wait"]))
    await eventually(lambda: has_status(cluster, job_id, JobStatus.RUNNING), "the job running")
    messages_are_slow(cluster)
    dispatcher = await cluster.dispatcher()
    with asks_within(patience):
        cancelling = asyncio.ensure_future(dispatcher.cancel_job(job_id))
    await asyncio.wait([cancelling])
    cancelling.exception()  # whether it was in time is not the question
    result = await asyncio.wait_for(cluster.result(job_id), 300)
    assert result.status is JobStatus.CANCELED


@pytest.mark.parametrize("patience", PATIENCE)
@simulate(seeds=2)
async def test_cluster_shuts_down_although_the_caller_gave_up(
    simulation: Simulation, patience: float
) -> None:
    cluster = await started(simulation)
    job_id = await cluster.submit(scripted_job(["register", "wait"]))
    await eventually(lambda: has_status(cluster, job_id, JobStatus.RUNNING), "the job running")
    messages_are_slow(cluster)
    dispatcher = await cluster.dispatcher()
    with asks_within(patience), pytest.raises(RpcTimeoutError):
        await dispatcher.shut_down_cluster()

    async def is_down() -> bool:
        return cluster.processes() == []

    await eventually(is_down, "the end of every process")
