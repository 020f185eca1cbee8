"""Opening and accepting connections between task processes, and proving that both belong to the
cluster: the handshake of :mod:`flinkray.rpc.wire.handshake`, TLS between nodes where Ray has it."""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from flinkray.core.errors import HandshakeError, RpcConnectionError
from flinkray.core.message import message
from flinkray.rpc.wire import handshake
from flinkray.rpc.wire.listener import HANDSHAKE_TIMEOUT
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
"""Bytes that are asked for; the system gives what it allows."""
_EXHAUSTED_PAUSE = 1.0
"""Seconds until the next peer is accepted after the process had no file descriptor left."""
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""A node that has gone without a word is noticed after half a minute at the latest."""


@message
class DataAddress:
    """Where a process receives requests for its partitions."""

    process_name: str
    incarnation: str
    host: str
    port: int
    unix_path: str | None
    node_id: str | None
    """Ray's; the unix path is used by processes on the same node."""
    has_tls: bool
    """Whether the port speaks TLS."""

    def __str__(self) -> str:
        return f"{self.process_name} at {self.host}:{self.port}"


def data_protocol(process_name: str) -> str:
    """Whom a client of this protocol asks for: one that wants to make calls is refused here, and
    the other way round."""
    return f"data of {process_name}"


def dial(
    address: DataAddress,
    node_id: str | None,
    identity: str,
    secret: bytes,
    tls: Tls | None,
    timeout: float,
) -> Wire:
    """Connect and shake hands; blocks, at most for *timeout* seconds for each.

    Raises:
        HandshakeError: it speaks another protocol, or does not know the secret.
        RpcConnectionError: it is not there.
    """
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
    return _with_tls(sock, tls.client, False)


def _with_tls(sock: socket.socket, context: ssl.SSLContext, is_server: bool) -> TlsWire:
    wire = TlsWire(sock, context, is_server)
    try:
        wire.handshake()
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


class DataListener:
    """Accepts peers at TCP and, on Linux, at an abstract unix socket, each in a thread of its own
    until it has proved that it belongs to the cluster."""

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
        """*welcome* gets the wire and the identity of each peer, in that thread."""
        self._process_name = process_name
        self._incarnation = incarnation
        self._secret = secret
        self._tls = None if tls is None else tls.server
        self._welcome = welcome
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
            self._selector.register(listening, selectors.EVENT_READ)
        port: int = tcp.getsockname()[1]
        self.address = DataAddress(
            process_name, incarnation, host, port, unix_path, node_id, self._tls is not None
        )
        self._thread = threading.Thread(
            target=self._accept, name=f"listen {process_name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Accept nobody any more."""
        self._closer.close()
        self._thread.join()
        self._selector.close()
        for listening in (*self._sockets, self._closing):
            listening.close()

    def _accept(self) -> None:
        while True:
            for key, _ in self._selector.select():
                listening = key.fileobj
                assert isinstance(listening, socket.socket)
                if listening is self._closing:
                    return
                try:
                    accepted, _ = listening.accept()
                except (BlockingIOError, ConnectionError):
                    continue  # it was gone before it was accepted
                except OSError as error:
                    logger.warning("no peer can be accepted: %s", error)
                    if _readable_within(self._closing, _EXHAUSTED_PAUSE):
                        return
                    continue
                threading.Thread(
                    target=self._begin, args=(accepted,), name="handshake", daemon=True
                ).start()

    def _begin(self, accepted: socket.socket) -> None:
        accepted.settimeout(HANDSHAKE_TIMEOUT)
        wire: PlainWire | TlsWire
        try:
            _prepared(accepted)
            if self._tls is None or accepted.family == socket.AF_UNIX:
                wire = PlainWire(accepted)
            else:
                wire = _with_tls(accepted, self._tls, True)
        except OSError as error:
            logger.warning("%s refused a peer: TLS: %s", self._process_name, error)
            with suppress(OSError):
                accepted.close()
            return
        try:
            identity = shake_hands(
                handshake.receive(
                    WireHandshake(wire),
                    self._secret,
                    data_protocol(self._process_name),
                    self._incarnation,
                )
            )
            # The client's part ends with the welcome.
            accepted.settimeout(None)
        except (OSError, RpcConnectionError) as error:
            logger.warning("%s refused a peer: %s", self._process_name, error)
            wire.close()
            return
        self._welcome(wire, identity)


def _readable_within(sock: socket.socket, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(seconds))
