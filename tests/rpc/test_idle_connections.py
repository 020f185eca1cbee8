"""Connections that nobody uses are closed, and nobody notices."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

import pytest

from flinkray.core.errors import RecipientUnreachableError
from flinkray.rpc import EndpointSpec, RpcEndpoint, RpcGateway, RpcService, oneway
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.serving.base_service import BaseRpcService
from flinkray.testing.simulation import Faults, Simulation, simulate
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, echo_spec
from tests.rpc.on_services import Services, on_every_service, on_local_service, on_ray
from tests.rpc.sockets import Relay, joined

IDLE = 100.0
"""Seconds; on Ray a fraction of one."""


def allow_closing(services: Services) -> None:
    services.caller.connection_idle_timeout = IDLE if services.is_virtual else 0.1


def connection_to(service: RpcService, process: str) -> ClientConnection | None:
    assert isinstance(service, BaseRpcService)
    return next((c for c in service.connections() if c.process_name == process), None)


async def until_closed(service: RpcService, process: str) -> ClientConnection:
    connection = connection_to(service, process)
    assert connection is not None
    closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.on_lost(lambda: closed.set_result(None))
    await closed
    assert connection.lost_reason == "the connection was closed because nobody used it"
    return connection


async def connected(services: Services) -> tuple[EchoEndpoint, EchoGateway]:
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    allow_closing(services)
    return endpoint, await services.caller.connect(endpoint.address, EchoGateway)


@on_every_service
async def test_idle_connection_is_closed_and_the_next_call_opens_another(
    services: Services,
) -> None:
    _, echo = await connected(services)
    for number in range(3):
        await echo.note(2 * number)
        await until_closed(services.caller, "host")
        assert connection_to(services.caller, "host") is None
        await echo.note(2 * number + 1)
        assert await echo.notes() == tuple(range(2 * number + 2))
    await until_closed(services.caller, "host")
    assert isinstance(services.host, BaseRpcService)
    await services.let_time_pass(1)
    if services.is_virtual:
        assert not services.host._peers


@on_local_service
async def test_watch_created_after_an_idle_close_opens_a_new_connection(
    services: Services,
) -> None:
    endpoint, echo = await connected(services)
    await until_closed(services.caller, "host")
    reasons: asyncio.Queue[str] = asyncio.Queue()
    services.caller.watch(echo, reasons.put_nowait)
    await services.let_time_pass(10 * IDLE)
    assert reasons.empty()
    await endpoint.close()
    assert await reasons.get() == "the endpoint has terminated"


@on_local_service
async def test_call_after_an_idle_close_reports_that_endpoint_or_process_has_ended(
    services: Services,
) -> None:
    endpoint, echo = await connected(services)
    address = await services.caller.spawn(echo_spec("worker"))
    worker = await services.caller.connect(address, EchoGateway)
    await worker.note(1)
    for process in ("host", "worker"):
        if connection_to(services.caller, process) is not None:
            await until_closed(services.caller, process)
    endpoint.on_fatal_error(RuntimeError("out of order"))
    with pytest.raises(RuntimeError, match="out of order"):
        await endpoint.terminated
    await services.caller.kill("worker")
    for gateway, text in ((echo, "out of order"), (worker, "worker")):
        with pytest.raises(RecipientUnreachableError, match=text):
            await gateway.echo(1)
        with pytest.raises(RecipientUnreachableError):
            await gateway.note(1)


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("what", ["tell", "ask", "end"])
@on_local_service
async def test_idle_close_of_a_connection_neither_loses_nor_reorders_calls(
    services: Services, turns: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each turn of the loop between the ping before the close and the time after it."""
    endpoint, echo = await connected(services)
    loop = asyncio.get_running_loop()
    under_way: list[asyncio.Task[object]] = []

    async def cross() -> object:
        for _ in range(turns):
            await asyncio.sleep(0)
        if what == "end":
            await endpoint.close()
            return None
        await echo.note(2)
        return None if what == "tell" else await echo.echo("answer")

    ping = ClientConnection.ping

    async def ping_and_cross(connection: ClientConnection, timeout: float) -> bool:
        if not under_way:
            under_way.append(loop.create_task(cross()))
        return await ping(connection, timeout)

    monkeypatch.setattr(ClientConnection, "ping", ping_and_cross)
    await echo.note(1)
    connection = connection_to(services.caller, "host")
    while not under_way:
        await services.let_time_pass(IDLE / 10)
    result = await under_way[0]
    if turns == 0 and what != "end":  # it was used while the ping was under way
        await services.let_time_pass(1)
        assert connection_to(services.caller, "host") is connection
    if what == "end":
        for _ in range(2):
            with pytest.raises(RecipientUnreachableError, match="the endpoint has terminated"):
                await echo.echo(1)
        return
    assert result == (None if what == "tell" else "answer")
    await echo.note(3)
    assert await echo.notes() == (1, 2, 3)
    await until_closed(services.caller, "host")


@simulate(seeds=60, faults=Faults(delay=0.2, until=1000))
async def test_calls_with_random_pauses_are_handled_once_and_in_order(
    simulation: Simulation,
) -> None:
    service = simulation.service("caller")
    echo = await service.connect(await service.spawn(echo_spec("host")), EchoGateway)
    service.connection_idle_timeout = 3.0
    deaths: list[str] = []
    closed = 0
    for number in range(60):
        connection = connection_to(service, "host")
        closed += connection is None
        await echo.note(number)
        match simulation.random.randrange(6):
            case 0:
                assert (await echo.notes())[-1] == number
            case 1:
                service.watch(echo, deaths.append).cancel()
            case 2:
                watch = service.watch(echo, deaths.append)
                await asyncio.sleep(simulation.random.uniform(0, 6))
                watch.cancel()
        await asyncio.sleep(simulation.random.choice((0.0, 0.1, 2.9, 3.0, 3.75, 3.76, 8.0)))
    assert await echo.notes() == tuple(range(60))
    assert deaths == []
    assert closed > 0


class KeepGateway(RpcGateway):
    """Keeps what it is sent."""

    @abstractmethod
    @oneway
    async def keep(self, data: bytes) -> None: ...


class Keep(RpcEndpoint, KeepGateway):
    """Knows how much."""

    kept = 0

    async def keep(self, data: bytes) -> None:
        self.kept += len(data)


async def test_connection_with_a_large_message_in_transit_is_not_closed() -> None:
    """On a slow connection the ping would overtake the message."""
    async with joined(Relay(400)) as it:
        endpoint = Keep(it.host, "keep")
        endpoint.start()
        gateway = await it.caller.connect(endpoint.address, KeepGateway)
        it.connection.where = "what could be reached again"
        kept_at_close: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        it.connection.on_lost(lambda: kept_at_close.set_result(endpoint.kept))
        await gateway.keep(bytes(2_000_000))
        it.caller.connection_idle_timeout = 0.004
        assert await kept_at_close == 2_000_000


class ParkedGateway(RpcGateway):
    """Knows of the calls by which others hear of its process's death."""

    @abstractmethod
    async def parked(self) -> int: ...


class Parked(RpcEndpoint, ParkedGateway):
    """In an actor."""

    async def parked(self) -> int:
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        return sum("park" in name for name in names)


def create_parked(service: RpcService, arguments: object) -> Parked:
    return Parked(service, "parked")


@on_ray
async def test_process_keeps_no_waiting_calls_of_closed_connections(
    services: Services,
) -> None:
    spec = EndpointSpec("Parked", "worker", f"{__name__}:create_parked")
    gateway = await services.caller.connect(await services.caller.spawn(spec), ParkedGateway)
    allow_closing(services)
    for _ in range(5):
        await gateway.parked()
        await until_closed(services.caller, "worker")
    services.caller.connection_idle_timeout = None
    loop = asyncio.get_running_loop()
    give_up = loop.time() + 30
    while await gateway.parked() > 1:
        assert loop.time() < give_up
