"""Who connects and does not prove that it belongs to the cluster costs little, and nobody else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc.wire import handshake, listener
from flinkray.rpc.wire.frames import FrameStream
from flinkray.rpc.wire.listener import MAX_STRANGERS, Listener

SECRET = b"s" * 32
MANY = 2 * MAX_STRANGERS + 50


class Process:
    """Listens, and knows who has come."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.refused: list[str] = []
        self.came: asyncio.Queue[str] = asyncio.Queue()
        self.streams: list[FrameStream] = []
        self.most_streams = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.listener = Listener(
            self.new_stream, self.welcome, self.refused.append, self.create_task, None
        )
        self.port = self.listener.listen_tcp("127.0.0.1")

    def create_task(self, coroutine: object, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(coroutine)  # type: ignore[arg-type]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def new_stream(self) -> FrameStream:
        stream = FrameStream()
        self.streams.append(stream)
        self.most_streams = max(self.most_streams, self.listener.strangers)
        return stream

    async def welcome(self, stream: FrameStream) -> None:
        try:
            identity = await asyncio.wait_for(
                handshake.receive(stream, SECRET, "host", "1"), listener.HANDSHAKE_TIMEOUT
            )
        except (RpcConnectionError, asyncio.TimeoutError) as error:
            self.refused.append(repr(error))
            stream.close()
        except asyncio.CancelledError:
            stream.abort("turned away")
            raise
        else:
            self.came.put_nowait(identity)

    async def connect(self) -> FrameStream:
        _, stream = await self.loop.create_connection(FrameStream, "127.0.0.1", self.port)
        await handshake.introduce(stream, SECRET, "honest#1", "host", "1")
        return stream


@asynccontextmanager
async def process() -> AsyncIterator[Process]:
    here = Process()
    yield here
    await here.listener.close()
    for task in tuple(here.tasks):
        task.cancel()
    for stream in here.streams:
        stream.close()
    if here.tasks:
        await asyncio.wait(here.tasks)


async def half_open(port: int, count: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    strangers = []
    for _ in range(count):
        stranger = socket.socket()
        stranger.setblocking(False)
        await loop.sock_connect(stranger, ("127.0.0.1", port))
        strangers.append(stranger)
    return strangers


async def test_half_open_connections_are_bounded_and_do_not_block_a_peer_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "PATIENCE", 0.05)
    async with process() as here:
        threads = threading.active_count()
        strangers = await half_open(here.port, MANY)
        stream = await asyncio.wait_for(here.connect(), 5 * listener.HANDSHAKE_TIMEOUT)
        assert await here.came.get() == "honest#1"
        assert here.most_streams <= MAX_STRANGERS
        assert here.listener.strangers <= MAX_STRANGERS
        assert len([line for line in here.refused if "too slow" in line]) >= MANY - MAX_STRANGERS
        assert threading.active_count() == threads
        assert len(here.tasks) <= MAX_STRANGERS + 1
        for stranger in strangers:
            stranger.close()
        stream.close()


async def test_unknown_clients_that_stay_silent_are_disconnected_after_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 0.1)
    async with process() as here:
        strangers = await half_open(here.port, 20)
        for stranger in strangers:
            with suppress(ConnectionError):
                assert await here.loop.sock_recv(stranger, 1) == b""
            stranger.close()
        assert len(here.refused) == 20
        stream = await here.connect()
        assert await here.came.get() == "honest#1"
        stream.close()
