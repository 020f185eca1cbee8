"""Opens and accepts connections between task processes, and proves that both belong to the cluster.
Uses the handshake of :mod:`flinkray.rpc.wire.handshake`, and TLS between nodes if Ray uses TLS."""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine

from flinkray.core.errors import HandshakeError, RpcConnectionError
from flinkray.core.message import message
from flinkray.rpc.wire import handshake
from flinkray.rpc.wire.listener import HANDSHAKE_TIMEOUT, MAX_STRANGERS, PATIENCE, RefusalLog
from flinkray.rpc.wire.tls import SWITCH, Tls
from flinkray.streaming.network.wire import (
    PlainWire,
    TlsWire,
    Wire,
    WireHandshake,
    shake_hands,
)

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_UNIX_BUFFER = 4 * 2**20
"""Bytes requested for socket buffers. The system may give less."""
_EXHAUSTED_PAUSE = 1.0
"""Seconds until the next peer is accepted after the process has run out of file descriptors."""
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""Keep-alive options: a node that disappears is noticed after at most half a minute."""


@message
class DataAddress:
    """Address on which a process receives requests for its partitions."""

    process_name: str
    incarnation: str
    host: str
    port: int
    unix_path: str | None
    node_id: str | None
    """Ray's node id. Processes on the same node use the unix path."""
    has_tls: bool
    """Whether the port speaks TLS."""

    def __str__(self) -> str:
        return f"{self.process_name} at {self.host}:{self.port}"


def data_protocol(process_name: str) -> str:
    """Return the name by which clients of this protocol ask for the process. RPC clients use
    another name, so each side refuses clients of the other protocol."""
    return f"data of {process_name}"


def dial(
    address: DataAddress,
    node_id: str | None,
    identity: str,
    secret: bytes,
    tls: Tls | None,
    timeout: float,
) -> Wire:
    """Connect to a process, do the handshake, and return the connection. Each may take up to
    *timeout* seconds. Raises HandshakeError: another protocol or secret. RpcConnectionError: the
    process does not run or answer."""
    try:
        wire = _open(address, node_id, tls, timeout)
    except ssl.SSLError as error:
        raise HandshakeError(f"no TLS connection to {address}: {error}") from error
    except OSError as error:
        raise RpcConnectionError(f"no task process {address} is running: {error!r}") from error
    try:
        shake_hands(
            handshake.introduce(
                WireHandshake(wire),
                secret,
                identity,
                data_protocol(address.process_name),
                address.incarnation,
            )
        )
        wire.socket.settimeout(None)
    except OSError as error:
        wire.close()
        raise RpcConnectionError(f"{address} did not answer the handshake: {error!r}") from error
    except RpcConnectionError:
        wire.close()
        raise
    return wire


def _open(
    address: DataAddress, node_id: str | None, tls: Tls | None, timeout: float
) -> PlainWire | TlsWire:
    if address.unix_path is not None and address.node_id == node_id:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(timeout)
            sock.connect(address.unix_path)
        except OSError:
            sock.close()  # dead, or in another container on this node: TCP will tell
        else:
            return PlainWire(_prepared(sock))
    if address.has_tls != (tls is not None):
        one, other = ("with", "off") if address.has_tls else ("without", "on")
        raise HandshakeError(
            f"{address} listens {one} TLS, which is {other} in this process: set {SWITCH} alike "
            "in the whole cluster"
        )
    sock = _prepared(socket.create_connection((address.host, address.port), timeout))
    if tls is None:
        return PlainWire(sock)
    wire = TlsWire(sock, tls.client, False)
    try:
        wire.go_on_with_handshake()
    except OSError:
        wire.close()
        raise
    return wire


def _prepared(sock: socket.socket) -> socket.socket:
    if sock.family == socket.AF_UNIX:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _UNIX_BUFFER)
        return sock
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


class _Stranger:
    """A connected peer that has not yet proved that it belongs to the cluster.
    Its handshake is a coroutine that suspends when it has to read and no data has arrived."""

    def __init__(self, accepted: socket.socket, course: Coroutine[None, None, _Introduced]) -> None:
        self.socket = accepted
        self.since = time.monotonic()
        self._course = course

    def go_on(self) -> _Introduced | None:
        """Continue the handshake as far as data has arrived. Returns the peer when the handshake is
        complete, None if more data is needed. Raises OSError, RpcConnectionError: the peer is
        refused or has closed the connection."""
        try:
            self._course.send(None)
        except StopIteration as done:
            introduced: _Introduced = done.value
            return introduced
        return None

    def close(self) -> None:
        self._course.close()
        with suppress(OSError):
            self.socket.close()


class DataListener:
    """Accepts peers at TCP and, on Linux, at an abstract unix socket.
    One thread serves all peers that have not yet proved that they belong to the cluster
    (strangers). :data:`~flinkray.rpc.wire.listener.MAX_STRANGERS` and a time-out limit them."""

    def __init__(
        self,
        process_name: str,
        incarnation: str,
        secret: bytes,
        host: str,
        node_id: str | None,
        tls: Tls | None,
        welcome: Callable[[Wire, str], None],
    ) -> None:
        """Listen for peers of the process *process_name*.
        *welcome* gets wire and identity of each accepted peer, in the listener's thread."""
        self._process_name = process_name
        self._incarnation = incarnation
        self._secret = secret
        self._tls = None if tls is None else tls.server
        self._welcome = welcome
        self._refusals = RefusalLog(logger, time.monotonic)
        self._strangers: dict[socket.socket, _Stranger] = {}
        """Peers that have not yet proved that they belong, by socket, oldest first."""
        self._selector = selectors.DefaultSelector()
        self._closing, self._closer = socket.socketpair()
        self._selector.register(self._closing, selectors.EVENT_READ)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            tcp = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        except OSError:  # NAT: not an address of this machine
            tcp = socket.create_server(("", 0), family=family, backlog=_BACKLOG)
        self._sockets = [tcp]
        unix_path = None
        if sys.platform == "linux":
            unix_path = f"\0flinkray-data-{incarnation}"
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(unix_path)
            unix.listen(_BACKLOG)
            self._sockets.append(unix)
        for listening in self._sockets:
            listening.setblocking(False)
        self._is_accepting = False
        self._accept_at = 0.0
        """Time before which no peer is accepted (monotonic seconds).
        Set when file descriptors have run out."""
        port: int = tcp.getsockname()[1]
        self.address = DataAddress(
            process_name, incarnation, host, port, unix_path, node_id, self._tls is not None
        )
        self._thread = threading.Thread(
            target=self._serve, name=f"listen {process_name}", daemon=True
        )
        self._thread.start()

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    def close(self) -> None:
        self._closer.close()
        self._thread.join()
        self._selector.close()
        for listening in (*self._sockets, self._closing):
            listening.close()
        self._refusals.tell_rest()

    # --- in the listener's thread -----------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self._until_next_look()):
                if key.fileobj is self._closing:
                    for stranger in self._strangers.values():
                        stranger.close()
                    self._strangers.clear()
                    return
                if isinstance(key.data, _Stranger):
                    self._go_on(key.data)
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._accept(key.fileobj)

    def _until_next_look(self) -> float | None:
        """Refuse peers whose handshake takes too long, and accept others while there is room.
        Returns the seconds until the next call is due. None: only after an event of a socket."""
        now = time.monotonic()
        looks: list[float] = []
        while self._strangers:
            oldest = next(iter(self._strangers.values()))
            is_full = len(self._strangers) >= MAX_STRANGERS
            due = oldest.since + (PATIENCE if is_full else HANDSHAKE_TIMEOUT)
            if due > now:
                looks.append(due)
                break
            self._refuse(oldest, "it was too slow with its handshake")
        if self._accept_at > now:
            looks.append(self._accept_at)
        self._let_in(len(self._strangers) < MAX_STRANGERS and self._accept_at <= now)
        return min(looks) - now if looks else None

    def _let_in(self, is_accepting: bool) -> None:
        if is_accepting != self._is_accepting:
            self._is_accepting = is_accepting
            for listening in self._sockets:
                if is_accepting:
                    self._selector.register(listening, selectors.EVENT_READ)
                else:
                    self._selector.unregister(listening)

    def _accept(self, listening: socket.socket) -> None:
        if not self._is_accepting or len(self._strangers) >= MAX_STRANGERS:
            return
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # the peer was gone before it was accepted
        except OSError as error:
            logger.warning("no peer can be accepted: %s", error)
            self._accept_at = time.monotonic() + _EXHAUSTED_PAUSE
            self._let_in(False)
            return
        accepted.setblocking(False)
        stranger = _Stranger(accepted, self._introduce(accepted))
        self._strangers[accepted] = stranger
        self._selector.register(accepted, selectors.EVENT_READ, stranger)
        self._go_on(stranger)

    def _go_on(self, stranger: _Stranger) -> None:
        if stranger.socket not in self._strangers:
            return  # refused since the selector reported its data
        try:
            introduced = stranger.go_on()
        except (OSError, RpcConnectionError) as error:
            self._refuse(stranger, str(error))
            return
        if introduced is not None:
            self._forget(stranger)
            stranger.socket.setblocking(True)
            try:
                self._welcome(*introduced)
            except RuntimeError as error:  # no thread can be started
                logger.warning("%s cannot serve a peer: %s", self._process_name, error)
                introduced[0].close()

    def _refuse(self, stranger: _Stranger, reason: str) -> None:
        self._forget(stranger)
        stranger.close()
        self._refusals.refused(f"{self._process_name} refused a peer", reason)

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.socket]
        self._selector.unregister(stranger.socket)

    async def _introduce(self, accepted: socket.socket) -> _Introduced:
        _prepared(accepted)
        wire: PlainWire | TlsWire
        if self._tls is None or accepted.family == socket.AF_UNIX:
            wire = PlainWire(accepted)
        else:
            wire = TlsWire(accepted, self._tls, True)
            while not wire.go_on_with_handshake():
                await _until_readable()
        # the client's part ends with the welcome: it sends nothing more before that
        identity = await handshake.receive(
            WireHandshake(wire, _until_readable),
            self._secret,
            data_protocol(self._process_name),
            self._incarnation,
        )
        return wire, identity


_Introduced = tuple[Wire, str]
"""Wire and identity of a peer that belongs to the cluster."""


@coroutine
def _until_readable() -> Generator[None, None, None]:
    yield
