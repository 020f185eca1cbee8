"""Connections that break between processes that live."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import RpcService
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.connection_pool import FIRST_PAUSE, Opened
from flinkray.rpc.serving.base_service import BaseRpcService
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, Leader, LeaderGateway, echo_spec
from tests.rpc.on_services import Services, on_every_service, on_local_service


def connection_to(service: RpcService, process: str) -> ClientConnection:
    assert isinstance(service, BaseRpcService)
    (connection,) = (c for c in service.connections() if c.process_name == process)
    return connection


async def break_connection(services: Services) -> None:
    """The socket goes, the processes stay; as by a reset on the way."""
    connection = connection_to(services.caller, "host")
    connection.break_off("the connection broke")


class Attempts:
    """Counts a service's attempts to open connections."""

    def __init__(self, service: RpcService, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(service, BaseRpcService)
        self.count = 0
        open_transport = service._pool._open_transport

        async def counted(process_name: str, where: object) -> Opened:
            self.count += 1
            return await open_transport(process_name, where)

        monkeypatch.setattr(service._pool, "_open_transport", counted)


async def connected(services: Services) -> tuple[EchoEndpoint, EchoGateway]:
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    return endpoint, await services.caller.connect(endpoint.address, EchoGateway)


@on_every_service
async def test_calls_after_a_break_are_handled_once_and_in_order(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, echo = await connected(services)
    second = await services.caller.connect(endpoint.address, EchoGateway)
    attempts = Attempts(services.caller, monkeypatch)
    await echo.note(0)
    assert await echo.notes() == (0,)
    await break_connection(services)
    # all callers share one attempt, also through different proxies
    await asyncio.gather(
        *((echo if number % 3 else second).note(number) for number in range(1, 200))
    )
    assert await second.notes() == tuple(range(200))
    assert attempts.count == 1


@on_local_service
async def test_endpoint_that_ended_during_a_break_is_reported_as_ended(
    services: Services,
) -> None:
    """RPC-23: a successor at the same address is another endpoint."""
    endpoint, echo = await connected(services)
    reasons: asyncio.Queue[str] = asyncio.Queue()
    services.caller.watch(echo, reasons.put_nowait)
    other = Leader(services.host, JobMasterId(b"o" * 16))
    other.start()
    leader = await services.caller.connect(other.address, LeaderGateway, other.fencing_token)
    await leader.lead()
    await break_connection(services)
    await endpoint.close()
    EchoEndpoint(services.host).start()
    with pytest.raises(RecipientUnreachableError, match="the endpoint has terminated"):
        await echo.echo(1)
    assert await reasons.get() == "the endpoint has terminated"
    await leader.lead()


@on_local_service
async def test_watch_survives_broken_connections_and_reports_the_end(services: Services) -> None:
    endpoint, echo = await connected(services)
    reasons: asyncio.Queue[str] = asyncio.Queue()
    services.caller.watch(echo, reasons.put_nowait)
    services.caller.watch(endpoint.address, reasons.put_nowait)
    await echo.echo(1)
    for _ in range(3):
        await break_connection(services)
        assert await echo.echo(2) == 2
    assert reasons.empty()
    await break_connection(services)
    await endpoint.close()
    assert [await reasons.get() for _ in range(2)] == ["the endpoint has terminated"] * 2


async def killed(services: Services) -> EchoGateway:
    """A proxy whose connection has broken because the process died."""
    address = await services.caller.spawn(echo_spec("worker"))
    echo = await services.caller.connect(address, EchoGateway)
    await echo.echo(1)
    lost = asyncio.Event()
    connection_to(services.caller, "worker").on_lost(lost.set)
    await services.crash(address)
    await asyncio.wait_for(lost.wait(), 10)
    return echo


@on_every_service
async def test_calls_to_a_dead_process_fail_at_once_with_few_connection_attempts(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPC-23"""
    services.caller.ask_timeout = 10_000_000
    echo = await killed(services)
    attempts = Attempts(services.caller, monkeypatch)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    calls = 0
    while calls < 200 or loop.time() - begin < 2 * FIRST_PAUSE:
        results = await asyncio.gather(*(echo.echo(1) for _ in range(100)), return_exceptions=True)
        assert all(type(result) is RecipientUnreachableError for result in results)
        calls += len(results)
        await services.let_time_pass(0.01)
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.note"):
        await echo.note(1)
    # one for all callers, and the pauses between them double
    assert 1 <= attempts.count <= 2 + (loop.time() - begin) / FIRST_PAUSE
    assert attempts.count < calls / 20
    with pytest.raises(RpcConnectionError):
        await services.caller.connect("worker/echo", EchoGateway)


@on_every_service
async def test_proxy_of_a_dead_process_does_not_reach_a_new_process_of_the_name(
    services: Services,
) -> None:
    """RPC-23: not even an endpoint with the same number."""
    old = await killed(services)
    address = await services.caller.spawn(echo_spec("worker"))
    new = await services.caller.connect(address, EchoGateway)
    await new.note(1)
    with pytest.raises(RecipientUnreachableError, match="another process named worker has come"):
        await old.note(2)
    with pytest.raises(RecipientUnreachableError, match="another process named worker has come"):
        await old.echo(3)
    assert await new.notes() == (1,)


@on_local_service
async def test_cancelled_connect_does_not_stop_other_connects(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    assert isinstance(services.caller, BaseRpcService)
    may_open, begun = asyncio.Event(), asyncio.Event()
    open_transport = services.caller._pool._open_transport

    async def held_up(process_name: str, where: object) -> Opened:
        begun.set()
        await may_open.wait()
        return await open_transport(process_name, where)

    monkeypatch.setattr(services.caller._pool, "_open_transport", held_up)
    first, second = (
        asyncio.ensure_future(services.caller.connect(endpoint.address, EchoGateway))
        for _ in range(2)
    )
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    may_open.set()
    assert await (await second).echo(1) == 1
