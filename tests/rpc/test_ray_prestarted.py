"""Prestarted processes on Ray: they become whom somebody spawns, and are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from flinkray.core.errors import (
    ConfigurationError,
    ProcessExistsError,
    RecipientUnreachableError,
    RpcConnectionError,
)
from flinkray.rpc import EndpointSpec, RayRpcService
from flinkray.rpc.ray.directory import ProcessRecord, RayDirectory
from flinkray.spark.ray_cluster import ray_actors
from flinkray.testing.waiting import eventually
from tests.rpc.endpoints import EchoGateway, OrderError, echo_spec, leaving_spec

pytestmark = pytest.mark.ray

IMPORTED_AHEAD = "_lsprof"
"""A module of Python that is a file which processes map into their memory, and needs nothing."""


@pytest.fixture
async def service(ray_cluster: None) -> AsyncIterator[RayRpcService]:
    service = await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", "driver")
    service.keep_prestarted(1, ("tests.rpc.endpoints",), (IMPORTED_AHEAD,), roles=3)
    yield service
    await service.end_prestarted()
    await service.close()


async def prestarted(service: RayRpcService) -> str:
    """The name of the one that is ready.  It writes itself into Ray's key-value store, which tells
    nobody, and its actor's creation is not over before it has a role."""
    directory = RayDirectory(service.namespace)
    ready = await eventually(
        lambda: service.run_blocking(directory.ready_prestarted), 300, "a prestarted process"
    )
    return ready[0]


async def record_of(service: RayRpcService, name: str) -> ProcessRecord:
    record = await service.run_blocking(RayDirectory(service.namespace).get, name)
    assert record is not None
    return record


def has_ended(pid: int) -> bool:
    return not Path("/proc", str(pid)).exists()


def role(name: str, **options: object) -> EndpointSpec:
    return echo_spec(name, may_take_over=True, **options)


async def test_prestarted_process_imports_modules_takes_over_a_role_and_is_replaced(
    service: RayRpcService,
) -> None:
    name = await prestarted(service)

    def has_imported() -> bool:
        pid = ray_actors(service.namespace)[name].pid
        return IMPORTED_AHEAD in Path("/proc", str(pid), "maps").read_text()

    await eventually(lambda: service.run_blocking(has_imported), 150, "the module")
    address = await service.spawn(role("worker", detached=True))

    assert address == "worker/echo"
    assert await (await service.connect(address, EchoGateway)).echo(1) == 1
    record = await record_of(service, "worker")
    assert record.actor_name == name
    handle = ray.get_actor(name, service.namespace)
    assert handle._actor_id.hex() == record.actor_id
    with pytest.raises(ProcessExistsError, match="worker"):
        await service.spawn(role("worker", detached=True))
    assert await prestarted(service) != name
    await service.kill("worker")


async def test_suspended_prestarted_process_is_passed_over_and_ended(
    service: RayRpcService,
) -> None:
    name = await prestarted(service)
    stopped = (await record_of(service, name)).pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        await service.spawn(role("worker", detached=True))
        assert (await record_of(service, "worker")).pid != stopped
        await eventually(lambda: service.run_blocking(has_ended, stopped), 300, "its end")
        assert await prestarted(service) != name
    finally:
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGKILL)
        await service.kill("worker")


async def test_death_of_a_spawned_process_that_was_prestarted_frees_its_name(
    service: RayRpcService,
) -> None:
    await prestarted(service)
    address = await service.spawn(role("worker"))
    assert service._taken_children == {"worker"}
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(await service.connect(address, EchoGateway), gone.set_result)

    await service.kill("worker")

    await asyncio.wait_for(gone, 10)
    assert service._taken_children == set()
    with pytest.raises(RpcConnectionError, match="worker/echo"):
        await service.connect(address, EchoGateway)
    assert await service.spawn(role("worker")) == address


async def test_prestarted_process_with_a_role_that_is_not_detached_ends_with_its_owner(
    service: RayRpcService,
) -> None:
    await prestarted(service)
    owner = await RayRpcService.open(service.namespace, "owner")
    address = await owner.spawn(role("worker"))
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    echo = await service.connect(address, EchoGateway)
    service.watch(echo, gone.set_result)
    await eventually(lambda: owner._peers, 50, "the worker's connection to its owner")
    for number in range(20):  # the owner has no endpoint, and is there all the same
        assert await echo.echo(number) == number
    assert not gone.done()

    await owner.close()

    await asyncio.wait_for(gone, 10)


async def test_ended_prestarted_processes_leave_no_names_and_a_spawn_creates_an_actor(
    service: RayRpcService,
) -> None:
    name = await prestarted(service)
    directory = RayDirectory(service.namespace)
    assert await service.run_blocking(directory.names, name) == [name]
    await service.end_prestarted()
    assert await service.run_blocking(directory.names, "Prestarted") == []

    assert await service.spawn(role("worker")) == "worker/echo"

    assert (await record_of(service, "worker")).actor_name == "worker"


async def test_spawn_of_a_role_whose_code_is_missing_fails_and_ends_one_prestarted_process(
    service: RayRpcService,
) -> None:
    """The spawn must not end one prestarted process after the other and start an actor at last."""
    name = await prestarted(service)
    spec = EndpointSpec("Nothing", "nothing", "tests.rpc.no_such:create", may_take_over=True)
    began = asyncio.get_running_loop().time()
    with pytest.raises(ConfigurationError, match=r"No module named 'tests\.rpc\.no_such'"):
        await service.spawn(spec)
    assert asyncio.get_running_loop().time() - began < 5, "an actor takes longer to be asked"
    assert not await service.run_blocking(RayDirectory(service.namespace).get, "nothing")

    def has_ended() -> bool:
        return ray_actors(service.namespace)[name].is_dead

    await eventually(lambda: service.run_blocking(has_ended), 300, "its end")


async def test_error_at_the_start_of_a_role_is_raised_by_its_spawn(service: RayRpcService) -> None:
    await prestarted(service)
    spec = EndpointSpec(
        "Nothing", "nothing", "tests.rpc.endpoints:create_nothing", may_take_over=True
    )
    with pytest.raises(OrderError, match="the factory fails"):
        await service.spawn(spec)


async def ready_as(service: RayRpcService, name: str) -> None:
    directory = RayDirectory(service.namespace)
    await eventually(
        lambda: service.run_blocking(lambda: name in directory.ready_prestarted()), 300, name
    )


async def test_process_of_an_ended_role_takes_another_role_and_knows_nothing_of_the_first(
    service: RayRpcService,
) -> None:
    name = await prestarted(service)
    address = await service.spawn(leaving_spec("first", "nothing"))
    first = await service.connect(address, EchoGateway)
    old = await record_of(service, "first")
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    process_ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(first, ended.set_result)
    service.watch_process("first", process_ended.set_result)

    await first.close_yourself()

    await ready_as(service, f"{name}.2")
    await asyncio.wait_for(asyncio.gather(ended, process_ended), 10)
    with pytest.raises(RecipientUnreachableError):
        await first.echo(1)
    with pytest.raises(RpcConnectionError, match="first"):
        await service.connect(address, EchoGateway)
    assert await service.is_dead(f"first#{old.incarnation}")
    for taken in (name, f"{name}.3"):
        with pytest.raises(RpcConnectionError):
            await service.connect(f"{taken}/prestarted", EchoGateway)

    second = await service.connect(
        await service.spawn(leaving_spec("second", "nothing")), EchoGateway
    )
    new = await record_of(service, "second")
    assert (new.pid, new.actor_id, new.turn) == (old.pid, old.actor_id, 2)
    assert (new.incarnation, new.port, new.unix_path) != (
        old.incarnation,
        old.port,
        old.unix_path,
    )
    handle = ray.get_actor(name, service.namespace)
    parked = await service.run_blocking(ray.get, handle.park.remote(old.incarnation))
    assert parked, "who waits for the end of the first role is told of it"
    await service.kill("first")
    await service._end_prestarted(name)  # a kill of the first role that comes late
    assert await second.pid() == old.pid

    await service.kill("second")
    await eventually(lambda: service.run_blocking(has_ended, old.pid), 300, "its end")


async def test_process_ends_after_as_many_roles_as_it_may_have(service: RayRpcService) -> None:
    name = await prestarted(service)
    pids = []
    for number in (1, 2, 3):
        await ready_as(service, f"{name}.{number}" if number > 1 else name)
        address = await service.spawn(leaving_spec(f"worker-{number}", "nothing"))
        echo = await service.connect(address, EchoGateway)
        pids.append(await echo.pid())
        await echo.close_yourself()
    assert pids == [pids[0]] * 3
    await eventually(lambda: service.run_blocking(has_ended, pids[0]), 300, "its end")


@pytest.mark.parametrize(
    "what",
    ["task", "timer", "thread", "socket", "file", "endpoint", "error", "user code"],
)
async def test_process_in_which_a_role_has_left_something_takes_no_other_role(
    service: RayRpcService, what: str
) -> None:
    name = await prestarted(service)
    address = await service.spawn(leaving_spec("worker", what))
    echo = await service.connect(address, EchoGateway)
    pid = await echo.pid()
    await echo.close_yourself()
    await eventually(lambda: service.run_blocking(has_ended, pid), 300, "its end")
    directory = RayDirectory(service.namespace)
    assert not [
        known
        for known in await service.run_blocking(directory.ready_prestarted)
        if known.startswith(name)
    ]


async def test_process_whose_role_ends_after_prestarted_processes_were_ended_ends(
    service: RayRpcService,
) -> None:
    """Otherwise it would outlive its cluster."""
    await prestarted(service)
    address = await service.spawn(leaving_spec("worker", "nothing"))
    echo = await service.connect(address, EchoGateway)
    pid = await echo.pid()
    await service.end_prestarted()
    await echo.close_yourself()
    await eventually(lambda: service.run_blocking(has_ended, pid), 300, "its end")
    directory = RayDirectory(service.namespace)
    assert await service.run_blocking(directory.names, "") == ["driver"]
    assert await service.run_blocking(directory.starting_prestarted) == []


def test_each_prestarted_process_in_creation_is_claimed_once(ray_cluster: None) -> None:
    directory = RayDirectory(f"rpc-{uuid.uuid4().hex}")
    for name in ("Prestarted-1", "Prestarted-2"):
        directory.prestarted_begun(name)
    assert [directory.claim_starting() for _ in range(3)] == ["Prestarted-1", "Prestarted-2", None]
    directory.prestarted_ready("Prestarted-1")
    assert directory.claimed_prestarted() == ["Prestarted-2"]
    directory.remove_prestarted("Prestarted-2")
    assert directory.claimed_prestarted() == []


def test_prestarted_process_that_became_ready_during_its_claim_is_not_claimed(
    ray_cluster: None,
) -> None:
    class Overtaken(RayDirectory):
        def starting_prestarted(self) -> list[str]:
            names = super().starting_prestarted()
            for name in names:
                self.prestarted_ready(name)
            return names

    directory = Overtaken(f"rpc-{uuid.uuid4().hex}")
    directory.prestarted_begun("Prestarted-1")
    assert directory.claim_starting() is None
    assert directory.claimed_prestarted() == []
    directory.remove_prestarted("Prestarted-1")
