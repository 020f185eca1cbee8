"""The sockets on which a process accepts its peers.

A peer that has connected and has not yet proved that it belongs to the cluster is a *stranger*. The
number of strangers is limited, so that they cost a bounded number of file descriptors and tasks.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from flinkray.rpc.wire.frames import FrameStream
from flinkray.rpc.wire.tls import Tls

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 5.0
"""Seconds that a new peer has for TLS, and again for the handshake."""

MAX_STRANGERS = 256
"""The most strangers at one time."""

PATIENCE = 0.5
"""Seconds that a stranger may stay at least when there are too many strangers.

Then it is refused to make room for waiting peers; a good peer needs only milliseconds.
"""

_BACKLOG = 1024
_EXHAUSTED_PAUSE = 1.0
"""Seconds until the next accept after the process ran out of file descriptors."""


class Listener:
    """Accepts peers over TCP (with TLS if configured) and, on Linux, an abstract Unix socket."""

    def __init__(
        self,
        new_stream: Callable[[], FrameStream],
        welcome: Callable[[FrameStream], Coroutine[Any, Any, None]],
        refuse: Callable[[str], None],
        create_task: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Create a listener without sockets.

        *welcome* gets the stream of each new peer, *refuse* the reason of each refused peer.
        """
        self._new_stream = new_stream
        self._welcome = welcome
        self._refuse = refuse
        self._create_task = create_task
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._loops: list[asyncio.Task[None]] = []
        self._strangers: dict[asyncio.Task[None], float] = {}
        """The strangers with the loop's time when each came, oldest first."""
        self._leaving: asyncio.Future[None] | None = None
        """Completes when a stranger leaves; None: nobody waits for that."""

    @property
    def strangers(self) -> int:
        """The number of strangers: peers that have connected and have not proved who they are."""
        return len(self._strangers)

    @property
    def has_tls(self) -> bool:
        """Whether peers that connect over TCP have to use TLS."""
        return self._tls is not None

    def listen_tcp(self, host: str) -> int:
        """Listen on TCP and return the port.

        If *host* is not an address of this machine (NAT), the socket listens on all addresses.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        except OSError:
            listening = socket.create_server(("", 0), family=family, backlog=_BACKLOG)
        self._serve(listening, self._tls)
        port: int = listening.getsockname()[1]
        return port

    def listen_unix(self, name: str) -> str | None:
        """Listen on an abstract Unix socket, which leaves no file, and return its path.

        None: the platform has no abstract sockets. TLS is never used here, as the data stays on
        this machine.
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
                continue  # the peer was gone before it was accepted
            except OSError as error:
                logger.warning("no peer can be accepted: %s", error)
                await asyncio.sleep(_EXHAUSTED_PAUSE)
                continue
            stranger = self._create_task(self._begin(accepted, tls), "welcome a peer")
            self._strangers[stranger] = loop.time()
            stranger.add_done_callback(self._left)

    async def _room(self) -> None:
        """Wait until there is room for another stranger. The oldest is refused if it takes too long
        to prove that it belongs to the cluster."""
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


MAX_LINES = 5
"""The most log lines in each period; further refusals are only counted."""

PERIOD = 10.0
"""The length of a period in seconds."""

_LONGEST = 300
"""The most characters of a reason, as a stranger's data may be part of the reason."""


class RefusalLog:
    """Limits the log lines about refused peers, as any peer can cause many refusals."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        """Create a log without lines. *clock* returns monotonic seconds."""
        self._logger = logger
        self._clock = clock
        self._period_ends = clock()
        self._lines = 0
        self._suppressed = 0

    def refused(self, what: str, reason: str) -> None:
        """Log that *what* was refused, and why; a long *reason* is cut."""
        now = self._clock()
        if now >= self._period_ends:
            self.tell_rest()
            self._period_ends = now + PERIOD
            self._lines = 0
        if self._lines == MAX_LINES:
            self._suppressed += 1
            return
        self._lines += 1
        if len(reason) > _LONGEST:
            reason = f"{reason[:_LONGEST]} …"
        self._logger.warning("%s: %s", what, reason)

    def tell_rest(self) -> None:
        """Log how many refusals were not logged one by one in the past period, if any."""
        suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            self._logger.warning("%d more refusals are not told one by one", suppressed)


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """The host to listen on, and the means by which both sides of a connection authenticate."""

    host: str
    node_id: str
    """The id of the node; processes with the same id can use Unix sockets."""
    secret: bytes = field(repr=False)
    """The secret of the cluster."""
    tls: Tls | None
    """The TLS contexts for connections between nodes; None: TLS is off."""
