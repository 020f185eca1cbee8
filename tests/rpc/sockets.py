"""Two services of this process that talk through real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.wire.frames import FrameStream


@dataclass
class Joined:
    """*caller* reaches *host* by a socket, and not otherwise."""

    caller: LocalRpcService
    host: LocalRpcService
    connection: ClientConnection
    stream: FrameStream
    """The host's end."""


class Relay:
    """A wire that passes on so many bytes with each turn of the loop."""

    def __init__(self, bytes_per_turn: int) -> None:
        self.passed = 0
        """Bytes from the caller to the host."""
        self._bytes_per_turn = bytes_per_turn
        self._turn = asyncio.Condition()

    async def run(self, caller: socket.socket, host: socket.socket) -> None:
        await asyncio.gather(self._pass_on(caller, host, True), self._pass_on(host, caller, False))

    async def _pass_on(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, self._bytes_per_turn):
            await loop.sock_sendall(target, data)
            await asyncio.sleep(0)
            if counts:
                async with self._turn:
                    self.passed += len(data)
                    self._turn.notify_all()
        target.shutdown(socket.SHUT_WR)

    async def until(self, number: int) -> None:
        """So many bytes have been passed on."""
        async with self._turn:
            await self._turn.wait_for(lambda: self.passed >= number)


def small_pair() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets that keep as little as they can."""
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return pair


@asynccontextmanager
async def joined(
    relay: Relay | None = None,
    make: Callable[[str, LocalNetwork], LocalRpcService] = LocalRpcService,
) -> AsyncIterator[Joined]:
    """*make* makes the host."""
    loop = asyncio.get_running_loop()
    caller = LocalRpcService("caller")
    host = make("host", LocalNetwork())
    near, far = small_pair()
    relaying: asyncio.Task[None] | None = None
    if relay is not None:
        relay_near, relay_far = near, far
        near, beyond = small_pair()
        relay_near.close()
        relay_far.close()
        before, far = small_pair()
        relaying = loop.create_task(relay.run(beyond, before))
    _, near_stream = await loop.create_connection(FrameStream, sock=near)
    _, far_stream = await loop.create_connection(FrameStream, sock=far)
    connection = ClientConnection("host", host.incarnation, near_stream, caller.deadlines)
    caller._pool.keep(connection)
    far_stream.attach(host.new_peer(far_stream, caller.identity))
    near_stream.attach(connection)
    yield Joined(caller, host, connection, far_stream)
    await caller.close()
    await host.close()
    if relaying is not None:
        await relaying
        beyond.close()
        before.close()
