"""Connections whose clients say nothing: each keeps a descriptor of the endpoint's process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

_LOOKS = 4
"""At them, within the time for which one may be idle."""


class IdleConnections:
    """Closes those on which no request is being worked on for a time: nothing comes, the head of a
    request comes a byte at a time, or the client does not read what it was answered.  A middleware,
    so that it knows of requests.  Use on one event loop."""

    __middleware_version__ = 1

    def __init__(self, most_idle: float) -> None:
        """*most_idle*: seconds."""
        self._most_idle = most_idle
        self._since: dict[RequestHandler, float] = {}
        """By the loop's clock, of those that were looked at."""
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
        """Look at those that are open, until :meth:`close`."""
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
                connection.transport.abort()  # not close, which waits until all is read

    def close(self) -> None:
        """Idempotent."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
