"""The sockets at which a process waits for its peers.

Whoever has connected and has not yet proved that it belongs to the cluster is a *stranger*.  There
are only so many at a time, so that they cost a bounded number of file descriptors and tasks.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from flinkray.rpc.wire.frames import FrameStream

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 5.0
"""Seconds that a new peer has for TLS, and again for proving that it belongs to the cluster."""

MAX_STRANGERS = 256
"""Peers that may be about to prove that they belong to the cluster, at one time."""

PATIENCE = 0.5
"""Seconds that a stranger has in any case while there are so many; then it makes room for others,
which wait in the system's queue until then.  A peer that means well is done within milliseconds."""

_BACKLOG = 1024
_EXHAUSTED_PAUSE = 1.0
"""Seconds until the next peer is accepted after the process had no file descriptor left."""


class Listener:
    """Accepts peers at TCP (with TLS, if so wished) and, on Linux, at an abstract unix socket."""

    def __init__(
        self,
        new_stream: Callable[[], FrameStream],
        welcome: Callable[[FrameStream], Coroutine[Any, Any, None]],
        refuse: Callable[[str], None],
        create_task: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        tls: ssl.SSLContext | None,
    ) -> None:
        """*welcome* gets each new peer's stream; *refuse* hears why one did not come so far."""
        self._new_stream = new_stream
        self._welcome = welcome
        self._refuse = refuse
        self._create_task = create_task
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._loops: list[asyncio.Task[None]] = []
        self._strangers: dict[asyncio.Task[None], float] = {}
        """Oldest first, with the loop's time when they came."""
        self._leaving: asyncio.Future[None] | None = None
        """Done when one of them is no stranger any more."""

    @property
    def strangers(self) -> int:
        """How many there are now."""
        return len(self._strangers)

    @property
    def has_tls(self) -> bool:
        """Whether TCP peers have to speak it."""
        return self._tls is not None

    def listen_tcp(self, host: str) -> int:
        """Returns the port.  Where *host* is not one of this machine's own addresses (NAT), at all
        of them."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        except OSError:
            listening = socket.create_server(("", 0), family=family, backlog=_BACKLOG)
        self._serve(listening, self._tls)
        port: int = listening.getsockname()[1]
        return port

    def listen_unix(self, name: str) -> str | None:
        """Returns the path; None where there are no abstract sockets, which leave no file behind.

        Never with TLS: what goes through it stays on this machine.
        """
        if sys.platform != "linux":
            return None
        listening = socket.socket(socket.AF_UNIX)
        path = f"\0{name}"
        listening.bind(path)
        listening.listen(_BACKLOG)
        self._serve(listening, None)
        return path

    async def close(self) -> None:
        for accepting in self._loops:
            accepting.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    def _serve(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        listening.setblocking(False)
        self._sockets.append(listening)
        self._loops.append(self._create_task(self._accept(listening, tls), "accept peers"))

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room()
            try:
                accepted, _ = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # it was gone before it was accepted
            except OSError as error:
                logger.warning("no peer can be accepted: %s", error)
                await asyncio.sleep(_EXHAUSTED_PAUSE)
                continue
            stranger = self._create_task(self._begin(accepted, tls), "welcome a peer")
            self._strangers[stranger] = loop.time()
            stranger.add_done_callback(self._left)

    async def _room(self) -> None:
        """Wait until there is room for one stranger more."""
        loop = asyncio.get_running_loop()
        while len(self._strangers) >= MAX_STRANGERS:
            oldest, since = next(iter(self._strangers.items()))
            patience = since + PATIENCE - loop.time()
            if patience <= 0:
                self._refuse(f"it was too slow while {MAX_STRANGERS} strangers were here")
                oldest.cancel()
                del self._strangers[oldest]
            else:
                self._leaving = self._leaving or loop.create_future()
                await asyncio.wait({self._leaving}, timeout=patience)

    def _left(self, stranger: asyncio.Task[None]) -> None:
        self._strangers.pop(stranger, None)
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.set_result(None)

    async def _begin(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, stream = await loop.connect_accepted_socket(
                self._new_stream,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT,
            )
        except OSError as error:
            accepted.close()
            self._refuse(f"TLS: {error}")
            return
        await self._welcome(stream)
