"""A line to a server that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flinkray.client.loop_thread import LoopThread


class Line:
    """A port of its own, from which all goes to another one."""

    def __init__(self, loop: LoopThread, target: str) -> None:
        self._loop = loop
        self._target, port = target.rsplit(":", 1)
        self._target_port = int(port)
        self._port = 0
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._server: asyncio.Server
        self.mend()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def cut(self) -> None:
        """What is open is broken, and nobody gets through."""
        self._loop.run(self._cut())

    def mend(self) -> None:
        """The same port is there again."""
        self._loop.run(self._listen())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        self._server.close()
        for _ in range(8):  # turns of the loop, after which those are known that were just let in
            await asyncio.sleep(0)
        for writers in self._connections.values():
            for writer in writers:
                writer.transport.abort()
        await asyncio.gather(*self._connections)

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [back]
        far, there = await asyncio.open_connection(self._target, self._target_port)
        writers.append(there)
        await asyncio.gather(_pass_on(near, there), _pass_on(far, back))
        del self._connections[task]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # it was cut, or one side has left
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@contextmanager
def line_to(target: str) -> Iterator[Line]:
    """*target*: ``host:port``."""
    loop = LoopThread("line")
    try:
        line = Line(loop, target)
        try:
            yield line
        finally:
            line.cut()
    finally:
        loop.close()
