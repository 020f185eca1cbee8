"""What a connection keeps of the endpoints at its other end: nothing of those that have ended."""

from __future__ import annotations

import asyncio

import msgpack
import pytest

from flinkray.core.errors import RecipientUnreachableError
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.serving.base_service import BaseRpcService
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION, Kind
from tests.rpc.endpoints import EchoEndpoint, EchoGateway
from tests.rpc.on_services import Services, on_local_service


def kept(owner: object) -> int:
    """Elements in all books of an object itself (those of its deadlines are swept out in time)."""
    return sum(len(book) for book in vars(owner).values() if isinstance(book, dict | set | list))


@on_local_service
async def test_connection_keeps_no_data_of_endpoints_that_have_ended(
    services: Services,
) -> None:
    """Each of the endpoints was called and watched, and its caller knows the end."""

    async def use_one() -> None:
        endpoint = EchoEndpoint(services.host)
        endpoint.start()
        echo = await services.caller.connect(endpoint.address, EchoGateway)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        services.caller.watch(echo, ended.set_result)
        assert await echo.echo(1) == 1
        await endpoint.close()
        assert await ended == "the endpoint has terminated"
        for call in (echo.echo(2), echo.note(3)):
            with pytest.raises(RecipientUnreachableError, match="has terminated"):
                await call

    assert isinstance(services.caller, BaseRpcService)
    assert isinstance(services.host, BaseRpcService)
    await use_one()
    (connection,) = services.caller.connections()
    (peer,) = services.host._peers
    before = kept(connection), kept(peer)
    for _ in range(50):
        await use_one()
    assert services.caller.connections() == [connection]
    assert (kept(connection), kept(peer)) == before


async def test_end_notices_of_endpoints_unknown_to_a_connection_are_dropped() -> None:
    network = LocalNetwork()
    host, caller = LocalRpcService("host", network), LocalRpcService("caller", network)
    endpoint = EchoEndpoint(host)
    endpoint.start()
    echo = await caller.connect(endpoint.address, EchoGateway)
    (connection,) = caller.connections()
    before = kept(connection)
    for number in (0, *range(1000, 2000)):
        notice = (PROTOCOL_VERSION, int(Kind.TERMINATED), number, msgpack.packb(None))
        connection.frame_received(msgpack.packb(notice))
    assert kept(connection) == before
    assert await echo.echo(1) == 1
    await caller.connect(endpoint.address, EchoGateway)
    await caller.close()
    await host.close()


async def test_end_notice_that_arrives_together_with_the_resolved_endpoint_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The notice arrives in the same turn of the loop as the answer."""
    network = LocalNetwork()
    host, caller = LocalRpcService("host", network), LocalRpcService("caller", network)
    endpoint = EchoEndpoint(host)
    endpoint.start()
    receive = ClientConnection.frame_received

    def receive_and_end(connection: ClientConnection, frame: bytes | memoryview) -> None:
        receive(connection, frame)
        number, _ = host.find_endpoint("echo")
        if number:
            host.unregister_endpoint(endpoint)
            notice = (PROTOCOL_VERSION, int(Kind.TERMINATED), number, msgpack.packb(None))
            receive(connection, msgpack.packb(notice))

    monkeypatch.setattr(ClientConnection, "frame_received", receive_and_end)
    echo = await caller.connect(endpoint.address, EchoGateway)
    with pytest.raises(RecipientUnreachableError, match="has terminated"):
        await echo.note(1)
    await caller.close()
    await host.close()


@on_local_service
async def test_watch_of_an_endpoint_in_its_own_process_reports_the_end(services: Services) -> None:
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    echo = endpoint.get_self_gateway(EchoGateway)
    assert await echo.echo(1) == 1
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    services.host.watch(echo, ended.set_result)
    await endpoint.close()
    assert await ended == "the endpoint has terminated"
    with pytest.raises(RecipientUnreachableError, match="has terminated"):
        await echo.note(2)
