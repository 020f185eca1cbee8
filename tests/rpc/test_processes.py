"""Processes that are started, die and are ended, on every service."""

from __future__ import annotations

import asyncio
import os

import pytest

from flinkray.core.errors import (
    ConfigurationError,
    ProcessExistsError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcSerializationError,
)
from flinkray.rpc import EndpointSpec, RayRpcService, RpcService
from tests.rpc.conftest import Pair
from tests.rpc.endpoints import EchoGateway, OrderError, SpawnerGateway, echo_spec


async def until_gone(service: RpcService, address: str) -> str:
    """The reason of the end of what is at *address*."""
    reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(address, reason.set_result)
    return await asyncio.wait_for(reason, 30)


async def until_there(service: RpcService, address: str) -> EchoGateway:
    for _ in range(3000):
        try:
            return await service.connect(address, EchoGateway)
        except RpcConnectionError:
            await asyncio.sleep(0.01)
    raise AssertionError(f"{address} did not come back")


async def test_a_spawned_process_answers_and_is_gone_when_its_endpoint_closes(pair: Pair) -> None:
    address = await pair.caller.spawn(echo_spec("worker", environment={"FLAVOUR": "sweet"}))
    assert address == "worker/echo"
    echo = await pair.caller.connect(address, EchoGateway)
    if isinstance(pair.caller, RayRpcService):
        assert await echo.pid() != os.getpid()
        assert await echo.environment("FLAVOUR") == "sweet"
    with pytest.raises(ProcessExistsError, match="worker"):
        await pair.host.spawn(echo_spec("worker"))
    await echo.close_yourself()
    await until_gone(pair.caller, address)
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.echo"):
        await echo.echo(1)
    # the name is free again
    assert await pair.host.spawn(echo_spec("worker")) == address
    await pair.caller.stop("worker")
    await until_gone(pair.caller, address)
    await pair.caller.stop("worker")


async def test_a_killed_process_fails_pending_calls_and_is_reported(pair: Pair) -> None:
    """RPC-23: not by timeout."""
    pair.caller.ask_timeout = 10_000_000
    address = await pair.caller.spawn(echo_spec("worker"))
    echo = await pair.caller.connect(address, EchoGateway)
    reported: asyncio.Queue[str] = asyncio.Queue()
    pair.host.watch(address, reported.put_nowait)
    await (await pair.host.connect(address, EchoGateway)).echo(1)
    hanging = asyncio.ensure_future(echo.hang())
    await echo.echo(1)
    await pair.crash(address)
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.hang"):
        await hanging
    await asyncio.wait_for(reported.get(), 10)
    with pytest.raises(RpcConnectionError, match="worker/echo"):
        await pair.caller.connect(address, EchoGateway)
    # the dead one's name is free
    await pair.caller.spawn(echo_spec("worker", detached=True))
    await pair.caller.kill("worker")
    await pair.caller.kill("worker")
    await until_gone(pair.caller, address)


async def test_a_process_that_restarts_is_reported_dead_and_comes_back_as_another(
    pair: Pair,
) -> None:
    address = await pair.caller.spawn(echo_spec("worker", max_restarts=-1, detached=True))
    echo = await pair.caller.connect(address, EchoGateway)
    reported: asyncio.Queue[str] = asyncio.Queue()
    pair.caller.watch(address, reported.put_nowait)
    await echo.note(1)
    assert await echo.notes() == (1,)
    await pair.crash(address)
    await asyncio.wait_for(reported.get(), 10)
    again = await until_there(pair.caller, address)
    assert await again.notes() == ()
    with pytest.raises(RecipientUnreachableError):
        await echo.notes()
    # a watch of a proxy is of what it was connected to, not of the successor at that address
    pair.caller.watch(echo, reported.put_nowait)
    await asyncio.wait_for(reported.get(), 10)
    # a fatal error of its endpoint is a death too, a closed endpoint is the end
    await again.break_yourself()
    await until_gone(pair.caller, address)
    last = await until_there(pair.caller, address)
    await last.close_yourself()
    await until_gone(pair.caller, address)
    await pair.caller.spawn(echo_spec("worker"))


async def test_children_die_with_their_process_unless_detached(pair: Pair) -> None:
    spawner = await pair.caller.spawn(
        EndpointSpec("Spawner", "parent", "tests.rpc.endpoints:create_spawner")
    )
    gateway = await pair.caller.connect(spawner, SpawnerGateway)
    owned, free = await asyncio.gather(
        gateway.spawn_echo("owned", False), gateway.spawn_echo("free", True)
    )
    echo = await pair.caller.connect(free, EchoGateway)
    await pair.caller.kill("parent")
    await until_gone(pair.caller, owned)
    assert await echo.echo(1) == 1
    await pair.caller.kill("free")


async def test_what_cannot_start_fails_its_spawn_with_the_cause(pair: Pair) -> None:
    with pytest.raises(OrderError, match="the factory fails"):
        await pair.caller.spawn(
            EndpointSpec("Echo", "failing", "tests.rpc.endpoints:create_nothing")
        )
    with pytest.raises(ConfigurationError, match="no_such_function"):
        await pair.caller.spawn(
            EndpointSpec("Echo", "failing", "tests.rpc.endpoints:no_such_function")
        )
    with pytest.raises(RpcConnectionError):
        await pair.caller.connect("failing/echo", EchoGateway)


async def test_arguments_that_cannot_travel_fail_the_spawn_at_the_spawner(pair: Pair) -> None:
    with pytest.raises(RpcSerializationError, match="object"):
        await pair.caller.spawn(echo_spec("worker", arguments=object()))
    assert await pair.caller.spawn(echo_spec("worker")) == "worker/echo"


def test_a_process_name_with_a_slash_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a/b"):
        echo_spec("a/b")
