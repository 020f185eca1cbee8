"""How a Dispatcher changes the bounds of a job: what is more than its state allows is refused
before it is stored, and who asks again gets the answer to the first time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from flinkray.actors.dispatcher.job_resizing import JobResizing
from flinkray.actors.dispatcher.managed_job import JobMasterDeaths, ManagedJob
from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import ArchivedJob, StoredJob
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import FlinkRayError, JobStateError, RpcTimeoutError
from flinkray.core.ids import DispatcherId, LeaderSessionID
from flinkray.ha.directory import MemoryDirectory
from flinkray.ha.durable_stores import DurableJobGraphStore
from flinkray.rpc import FencedRpcEndpoint, LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds, SchedulerMode
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
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
    configuration = ReadableConfig()
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


class GraphStore(DurableJobGraphStore[StoredJob]):
    """Stores when it may."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        super().__init__(MemoryDirectory(), StoredJob, executor, on_fenced=self._fenced)
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.is_asked = asyncio.Event()

    def _fenced(self) -> None:
        raise AssertionError("nobody else has the store")

    async def put_job_graph(self, job_graph: StoredJob) -> None:
        self.is_asked.set()
        await self.may_store.wait()
        await super().put_job_graph(job_graph)


@asynccontextmanager
async def resizing_of(managed: ManagedJob) -> AsyncIterator[tuple[JobResizing, GraphStore]]:
    """Of a Dispatcher that has stored the job."""
    network = LocalNetwork()
    service = LocalRpcService("dispatcher", network)
    token = DispatcherId.of(LeaderSessionID.standalone())
    dispatcher = FencedRpcEndpoint(service, "dispatcher", token)
    dispatcher.start()
    executor = ThreadPoolExecutor(1)
    try:
        store = GraphStore(executor)
        await store.put_job_graph(managed.stored())
        store.is_asked.clear()
        yield JobResizing(dispatcher, store, leads), store
    finally:
        executor.shutdown()
        await network.close()


async def stored_upper(store: GraphStore, managed: ManagedJob) -> int:
    stored = await store.recover_job_graph(managed.job_id)
    assert stored is not None
    return stored.graph.vertices[0].parallelism


async def upper_after(managed: ManagedJob, upper: int) -> int:
    """The upper bound that is stored when that one was asked for."""
    async with resizing_of(managed) as (resizing, store):
        await resizing.resize(managed, (ParallelismBounds(A, 1, upper),))
        return await stored_upper(store, managed)


@pytest.mark.parametrize(("key_groups", "upper"), [(8, 9), (8, 1000), (1024, 1025)])
async def test_resize_above_the_number_of_key_groups_is_refused_and_changes_nothing(
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
async def test_resize_is_limited_by_the_graphs_max_parallelism_before_key_groups_are_known(
    job_master: str,
) -> None:
    """DI-20: a JobMaster that takes the bounds limits them to its key groups."""
    job = managed(elastic(), job_master, 8)
    assert await upper_after(job, 128) == 128
    with pytest.raises(JobStateError, match="Ask for 128 at most"):
        await upper_after(job, 129)


async def test_repeated_resize_request_gets_the_answer_of_the_first() -> None:
    """DI-20: a client repeats a request whose answer is late. The client must not be refused
    because of its own change, which is under way."""
    job = managed(elastic(), NONE, 128)
    async with resizing_of(job) as (resizing, store):
        store.may_store.clear()
        asked = [
            asyncio.ensure_future(resizing.resize(job, (ParallelismBounds(A, 1, upper),)))
            for upper in (2, 2, 3)
        ]
        await store.is_asked.wait()
        with pytest.raises(JobStateError, match="another change of its parallelism"):
            await asked[2]
        assert not asked[1].done()
        store.may_store.set()
        await asyncio.gather(*asked[:2])
        assert await stored_upper(store, job) == 2
        await resizing.resize(job, (ParallelismBounds(A, 1, 3),))
        assert await stored_upper(store, job) == 3


async def test_resize_of_a_job_that_ends_during_the_resize_is_refused() -> None:
    """DI-20."""
    job = managed(elastic(), NONE, 128)
    async with resizing_of(job) as (resizing, store):
        async with job.storing:
            asked = asyncio.ensure_future(resizing.resize(job, (ParallelismBounds(A, 1, 2),)))
            await asyncio.sleep(0)
            result = JobResult(job.job_id, "a job", JobStatus.FINISHED, 1.0)
            job.outcome = ArchivedJob(result, job.details())
        with pytest.raises(JobStateError, match="it has ended"):
            await asked
        assert await stored_upper(store, job) == 4
