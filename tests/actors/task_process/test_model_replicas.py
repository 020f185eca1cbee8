"""The replicas of a model as a task sees them: which gets a request, and what follows when one
dies, ends, stands still, or when all of them have failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.models import ModelAnswer, ModelReplicaGateway
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.model_replicas import ClusterReplicas, ModelClients
from flinkray.core.errors import JobNotFoundError, JobSubmissionError
from flinkray.core.ids import AllocationID, DispatcherId, JobID, JobVertexID, KvStateID
from flinkray.core.kv_states import KvStatePlace, UnknownKvStateIdError
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import STREAM, Invokable, JobGraph
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.tasks import JobInformation, TaskDeployment, VertexInformation
from flinkray.streaming.functions.models import (
    ModelDescriptor,
    ModelError,
    ModelFailedError,
    ModelUnavailableError,
)
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import GRAPH, number
from tests.actors.task_executor_under_test import JOB, MASTER

MODEL_JOB = JobID(b"the model's job ")
TIMEOUT = 30.0


def _deployed() -> DeployedTask:
    vertex_id = number(JobVertexID, 1)
    vertex = VertexInformation(vertex_id, "task", 1, 128, Invokable(STREAM, b""), (), ())
    task = TaskDeployment(1, 0, 0, number(AllocationID, 1))
    return DeployedTask(JobInformation(JOB, "job"), GRAPH, vertex, task, (), MASTER, None)


class Dispatcher:
    """Says where the replicas are, and how their job has ended."""

    def __init__(self) -> None:
        self.places: tuple[KvStatePlace, ...] = ()
        self.ended: JobResult | None = None
        self.submitted: list[JobGraph] = []
        self.refuses = False
        self.double = TestingGateway(DispatcherGateway, DispatcherId(b"d" * 16))
        self.double.on(DispatcherGateway.ensure_model).calling(self._ensure)
        self.double.on(DispatcherGateway.find_replicas).calling(self._find)
        self.double.on(DispatcherGateway.request_job_result).calling(self._result)

    async def _ensure(self, user: JobID, graph: JobGraph) -> JobID:
        if self.refuses:
            raise JobSubmissionError(graph.job_id, "the disk is full")
        self.submitted.append(graph)
        return MODEL_JOB if self.ended is None else graph.job_id

    async def _find(self, user: JobID, model: JobID) -> tuple[KvStatePlace, ...]:
        if self.ended is not None and model == MODEL_JOB:
            raise JobNotFoundError(model)
        return self.places

    async def _result(self, job_id: JobID) -> JobResult:
        assert self.ended is not None
        return self.ended


class Clients(ModelClients):
    def __init__(self, service: LocalRpcService, dispatcher: Dispatcher) -> None:
        async def fetch(*_: object) -> bytes:
            raise AssertionError("the job has no files")

        super().__init__(service, ClusterArguments("cluster", {}, ""), fetch)
        self._dispatcher = dispatcher

    @property
    def services(self) -> Any:
        return self

    async def connect_to_dispatcher(self) -> DispatcherGateway:
        return self._dispatcher.double.gateway


class World:
    """A task, and replicas in processes of their own."""

    def __init__(self) -> None:
        self.network = LocalNetwork()
        self.dispatcher = Dispatcher()
        self.failures: list[BaseException] = []
        service = LocalRpcService("caller", self.network)
        descriptor = ModelDescriptor("model", b"", 1, 4, ResourceProfile(1.0, 0))
        clients = Clients(service, self.dispatcher)
        self.replicas = ClusterReplicas(
            clients, _deployed(), descriptor, "operator", self.failures.append
        )
        self.services: dict[int, LocalRpcService] = {}
        self.asked: list[tuple[int, bytes]] = []
        self.answers: dict[int, Callable[[bytes], Awaitable[bytes]]] = {}

    def start(self, number: int, answers: Callable[[bytes], Awaitable[bytes]]) -> None:
        """A replica starts and answers so."""

        async def infer(replica: KvStateID, request: bytes, others_wait: bool) -> ModelAnswer:
            self.asked.append((number, request))
            return ModelAnswer(await self.answers[number](request))

        self.answers[number] = answers
        service = self.services[number] = LocalRpcService(f"replica{number}", self.network)
        double = TestingGateway(ModelReplicaGateway)
        double.on(ModelReplicaGateway.infer).calling(infer)
        address = double.start(service, "taskprocess").address
        place = KvStatePlace(number, number, KvStateID(bytes([number]) * 16), address)
        self.dispatcher.places = (*self.dispatcher.places, place)

    def ask(self, request: bytes) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(self.replicas.infer(request, TIMEOUT))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.replicas.close()
        await made.network.close()


async def at_once(request: bytes) -> bytes:
    return b"answer to " + request


async def never(request: bytes) -> bytes:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


@on_virtual_time
async def test_each_replica_has_at_most_two_requests_and_the_others_wait() -> None:
    async with world() as it:
        it.start(1, never)
        it.start(2, never)
        asked = [it.ask(b"0")]
        await asyncio.sleep(5)
        asked += [it.ask(b"%d" % n) for n in range(1, 6)]
        await asyncio.sleep(5)
        assert sorted(number for number, _ in it.asked) == [1, 1, 2, 2]
        assert (it.replicas.number, it.replicas.waiting) == (2, 2)
        it.start(3, at_once)
        assert await asked[4] == b"answer to 4"
        assert await asked[5] == b"answer to 5"


@on_virtual_time
async def test_requests_wait_for_the_first_replica_without_a_time_limit() -> None:
    async with world() as it:
        asked = it.ask(b"one")
        await asyncio.sleep(20 * TIMEOUT)
        it.start(1, at_once)
        assert await asked == b"answer to one"
        assert len(it.dispatcher.submitted) == 1


@on_virtual_time
async def test_request_that_an_ended_replica_has_not_seen_goes_to_another() -> None:
    async def ended(request: bytes) -> bytes:
        raise UnknownKvStateIdError(KvStateID(bytes([1]) * 16))

    async with world() as it:
        it.start(1, ended)
        asked = it.ask(b"one")
        await asyncio.sleep(1)
        it.start(2, at_once)
        assert await asked == b"answer to one"
        assert it.replicas.number == 1


@on_virtual_time
async def test_replica_that_dies_during_a_request_is_not_asked_again() -> None:
    """Its place is known until the cluster has noticed the death."""
    async with world() as it:
        it.start(1, never)
        asked = it.ask(b"one")
        await asyncio.sleep(5)
        it.network.crash("replica1")
        with pytest.raises(ModelUnavailableError, match="a replica of the model model died"):
            await asked
        asked = it.ask(b"two")
        await asyncio.sleep(5)
        assert it.asked == [(1, b"one")]
        it.start(2, at_once)
        assert await asked == b"answer to two"


@on_virtual_time
async def test_replica_that_has_answered_too_late_is_avoided_for_a_while() -> None:
    async with world() as it:
        it.start(1, never)
        first = it.ask(b"one")
        await asyncio.sleep(5)
        it.start(2, at_once)
        with pytest.raises(ModelUnavailableError, match="has not answered within 30 s"):
            await first
        for number in range(20):
            await it.ask(b"%d" % number)
        assert [number for number, _ in it.asked] == [1] + 20 * [2]
        it.answers[1] = at_once
        await asyncio.sleep(TIMEOUT)
        await it.ask(b"last")
        assert it.asked[-1] == (1, b"last")


@on_virtual_time
async def test_error_of_the_model_reaches_the_caller_and_the_replica_stays() -> None:
    async def fails(request: bytes) -> bytes:
        raise ModelError("ValueError: negative")

    async with world() as it:
        it.start(1, fails)
        with pytest.raises(ModelError, match="negative"):
            await it.ask(b"one")
        assert it.replicas.number == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (JobStatus.FAILED, "has failed: ValueError: no such file"),
        (JobStatus.CANCELED, "was cancelled"),
    ],
)
@on_virtual_time
async def test_task_fails_when_the_job_of_its_replicas_has_ended(
    status: JobStatus, text: str
) -> None:
    async with world() as it:
        it.start(1, at_once)
        await it.ask(b"one")
        failure = "ValueError: no such file" if status is JobStatus.FAILED else None
        it.dispatcher.ended = JobResult(MODEL_JOB, "Model model", status, 1.0, failure)
        await asyncio.sleep(10)
        (error,) = it.failures
        assert isinstance(error, ModelFailedError)
        assert text in str(error)


@on_virtual_time
async def test_submission_of_the_replicas_is_repeated_for_some_seconds() -> None:
    async with world() as it:
        it.dispatcher.refuses = True
        await asyncio.sleep(5)
        it.dispatcher.refuses = False
        it.start(1, at_once)
        assert await it.ask(b"one") == b"answer to one"
        assert it.failures == []
    async with world() as it:
        it.dispatcher.refuses = True
        await asyncio.sleep(20)
        assert [type(error) for error in it.failures] == [ModelFailedError]
        assert "cannot be started" in str(it.failures[0])
        assert "the disk is full" in str(it.failures[0])
