"""Closes connections of silent clients, as each connection takes a file descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

_LOOKS = 4
"""How many times connections are checked within the idle timeout."""


class IdleConnections:
    """Closes connections on which no request is handled for the idle timeout.

    The client may send nothing, send the head of a request byte by byte, or not read its answer.
    This is a middleware, so that it sees the requests. Use it on one event loop.
    """

    __middleware_version__ = 1

    def __init__(self, most_idle: float) -> None:
        """Create the middleware. *most_idle* is the idle timeout in seconds."""
        self._most_idle = most_idle
        self._since: dict[RequestHandler, float] = {}
        """The time at which each checked connection became idle, by the loop's clock."""
        self._busy: set[RequestHandler] = set()
        self._next_look: asyncio.TimerHandle | None = None

    async def __call__(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connection = request.protocol
        self._busy.add(connection)
        try:
            return await handler(request)
        finally:
            self._busy.discard(connection)
            self._since[connection] = asyncio.get_running_loop().time()

    def watch(self, connections: Callable[[], Iterable[RequestHandler]]) -> None:
        """Check the open connections now and again, until :meth:`close`."""
        loop = asyncio.get_running_loop()
        self._look(connections(), loop.time())
        delay = self._most_idle / _LOOKS
        self._next_look = loop.call_later(delay, self.watch, connections)

    def _look(self, connections: Iterable[RequestHandler], now: float) -> None:
        self._since = {
            connection: now if connection in self._busy else self._since.get(connection, now)
            for connection in connections
        }
        for connection, since in self._since.items():
            if now - since >= self._most_idle and connection.transport is not None:
                connection.transport.abort()  # close would wait until all is read

    def close(self) -> None:
        """Stop checking. Idempotent."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
