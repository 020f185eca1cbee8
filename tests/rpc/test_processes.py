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
from flinkray.rpc import (
    EndpointSpec,
    LocalNetwork,
    LocalRpcService,
    RayRpcService,
    RpcService,
)
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, OrderError, SpawnerGateway, echo_spec
from tests.rpc.on_services import Services, on_every_service, on_virtual_services


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


@on_every_service
async def test_processes_are_found_by_the_prefix_of_their_names(services: Services) -> None:
    for name in ("worker-1", "worker-2", "other"):
        await services.caller.spawn(echo_spec(name))
    assert await services.host.process_names("worker-") == ("worker-1", "worker-2")
    await services.caller.kill("worker-1")
    assert await services.caller.process_names("worker-") == ("worker-2",)
    assert await services.caller.process_names("worker-3") == ()


@on_every_service
async def test_incarnation_of_a_process_counts_as_dead_once_killed_or_replaced(
    services: Services,
) -> None:
    for name, restarts in (("killed", 0), ("restarted", -1)):
        address = await services.caller.spawn(echo_spec(name, max_restarts=restarts))
        identity = await (await services.caller.connect(address, EchoGateway)).identity()
        assert not await services.caller.is_dead(identity)
        await services.crash(address)
        await eventually_dead(services.caller, identity)
        if restarts:
            successor = await (await until_there(services.caller, address)).identity()
            assert not await services.caller.is_dead(successor)
            assert await services.caller.is_dead(identity)
    assert await services.caller.is_dead("never#there")


async def eventually_dead(service: RpcService, identity: str) -> None:
    for _ in range(3000):
        if await service.is_dead(identity):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{identity} is not known to be dead")


@on_every_service
async def test_a_spawned_process_answers_and_is_gone_when_its_endpoint_closes(
    services: Services,
) -> None:
    address = await services.caller.spawn(echo_spec("worker", environment={"FLAVOUR": "sweet"}))
    assert address == "worker/echo"
    echo = await services.caller.connect(address, EchoGateway)
    if isinstance(services.caller, RayRpcService):
        assert await echo.pid() != os.getpid()
        assert await echo.environment("FLAVOUR") == "sweet"
    with pytest.raises(ProcessExistsError, match="worker"):
        await services.host.spawn(echo_spec("worker"))
    await echo.close_yourself()
    await until_gone(services.caller, address)
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.echo"):
        await echo.echo(1)
    # the name is free again
    assert await services.host.spawn(echo_spec("worker")) == address
    await services.caller.stop("worker")
    await until_gone(services.caller, address)
    await services.caller.stop("worker")


@on_every_service
async def test_killed_process_fails_pending_calls_and_is_reported_as_ended(
    services: Services,
) -> None:
    """RPC-23: not by timeout."""
    services.caller.ask_timeout = 10_000_000
    address = await services.caller.spawn(echo_spec("worker"))
    echo = await services.caller.connect(address, EchoGateway)
    reported: asyncio.Queue[str] = asyncio.Queue()
    services.host.watch(address, reported.put_nowait)
    await (await services.host.connect(address, EchoGateway)).echo(1)
    hanging = asyncio.ensure_future(echo.hang())
    await echo.echo(1)
    await services.crash(address)
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.hang"):
        await hanging
    await asyncio.wait_for(reported.get(), 10)
    with pytest.raises(RpcConnectionError, match="worker/echo"):
        await services.caller.connect(address, EchoGateway)
    # the dead one's name is free
    await services.caller.spawn(echo_spec("worker", detached=True))
    await services.caller.kill("worker")
    await services.caller.kill("worker")
    await until_gone(services.caller, address)


@on_every_service
async def test_watch_of_a_process_works_without_an_endpoint_and_reports_the_end(
    services: Services,
) -> None:
    reasons: asyncio.Queue[str] = asyncio.Queue()
    services.caller.watch_process("host", reasons.put_nowait)
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    echo = await services.caller.connect(endpoint.address, EchoGateway)
    await endpoint.close()
    with pytest.raises(RecipientUnreachableError):
        await echo.echo(1)
    assert reasons.empty()

    await services.host.close()

    assert await asyncio.wait_for(reasons.get(), 10)
    services.caller.watch_process("nobody", reasons.put_nowait)
    assert "nobody" in await asyncio.wait_for(reasons.get(), 10)


@on_every_service
async def test_restarting_process_is_reported_dead_and_has_a_new_incarnation(
    services: Services,
) -> None:
    address = await services.caller.spawn(echo_spec("worker", max_restarts=-1, detached=True))
    echo = await services.caller.connect(address, EchoGateway)
    reported: asyncio.Queue[str] = asyncio.Queue()
    services.caller.watch(address, reported.put_nowait)
    await echo.note(1)
    assert await echo.notes() == (1,)
    await services.crash(address)
    await asyncio.wait_for(reported.get(), 10)
    again = await until_there(services.caller, address)
    assert await again.notes() == ()
    with pytest.raises(RecipientUnreachableError):
        await echo.notes()
    # a watch of a proxy is of what it was connected to, not of the successor at that address
    services.caller.watch(echo, reported.put_nowait)
    await asyncio.wait_for(reported.get(), 10)
    # a fatal error of its endpoint is a death too, a closed endpoint is the end
    await again.break_yourself()
    await until_gone(services.caller, address)
    last = await until_there(services.caller, address)
    await last.close_yourself()
    await until_gone(services.caller, address)
    await services.caller.spawn(echo_spec("worker"))


@on_every_service
async def test_children_die_with_their_process_unless_detached(services: Services) -> None:
    spawner = await services.caller.spawn(
        EndpointSpec("Spawner", "parent", "tests.rpc.endpoints:create_spawner")
    )
    gateway = await services.caller.connect(spawner, SpawnerGateway)
    owned, free = await asyncio.gather(
        gateway.spawn_echo("owned", False), gateway.spawn_echo("free", True)
    )
    echo = await services.caller.connect(free, EchoGateway)
    await services.caller.kill("parent")
    await until_gone(services.caller, owned)
    assert await echo.echo(1) == 1
    await services.caller.kill("free")


@on_every_service
async def test_spawn_of_a_process_that_cannot_start_fails_with_the_cause(
    services: Services,
) -> None:
    with pytest.raises(OrderError, match="the factory fails"):
        await services.caller.spawn(
            EndpointSpec("Echo", "failing", "tests.rpc.endpoints:create_nothing")
        )
    with pytest.raises(ConfigurationError, match="no_such_function"):
        await services.caller.spawn(
            EndpointSpec("Echo", "failing", "tests.rpc.endpoints:no_such_function")
        )
    with pytest.raises(RpcConnectionError):
        await services.caller.connect("failing/echo", EchoGateway)


@on_every_service
async def test_spawn_with_arguments_that_cannot_be_sent_fails_at_the_caller(
    services: Services,
) -> None:
    with pytest.raises(RpcSerializationError, match="object"):
        await services.caller.spawn(echo_spec("worker", arguments=object()))
    assert await services.caller.spawn(echo_spec("worker")) == "worker/echo"


@pytest.mark.parametrize("end", ["crash", "kill", "close"])
@on_virtual_time
async def test_child_processes_end_once_however_their_parent_ends(end: str) -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    spec = EndpointSpec("Spawner", "parent", "tests.rpc.endpoints:create_spawner")
    address = await service.spawn(spec)
    gateway = await service.connect(address, SpawnerGateway)
    await gateway.spawn_echo("owned", False)
    await gateway.spawn_echo("free", True)
    if end == "close":
        await network.services["parent"].close()
    else:
        getattr(network, end)("parent")
    assert list(network.services) == ["caller", "free"]
    await asyncio.sleep(0)
    assert end == "close" or not network._ends  # what is dead is not closed, too
    assert await service.spawn(spec) == address
    await network.close()


def create_number(service: RpcService, arguments: object) -> int:
    return 7


@on_virtual_services
async def test_factory_that_returns_no_endpoint_fails_the_spawn_and_frees_the_name(
    services: Services,
) -> None:
    spec = EndpointSpec("Number", "worker", f"{__name__}:create_number")
    with pytest.raises(ConfigurationError, match="returned a int, not an RpcEndpoint"):
        await services.caller.spawn(spec)
    assert await services.caller.spawn(echo_spec("worker")) == "worker/echo"
