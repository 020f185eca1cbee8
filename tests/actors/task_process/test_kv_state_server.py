"""A task process answers queries, and tells its JobMaster what can be queried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flinkray.actors.gateways.kv_states import KvStateAnswer
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.gateways.task_process import TaskProcessListenerGateway
from flinkray.actors.task_process import kv_state_server
from flinkray.actors.task_process.kv_state_server import KvStateReporter, KvStateServer
from flinkray.core.errors import FlinkRayError, RpcConnectionError
from flinkray.core.ids import JobID, KvStateID
from flinkray.core.kv_states import (
    KvStateNameClashError,
    KvStateRegistration,
    MalformedKvStateError,
    UnknownKeyOrNamespaceError,
    UnknownKvStateIdError,
)
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint
from flinkray.state import StateError
from flinkray.state.kv_state_registry import KvStateRegistry
from flinkray.state.kv_state_serializer import KvStateSerializer, serialize_keys_and_namespace
from flinkray.testing import TestingGateway, on_virtual_time
from tests.state.test_kv_state_registry import JOB, OTHER_JOB, Task, value

NOTIFY = TaskProcessListenerGateway.notify_kv_states_registered
FORGET = TaskProcessListenerGateway.notify_kv_states_unregistered


class Server:
    """With one state, of one key."""

    def __init__(self) -> None:
        self.registry = KvStateRegistry()
        self.server = KvStateServer(self.registry)
        self.task = Task(self.registry)
        self.state = self.task.state(value())
        self.put("a", [1])
        [self.id] = self.task.registry._registered

    def put(self, key: Any, stored: Any) -> None:
        self.task.backend.context.key = key
        self.state.update(stored)

    def ask(self, *keys: Any, kv_state_id: KvStateID | None = None) -> KvStateAnswer:
        request = serialize_keys_and_namespace(keys)
        return self.server.query(kv_state_id or self.id, request)

    @property
    def counted(self) -> tuple[int, int, int]:
        stats = self.server.stats
        return stats.requests, stats.successful, stats.failed


def test_state_query_is_counted_and_its_answer_names_the_missing_keys() -> None:
    """QS-09."""
    server = Server()
    answer = server.ask("x", "a", "y")
    assert answer.missing == (0, 2)
    assert KvStateSerializer(value()).deserialize(answer.contents) == [[1]]
    assert server.counted == (1, 1, 0)


def test_failed_state_query_does_not_affect_other_queries() -> None:
    """QS-09, QS-13."""
    server = Server()
    with pytest.raises(UnknownKvStateIdError):
        server.ask("a", kv_state_id=KvStateID.generate())
    with pytest.raises(UnknownKeyOrNamespaceError, match="'q' holds nothing"):
        server.ask("x", "y")
    with pytest.raises(MalformedKvStateError):
        server.server.query(server.id, serialize_keys_and_namespace(["a"])[:-1])
    table: Any = server.task.backend.value_table(value())
    table._entries["b"] = (n for n in range(3))
    with pytest.raises(StateError, match="cannot be stored"):
        server.ask("b")
    assert server.ask("a").missing == ()
    server.task.registry.unregister_all()
    with pytest.raises(UnknownKvStateIdError):
        server.ask("a")
    assert server.counted == (6, 1, 5)


# --- what the JobMaster is told -------------------------------------------------------------------


class Reported:
    """A process whose registry is reported of to a TaskExecutor."""

    def __init__(self, service: LocalRpcService, executor: Any, registry: KvStateRegistry) -> None:
        self.registry = registry
        self.executor: TestingGateway[TaskProcessListenerGateway] = executor
        self.endpoint = RpcEndpoint(service, "taskprocess")
        self.reporter = KvStateReporter(self.endpoint, registry, executor.gateway, 0.001)
        for job_id in (JOB, OTHER_JOB):
            registry.register_listener(job_id, self.reporter)

    def told(self) -> list[tuple[JobID, list[KvStateID]]]:
        return [
            (job_id, [r.kv_state_id for r in registrations])
            for job_id, registrations in self.executor.calls_of(NOTIFY)
        ]


@asynccontextmanager
async def reported() -> AsyncIterator[Reported]:
    executor = TestingGateway(TaskProcessListenerGateway)
    executor.on(NOTIFY).returning(None).on(FORGET).returning(None)
    service = LocalRpcService("process", LocalNetwork())
    under_test = Reported(service, executor, KvStateRegistry())
    under_test.endpoint.start()
    try:
        yield under_test
    finally:
        await service.close()


@on_virtual_time
async def test_queryable_states_are_reported_separately_for_each_job() -> None:
    async with reported() as it:
        tasks = [Task(it.registry), Task(it.registry, OTHER_JOB)]
        for task in tasks:
            task.state(value())
        ids = [task.registry._registered[0] for task in tasks]
        await it.executor.wait_for(NOTIFY, 2)
        assert it.told() == [(JOB, [ids[0]]), (OTHER_JOB, [ids[1]])]
        tasks[0].registry.unregister_all()
        job_id, [registration] = await it.executor.wait_for(FORGET)
        assert (job_id, registration.kv_state_id) == (JOB, ids[0])


@on_virtual_time
@pytest.mark.parametrize("error", [TaskError("no JobMaster"), RpcConnectionError("cut")])
async def test_state_registration_is_repeated_until_it_arrives(error: FlinkRayError) -> None:
    async with reported() as it:
        failures = [error, error]

        def answer(job_id: JobID, registrations: tuple[KvStateRegistration, ...]) -> None:
            if failures:
                raise failures.pop()

        it.executor.on(NOTIFY).calling(answer)
        task = Task(it.registry)
        task.state(value())
        await it.executor.wait_for(NOTIFY, 3)
        assert len({str(told) for told in it.told()}) == 1


@on_virtual_time
async def test_state_removed_before_its_registration_is_not_reported() -> None:
    async with reported() as it:
        it.executor.on(NOTIFY).raising(TaskError("no JobMaster"))
        gone, there = Task(it.registry), Task(it.registry)
        gone.state(value())
        there.state(value())
        await it.executor.wait_for(NOTIFY)
        gone.registry.unregister_all()
        it.executor.on(NOTIFY).returning(None)
        await it.executor.wait_for(FORGET)
        assert it.told()[-1] == (JOB, [there.registry._registered[0]])


@on_virtual_time
async def test_refused_state_registration_is_not_repeated() -> None:
    async with reported() as it:
        it.executor.on(NOTIFY).raising(KvStateNameClashError("q", "another"))
        first, second = Task(it.registry), Task(it.registry)
        first.state(value())
        await it.executor.wait_for(NOTIFY)
        it.executor.on(NOTIFY).returning(None)
        second.state(value())
        await it.executor.wait_for(NOTIFY, 2)
        assert it.told()[1] == (JOB, [second.registry._registered[0]])
        assert len(it.told()) == 2


def test_queryable_state_shortens_the_thread_switch_interval_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals: list[float] = []
    monkeypatch.setattr(kv_state_server, "shorten_turns", intervals.append)

    async def register() -> None:
        async with reported() as it:
            Task(it.registry).state(value())
            await it.executor.wait_for(NOTIFY)

    asyncio.run(register())
    assert intervals == []
    monkeypatch.setattr(LocalRpcService, "has_own_process", True)
    asyncio.run(register())
    assert intervals == [0.001]
