"""Messages through Ray's actor calls, for callers that cannot connect to a process directly."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import uuid
from collections.abc import AsyncIterator

import pytest

from flinkray.core.errors import (
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.rpc import RayRpcService
from flinkray.rpc.ray.dialler import Whereabouts
from flinkray.rpc.ray.directory import ProcessRecord, RayDirectory
from tests.ray_client_server import free_port
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, OrderError, Point, echo_spec

pytestmark = pytest.mark.ray


@pytest.fixture
async def service(ray_cluster: None) -> AsyncIterator[RayRpcService]:
    """It starts the processes, and reaches them directly."""
    service = await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", "driver")
    yield service
    await service.close()


@pytest.fixture
async def carried(service: RayRpcService) -> AsyncIterator[RayRpcService]:
    """It reaches them through Ray only."""
    carried = await RayRpcService.open(service.namespace, "outside", transport="ray")
    yield carried
    await carried.close()


def is_carried(service: RayRpcService, process_name: str) -> bool:
    (where,) = (c.where for c in service.connections() if c.process_name == process_name)
    assert isinstance(where, Whereabouts)
    return where.is_carried


async def test_calls_through_ray_behave_as_calls_on_a_direct_connection(
    service: RayRpcService, carried: RayRpcService
) -> None:
    """RPC-08, RPC-09, RPC-24, RPC-32"""
    address = await service.spawn(echo_spec("worker"))
    echo = await carried.connect(address, EchoGateway)
    assert is_carried(carried, "worker")
    assert echo.address == address
    value = (None, -1.5, "ü", b"\0" * 300_000, Point(1, 2.0))
    assert await echo.echo(value) == value
    with pytest.raises(OrderError, match="seven"):
        await echo.fail("order")
    with pytest.raises(RpcTimeoutError, match=r"EchoGateway\.too_slow"):
        await echo.too_slow()
    with pytest.raises(FrameTooLargeError, match="10485760"):
        await echo.echo(bytes(11_000_000))
    with pytest.raises(RpcConnectionError, match="worker/nobody"):
        await carried.connect("worker/nobody", EchoGateway)
    await carried.stop("worker")
    with pytest.raises(RpcConnectionError):
        await service.connect(address, EchoGateway)


async def test_messages_through_ray_are_handled_in_order_and_once(
    service: RayRpcService, carried: RayRpcService
) -> None:
    echo = await carried.connect(await service.spawn(echo_spec("worker")), EchoGateway)
    for begin in range(0, 2000, 100):  # many calls to the actor, in bursts
        await asyncio.gather(*(echo.note(number) for number in range(begin, begin + 50)))
        await asyncio.sleep(0)
        await asyncio.gather(*(echo.note(number) for number in range(begin + 50, begin + 100)))
    assert await echo.notes() == tuple(range(2000))


async def test_slow_handler_does_not_delay_other_calls_through_ray(
    service: RayRpcService, carried: RayRpcService
) -> None:
    echo = await carried.connect(await service.spawn(echo_spec("worker")), EchoGateway)
    hanging = [asyncio.ensure_future(echo.hang()) for _ in range(30)]
    for number in range(20):
        assert await echo.echo(number) == number
    assert not any(call.done() for call in hanging)
    reasons: asyncio.Queue[str] = asyncio.Queue()
    carried.watch(echo, reasons.put_nowait)
    await echo.close_yourself()
    for call in hanging:
        with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.hang"):
            await call
    assert await asyncio.wait_for(reasons.get(), 10)


@pytest.mark.parametrize("max_restarts", [0, -1])
async def test_death_of_a_process_fails_pending_calls_through_ray_and_is_reported(
    service: RayRpcService, carried: RayRpcService, max_restarts: int
) -> None:
    """RPC-23: not by timeout."""
    carried.ask_timeout = 10_000_000
    spec = echo_spec("worker", max_restarts=max_restarts, detached=True)
    echo = await carried.connect(await service.spawn(spec), EchoGateway)
    reasons: asyncio.Queue[str] = asyncio.Queue()
    carried.watch(echo, reasons.put_nowait)
    hanging = asyncio.ensure_future(echo.hang())
    os.kill(await echo.pid(), signal.SIGKILL)
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.hang"):
        await asyncio.wait_for(hanging, 30)
    assert await asyncio.wait_for(reasons.get(), 30)
    with pytest.raises(RecipientUnreachableError):
        await asyncio.wait_for(echo.echo(1), 30)
    await service.kill("worker")


async def test_broken_connection_through_ray_is_opened_again(
    service: RayRpcService, carried: RayRpcService
) -> None:
    echo = await carried.connect(await service.spawn(echo_spec("worker")), EchoGateway)
    await echo.note(1)
    assert await echo.notes() == (1,)
    (connection,) = carried.connections()
    connection.break_off("broken on purpose")
    await echo.note(2)
    assert await echo.notes() == (1, 2)
    assert is_carried(carried, "worker")


async def test_driver_cannot_be_reached_through_ray(
    service: RayRpcService, carried: RayRpcService
) -> None:
    endpoint = EchoEndpoint(service)
    endpoint.start()
    with pytest.raises(RpcConnectionError, match="driver is a driver, no actor"):
        await carried.connect(endpoint.address, EchoGateway)


async def hide(service: RayRpcService, process_name: str) -> ProcessRecord:
    """Have a process say that it listens on another node, where nothing can be reached."""
    directory = RayDirectory(service.namespace)
    record = await service.run_blocking(directory.get, process_name)
    assert record is not None
    hidden = dataclasses.replace(record, host="127.0.0.1", port=free_port(), node_id="other")
    await service.run_blocking(directory.put, process_name, hidden)
    return hidden


async def test_living_process_that_cannot_be_reached_directly_is_called_through_ray(
    service: RayRpcService, caplog: pytest.LogCaptureFixture
) -> None:
    address, other = await asyncio.gather(
        service.spawn(echo_spec("worker")), service.spawn(echo_spec("other"))
    )
    await hide(service, "worker")
    await hide(service, "other")
    client = await RayRpcService.open(service.namespace, "client")
    with caplog.at_level(logging.WARNING):
        echo = await client.connect(address, EchoGateway)
        assert await echo.echo(1) == 1
        assert await (await client.connect(other, EchoGateway)).echo(2) == 2
    assert is_carried(client, "worker")
    assert is_carried(client, "other")
    told = [r.getMessage() for r in caplog.records if "go through Ray's actor calls" in r.message]
    assert len(told) == 1
    assert told[0].startswith("worker is alive and cannot be reached directly")
    # a driver that may not, does not
    direct = await RayRpcService.open(service.namespace, "direct", transport="direct")
    with pytest.raises(RpcConnectionError, match="worker"):
        await direct.connect(address, EchoGateway)
    await asyncio.gather(client.close(), direct.close())


async def test_dead_process_cannot_be_reached_through_ray(service: RayRpcService) -> None:
    """RPC-07"""
    address = await service.spawn(echo_spec("worker"))
    record = await hide(service, "worker")
    await service.kill("worker")
    await service.run_blocking(RayDirectory(service.namespace).put, "worker", record)
    client = await RayRpcService.open(service.namespace, "client")
    with pytest.raises(RpcConnectionError, match="worker/echo"):
        await asyncio.wait_for(client.connect(address, EchoGateway), 30)
    await client.close()
