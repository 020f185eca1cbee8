"""What a service does for its endpoints, whatever carries its frames."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from flinkray import rpc
from flinkray.core.errors import (
    HandshakeError,
    RecipientUnreachableError,
    RpcConnectionError,
)
from flinkray.core.ids import JobMasterId
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint, RpcGateway
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.connection_pool import Opened
from flinkray.rpc.wire.envelope import ENDED, Kind
from flinkray.testing.virtual_time import on_virtual_time, run_on_virtual_time
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, Leader, LeaderGateway, OtherGateway
from tests.rpc.peers import Peer

# --- the book of endpoints ------------------------------------------------------------------------


@on_virtual_time
async def test_endpoint_id_can_be_used_again_after_its_endpoint_has_ended() -> None:
    service = LocalRpcService("host")
    first = EchoEndpoint(service)
    with pytest.raises(ValueError, match="there is an endpoint at host/echo already"):
        EchoEndpoint(service)
    assert service.endpoints() == [first]
    await first.close()
    second = EchoEndpoint(service)
    assert service.endpoints() == [second]
    await service.close()
    with pytest.raises(RuntimeError, match="the RPC service of host is closed"):
        EchoEndpoint(service, "later")


class NotAsyncGateway(RpcGateway):
    """One method cannot be called from outside."""

    def look(self) -> int:
        return 1


class NotAsync(RpcEndpoint, NotAsyncGateway):
    """An endpoint of that gateway."""


@on_virtual_time
async def test_endpoint_with_an_invalid_gateway_class_is_refused_when_it_is_created() -> None:
    service = LocalRpcService("host")
    with pytest.raises(TypeError, match=r"NotAsyncGateway\.look is not declared with async def"):
        NotAsync(service, "look")
    assert service.endpoints() == []


@on_virtual_time
async def test_endpoint_numbers_begin_at_one_and_none_is_used_twice() -> None:
    service = LocalRpcService("host")
    peer = Peer(service)
    for _ in range(3):
        endpoint = EchoEndpoint(service)
        peer.resolve("echo")
        await endpoint.close()
    numbers = [value[0] for kind, _, value in peer.take() if kind is Kind.RESULT]
    assert numbers == [1, 2, 3]


@on_virtual_time
async def test_self_gateway_of_an_endpoint_calls_with_its_token_while_it_lives() -> None:
    service = LocalRpcService("host")
    leader = Leader(service, JobMasterId(b"n" * 16))
    leader.start()
    gateway = service.self_gateway(leader, LeaderGateway)
    assert await gateway.lead() == str(leader.fencing_token)
    with pytest.raises(TypeError, match="Leader does not implement OtherGateway"):
        service.self_gateway(leader, OtherGateway)
    leader.on_fatal_error(RuntimeError("broken on purpose"))
    await asyncio.wait({leader.terminated})
    Leader(service, JobMasterId(b"o" * 16)).start()
    with pytest.raises(RecipientUnreachableError, match=f"{ENDED}: .*broken on purpose"):
        await gateway.lead()
    with pytest.raises(RecipientUnreachableError, match=f"host/leader: {ENDED}: .*on purpose"):
        service.self_gateway(leader, LeaderGateway)


# --- connecting -----------------------------------------------------------------------------------


@on_virtual_time
async def test_error_of_a_failed_connect_names_the_address_and_the_reason() -> None:
    """RPC-33"""
    network = LocalNetwork()
    caller, host = LocalRpcService("caller", network), LocalRpcService("host", network)
    EchoEndpoint(host)
    for address, why in [
        ("nobody/echo", "cannot connect to nobody/echo: no process nobody is running"),
        ("host/other", "cannot connect to host/other: no endpoint at host/other"),
        ("caller/other", "cannot connect to caller/other: no endpoint at caller/other"),
    ]:
        with pytest.raises(RpcConnectionError) as refused:
            await caller.connect(address, EchoGateway)
        assert str(refused.value) == why
    with pytest.raises(RpcConnectionError, match="without"):
        await caller.connect("without", EchoGateway)
    with pytest.raises(HandshakeError) as wrong:
        await caller.connect("host/echo", OtherGateway)
    assert str(wrong.value).startswith("host/echo is a EchoEndpoint and does not implement")


@on_virtual_time
async def test_connect_reaches_the_new_process_when_the_known_one_was_replaced() -> None:
    network = LocalNetwork()
    caller, old = LocalRpcService("caller", network), LocalRpcService("host", network)
    EchoEndpoint(old).start()
    await (await caller.connect("host/echo", EchoGateway)).echo(1)
    network.crash("host")  # the caller has yet to hear of it
    EchoEndpoint(LocalRpcService("host", network)).start()
    echo = await caller.connect("host/echo", EchoGateway)
    assert await echo.echo(2) == 2


class Dialling(LocalRpcService):
    """Counts the connections that it opens, and tells when one is open."""

    attempts = 0

    def __init__(self, process_name: str, network: LocalNetwork) -> None:
        super().__init__(process_name, network)
        self.opened = asyncio.Event()

    async def _open_transport(self, process_name: str, where: str | None) -> Opened:
        self.attempts += 1
        return await super()._open_transport(process_name, where)

    def _connection_opened(self, connection: ClientConnection) -> None:
        self.opened.set()


@on_virtual_time
async def test_connect_to_a_process_that_dies_meanwhile_fails_after_one_attempt() -> None:
    network = LocalNetwork()
    caller, host = Dialling("caller", network), LocalRpcService("host", network)
    EchoEndpoint(host).start()
    connecting = asyncio.ensure_future(caller.connect("host/echo", EchoGateway))
    await caller.opened.wait()
    network.crash("host")
    EchoEndpoint(LocalRpcService("host", network)).start()
    with pytest.raises(RpcConnectionError, match=r"cannot connect to host/echo: .*host died"):
        await connecting
    assert caller.attempts == 1


# --- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processors", "threads"), [(None, 5), (1, 5), (8, 12), (27, 31), (28, 32), (200, 32)]
)
async def test_executor_has_four_threads_more_than_processors_and_at_most_32(
    monkeypatch: pytest.MonkeyPatch, processors: int | None, threads: int
) -> None:
    """As many as the default executor of Python has."""
    service = LocalRpcService("host")
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    executor = service.executor
    monkeypatch.undo()
    assert isinstance(executor, ThreadPoolExecutor)
    assert executor._max_workers == threads
    assert service.executor is executor
    await service.close()


async def test_blocking_work_runs_in_a_named_thread_and_does_not_delay_close() -> None:
    service = LocalRpcService("host")
    assert service.has_threads

    def name(prefix: str, suffix: str) -> str:
        return f"{prefix}{threading.current_thread().name}{suffix}"

    assert (await service.run_blocking(name, "<", ">")).startswith("<rpc-host_")
    executor = service.executor
    may_end = threading.Event()
    busy = executor.submit(may_end.wait, 10.0)
    await service.close()
    try:
        assert not busy.done()
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(int)
    finally:
        may_end.set()
    assert busy.result(10)


# --- the end --------------------------------------------------------------------------------------


class Stubborn(EchoEndpoint):
    """Takes a second to stop, and may fail then."""

    error: Exception | None = None
    has_stopped = False

    async def on_stop(self) -> None:
        await asyncio.sleep(1)
        self.has_stopped = True
        if self.error is not None:
            raise self.error


@on_virtual_time
async def test_closing_a_service_ends_endpoints_tasks_and_peers_and_raises_first_error() -> None:
    network = LocalNetwork()
    service, caller = LocalRpcService("host", network), LocalRpcService("caller", network)
    endpoints = [Stubborn(service, f"echo_{number}") for number in range(3)]
    for endpoint in endpoints:
        endpoint.start()
    endpoints[1].error, endpoints[2].error = ValueError("the first"), ValueError("the second")
    echo = await caller.connect("host/echo_0", EchoGateway)
    story: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            story.append("the service's work is over")

    service.create_task(work(), "work")
    service.schedule_periodically(lambda: story.append("periodic work"), 0.7)
    closing = [asyncio.ensure_future(service.close()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="closed"):
        EchoEndpoint(service)
    done, _ = await asyncio.wait(closing, timeout=0.9)
    assert not done
    for one in closing:
        with pytest.raises(ValueError, match="the first"):
            await one
    assert all(endpoint.has_stopped for endpoint in endpoints)
    assert story == ["periodic work", "the service's work is over"]
    assert not service.is_up
    assert not service.connections()
    assert not service.endpoints()
    await asyncio.sleep(1)
    assert not service._peers
    assert caller.connections() == []
    with pytest.raises(RecipientUnreachableError):
        await echo.echo(1)
    with pytest.raises(RpcConnectionError, match="the RPC service of host is closed"):
        await service.connect("caller/echo", EchoGateway)


@on_virtual_time
async def test_closing_a_service_continues_when_its_caller_stops_waiting() -> None:
    service = LocalRpcService("host")
    endpoint = Stubborn(service)
    endpoint.start()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(service.close(), 0.5)
    await service.close()
    assert endpoint.has_stopped


@on_virtual_time
async def test_deadlines_of_pending_calls_are_removed_when_their_service_closes() -> None:
    service = LocalRpcService("caller")
    EchoEndpoint(service).start()
    await asyncio.sleep(0)
    peer = Peer(service)
    peer.ask(1, "hang", timeout=10.0)
    await asyncio.sleep(1)
    assert len(service.deadlines_of_calls) == 1
    await service.close()
    assert len(service.deadlines_of_calls) == 0
    assert peer.wire.story == ["close"]


class Unending(LocalRpcService):
    """A process that cannot end."""

    async def _end_process(self) -> None:
        raise RuntimeError(f"{self.process_name} cannot end")


def test_error_raised_while_a_process_stops_on_request_is_raised() -> None:
    async def stop() -> None:
        network = LocalNetwork()
        Unending("host", network)
        await LocalRpcService("caller", network).stop("host")
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="host cannot end"):
        run_on_virtual_time(stop())


def test_unknown_name_of_the_rpc_package_raises_attribute_error() -> None:
    """The package has a ``__getattr__``, so that only users of the Ray service import Ray."""
    with pytest.raises(AttributeError, match=r"'flinkray\.rpc' has no attribute 'Nothing'"):
        rpc.Nothing  # noqa: B018
