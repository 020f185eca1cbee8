"""Whoever sends faster than the handlers are done waits, with bounded buffers on both sides."""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections.abc import AsyncIterator

import pytest

from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint, RpcGateway, ask_timeout, oneway
from flinkray.rpc.wire.frames import FrameStream
from flinkray.rpc.wire.transport import WRITE_HIGH_WATER
from tests.rpc.sockets import joined

KIBIBYTE = 1024
PENDING_BYTES = 1024 * KIBIBYTE
PENDING_CALLS = 200
# what may lie between: the sender's own buffer, what is written at once, and the sockets' buffers
UNDERWAY_BYTES = WRITE_HIGH_WATER + 512 * KIBIBYTE


class SinkGateway(RpcGateway):
    """Takes what it is given, in its own time."""

    @abstractmethod
    @oneway
    async def take(self, number: int, data: bytes) -> None: ...

    @abstractmethod
    @ask_timeout(None)
    async def swallow(self, number: int, data: bytes) -> None: ...

    @abstractmethod
    async def took(self) -> int: ...


class Sink(RpcEndpoint, SinkGateway):
    """Done with nothing before :attr:`may_go_on` is set."""

    def __init__(self, service: LocalRpcService, endpoint_id: str = "sink") -> None:
        super().__init__(service, endpoint_id)
        self.may_go_on = asyncio.Event()
        self.taken: list[int] = []
        self.held = 0
        self.most_held = 0

    async def take(self, number: int, data: bytes) -> None:
        self.taken.append(number)
        self.held += len(data)
        self.most_held = max(self.most_held, self.held)
        await self.may_go_on.wait()
        self.held -= len(data)

    async def swallow(self, number: int, data: bytes) -> None:
        await self.take(number, data)

    async def took(self) -> int:
        return len(self.taken)


class Pair:
    """A slow host, its caller, and another caller of the same host."""

    def __init__(self, caller: LocalRpcService, other: LocalRpcService, sink: Sink) -> None:
        self.caller = caller
        self.other = other
        self.sink = sink

    async def connect(self) -> tuple[SinkGateway, SinkGateway]:
        return (
            await self.caller.connect(self.sink.address, SinkGateway),
            await self.other.connect(self.sink.address, SinkGateway),
        )


def slow_host(name: str, network: LocalNetwork) -> LocalRpcService:
    service = LocalRpcService(name, network)
    service.max_pending_bytes = PENDING_BYTES
    service.max_pending_calls = PENDING_CALLS
    return service


@pytest.fixture(params=["memory", "socket"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    if request.param == "memory":
        network = LocalNetwork()
        host, caller = slow_host("host", network), LocalRpcService("caller", network)
        sink = Sink(host)
        sink.start()
        yield Pair(caller, LocalRpcService("other", network), sink)
        await caller.close()
        await host.close()
    else:
        async with joined(make=slow_host) as here:
            sink = Sink(here.host)
            sink.start()
            yield Pair(here.caller, LocalRpcService("other", here.host.network), sink)


async def quiet(progress: list[int]) -> None:
    """Return when nothing has happened for many turns of the loop."""
    seen = -1
    while seen != len(progress):
        seen = len(progress)
        for _ in range(200):
            await asyncio.sleep(0)


async def test_asks_that_exceed_the_buffers_wait_for_their_answers_with_their_callers(
    pair: Pair,
) -> None:
    """An ask does not wait before it is sent: its caller waits for the answer."""
    gateway, other = await pair.connect()
    callers, asks_each, size = 200, 3, 16 * KIBIBYTE
    answered: list[int] = []

    async def ask(caller: int) -> None:
        for number in range(asks_each):
            await gateway.swallow(caller * asks_each + number, bytes(size))
            answered.append(number)

    asking = asyncio.gather(*(ask(caller) for caller in range(callers)))
    await quiet(pair.sink.taken)
    assert answered == []
    assert pair.sink.most_held <= PENDING_BYTES + size + KIBIBYTE
    assert len(pair.sink.taken) < callers
    (connection,) = pair.caller.connections()
    assert len(connection._pending) == callers
    # others go on
    assert await asyncio.wait_for(other.took(), 10) == len(pair.sink.taken)
    pair.sink.may_go_on.set()
    await asking
    assert sorted(pair.sink.taken) == list(range(callers * asks_each))
    for caller in range(callers):  # and in order
        own = [n for n in pair.sink.taken if n // asks_each == caller]
        assert own == sorted(own)


async def test_teller_of_a_slow_handler_waits_and_memory_stays_bounded(pair: Pair) -> None:
    teller, other = await pair.connect()
    sent: list[int] = []

    async def tell() -> None:
        for number in range(1000):
            await teller.take(number, bytes(16 * KIBIBYTE))
            sent.append(number)

    telling = asyncio.ensure_future(tell())
    await quiet(sent)
    assert not telling.done()
    held_at_most = PENDING_BYTES + 17 * KIBIBYTE
    assert pair.sink.most_held <= held_at_most
    assert len(sent) * 16 * KIBIBYTE <= held_at_most + UNDERWAY_BYTES
    # others go on
    assert await other.took() == len(pair.sink.taken)
    pair.sink.may_go_on.set()
    await telling
    assert await teller.took() == 1000
    assert pair.sink.taken == list(range(1000))
    assert pair.sink.most_held <= held_at_most


async def test_stream_on_a_local_socket_sets_no_keepalive_options() -> None:
    """Keepalive options belong to TCP; other sockets refuse them."""
    loop = asyncio.get_running_loop()
    problems: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, problem: problems.append(problem))
    mine, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(FrameStream, sock=theirs)
    transport.abort()
    mine.close()
    await asyncio.sleep(0)
    assert problems == []
