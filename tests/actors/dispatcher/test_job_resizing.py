"""Bounds of a job that are more than its state allows are refused before they are stored."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from flinkray.actors.dispatcher.job_master_deaths import JobMasterDeaths
from flinkray.actors.dispatcher.job_resizing import JobResizing
from flinkray.actors.dispatcher.managed_job import ManagedJob
from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import StoredJob
from flinkray.core.config import Configuration
from flinkray.core.errors import FlinkRayError, JobStateError, RpcTimeoutError
from flinkray.core.ids import DispatcherId, LeaderSessionID
from flinkray.ha.directory import MemoryDirectory
from flinkray.ha.durable_stores import DurableJobGraphStore
from flinkray.rpc import FencedRpcEndpoint, LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds, SchedulerMode
from flinkray.testing import TestingGateway
from tests.scheduler.graphs import job, python_vertex, vertex_id

A = vertex_id("a")
SILENT, NOT_YET = "a JobMaster that is silent", "one that has not read what it begins with"
NONE, KNOWS = "none", "one that knows the state"


def elastic() -> JobGraph:
    return replace(job(vertices=(python_vertex("a", 4),)), scheduler_mode=SchedulerMode.ADAPTIVE)


def managed(graph: JobGraph, job_master: str, key_groups: int) -> ManagedJob:
    loop = asyncio.get_running_loop()
    accepted, ended, told = loop.create_future(), loop.create_future(), loop.create_future()
    configuration = Configuration()
    deaths = JobMasterDeaths(configuration)
    managed = ManagedJob(graph, 0.0, deaths, accepted, ended, told, configuration)
    if job_master != NONE:
        asked = TestingGateway(JobMasterGateway).on(JobMasterGateway.request_max_parallelism)
        managed.gateway = (
            {
                SILENT: lambda: asked.raising(RpcTimeoutError("request_max_parallelism")),
                NOT_YET: lambda: asked.raising(JobStateError(graph.job_id, "not read yet")),
                KNOWS: lambda: asked.returning(((A, key_groups),)),
            }[job_master]()
            .on(JobMasterGateway.resize)
            .returning(None)
            .gateway
        )
    return managed


async def leads(error: FlinkRayError) -> None:
    """What a Dispatcher says that leads still."""


async def upper_after(managed: ManagedJob, upper: int) -> int:
    """The upper bound that is stored when that one was asked for."""
    network = LocalNetwork()
    service = LocalRpcService("dispatcher", network)
    token = DispatcherId.of(LeaderSessionID.standalone())
    dispatcher = FencedRpcEndpoint(service, "dispatcher", token)
    dispatcher.start()
    executor = ThreadPoolExecutor(1)
    try:
        store = DurableJobGraphStore(MemoryDirectory(), StoredJob, executor)
        await store.put_job_graph(managed.stored())
        bounds = (ParallelismBounds(A, 1, upper),)
        try:
            await JobResizing(dispatcher, store, leads).resize(managed, bounds)
        finally:
            stored = await store.recover_job_graph(managed.job_id)
        assert stored is not None
        return stored.graph.vertices[0].parallelism
    finally:
        executor.shutdown()
        await network.close()


@pytest.mark.parametrize(("key_groups", "upper"), [(8, 9), (8, 1000), (1024, 1025)])
async def test_more_than_the_state_allows_is_refused_and_changes_nothing(
    key_groups: int, upper: int
) -> None:
    """DI-20."""
    job = managed(elastic(), KNOWS, key_groups)
    text = f"'a' cannot have 1 to {upper} subtasks.* Ask for {key_groups} at most"
    with pytest.raises(JobStateError, match=text):
        await upper_after(job, upper)
    assert job.graph == elastic()
    assert await upper_after(job, key_groups) == key_groups


@pytest.mark.parametrize("job_master", [NONE, SILENT, NOT_YET])
async def test_while_nobody_knows_the_state_the_graph_decides(job_master: str) -> None:
    """DI-20: a JobMaster makes no more of the bounds than is possible."""
    job = managed(elastic(), job_master, 8)
    assert await upper_after(job, 128) == 128
    with pytest.raises(JobStateError, match="Ask for 128 at most"):
        await upper_after(job, 129)
