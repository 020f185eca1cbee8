"""Sockets, with or without TLS. One thread at a time reads, another one writes."""

from __future__ import annotations

import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc.wire.fragments import LENGTH
from flinkray.rpc.wire.frames import MAX_HANDSHAKE_FRAME
from flinkray.streaming.network.frames import Part

_MOST_PARTS = 512
"""Most parts in one call to the system. Linux takes 1024."""

_ENDED = "the connection was closed by the other side"

MOST_READ_AT_ONCE: Final = 2**20
"""Bytes after which a wire says once that no data has arrived. A peer that sends faster than this
process reads would otherwise keep the reading thread for ever. The poller reports the rest again.
"""


class Wire(Protocol):
    """A connection as a stream of bytes. One thread reads, and writers take turns."""

    is_on_one_node: bool
    """Whether both ends are on the same machine."""

    is_empty: bool = False
    """Whether the next read would return -1, because the last one has taken all that had arrived.
    The reader may set this to False instead of reading. False if that is not known."""

    def fileno(self) -> int:
        """Return the number of the socket, which a :class:`Poller` watches."""

    def try_recv_into(self, view: memoryview) -> int:
        """Write the data that has arrived to *view*, and return the number of bytes. 0: the
        connection has ended. -1: no data has arrived, or :data:`MOST_READ_AT_ONCE` bytes were
        returned since the last -1."""

    def send(self, parts: Sequence[Part]) -> None:
        """Send all parts. Blocks until they are sent."""

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        """Send without blocking. Return the parts that were not sent."""

    def shut_down(self) -> None:
        """End the connection. Wakes threads that read or write."""

    def close(self) -> None:
        """End the connection, if it was not shut down, and close its socket."""


class SocketWire(ABC):
    """A connection over a blocking or non-blocking socket."""

    is_on_one_node: bool
    is_empty = False

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    @abstractmethod
    def recv_into(self, view: memoryview) -> int:
        """Write data to *view* and return the number of bytes; 0 at the end. Waits for data; if the
        socket is non-blocking, raises BlockingIOError."""

    @abstractmethod
    def send(self, parts: Sequence[Part]) -> None: ...

    def fileno(self) -> int:
        return self.socket.fileno()

    def shut_down(self) -> None:
        with suppress(OSError):  # the socket is not connected any more
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut_down()
        self.socket.close()


class PlainWire(SocketWire):
    """A plain socket. The kernel copies with the GIL released."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.is_on_one_node = sock.family == socket.AF_UNIX
        self._left = MOST_READ_AT_ONCE
        """Bytes to read before :meth:`try_recv_into` returns -1."""

    def recv_into(self, view: memoryview) -> int:
        return self.socket.recv_into(view)

    def try_recv_into(self, view: memoryview) -> int:
        if self.is_empty or self._left <= 0:
            self.is_empty = False
            self._left = MOST_READ_AT_ONCE
            return -1
        try:
            # the socket itself stays blocking, for the thread that writes
            received = self.socket.recv_into(view, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._left = MOST_READ_AT_ONCE
            return -1
        if received == len(view):
            self._left -= received
        elif received:  # to know this saves a call to the system, and the exception that it raises
            self.is_empty = True
            self._left = MOST_READ_AT_ONCE
        return received

    def send(self, parts: Sequence[Part]) -> None:
        rest: Sequence[Part] = parts
        while rest:
            rest = _after(rest, self.socket.sendmsg(rest[:_MOST_PARTS]))

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        rest: Sequence[Part] = parts
        try:
            while rest:
                some = rest if len(rest) <= _MOST_PARTS else rest[:_MOST_PARTS]
                rest = _after(rest, self.socket.sendmsg(some, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return list(rest)
        return []


class TlsWire(SocketWire):
    """TLS over a socket.
    Two threads must not use a TLS session at once, and no direction may block the other: the
    session works on memory, under a lock, and the socket is used outside of the lock."""

    is_on_one_node = False

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, is_server: bool) -> None:
        super().__init__(sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._session = threading.Lock()
        self._writing = threading.Lock()
        self._left = MOST_READ_AT_ONCE
        """Bytes to receive before :meth:`try_recv_into` returns -1."""

    def go_on_with_handshake(self) -> bool:
        """Continue the TLS handshake. Return True when it is complete.
        False: the socket is non-blocking and has no data to read. Raises OSError: the handshake
        failed (ssl.SSLError), or the connection ended."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                try:
                    if not self._feed():
                        raise ConnectionError(_ENDED) from None
                except BlockingIOError:
                    return False
            except ssl.SSLError:
                self._flush()  # tells the other side why
                raise
            else:
                self._flush()
                return True

    def recv_into(self, view: memoryview) -> int:
        return self._receive(view, 0)

    def try_recv_into(self, view: memoryview) -> int:
        try:
            return self._receive(view, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._left = MOST_READ_AT_ONCE
            return -1

    def _receive(self, view: memoryview, flags: int) -> int:
        while True:
            with self._session:
                try:
                    # with a buffer to read into, ``read`` returns a number
                    return self._tls.read(len(view), view)  # type: ignore[return-value]
                except ssl.SSLWantReadError:
                    # An answer of TLS itself: a writer leaves nothing when it leaves the session.
                    has_answer = self._outgoing.pending > 0
                except ssl.SSLZeroReturnError:
                    return 0
            if has_answer:
                self._flush()
            if not self._feed(flags):
                return 0

    def send(self, parts: Sequence[Part]) -> None:
        with self._writing:
            for part in parts:
                view = memoryview(part).cast("B")
                for begin in range(0, len(view), 65_536):
                    with self._session:
                        self._tls.write(view[begin : begin + 65_536])
                        data = self._outgoing.read()
                    self.socket.sendall(data)

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        return list(parts)

    def _flush(self) -> None:
        with self._writing:
            with self._session:
                data = self._outgoing.read()
            if data:
                self.socket.sendall(data)

    def _feed(self, flags: int = 0) -> bool:
        if self._left <= 0 and flags:
            raise BlockingIOError
        data = self.socket.recv(262_144, flags)
        if not data:
            return False
        self._left -= len(data)
        self._incoming.write(data)
        return True


class WireHandshake:
    """The frames of :mod:`flinkray.rpc.wire.handshake` on a wire.
    On a blocking socket the calls block instead of suspending (:func:`shake_hands`)."""

    def __init__(
        self, wire: SocketWire, until_readable: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Prepare a handshake on *wire*.
        *until_readable*: suspends until the socket is readable; for non-blocking sockets only."""
        self._wire = wire
        self._until_readable = until_readable

    def send(self, frame: bytes) -> None:
        self._wire.send([LENGTH.pack(len(frame)) + frame])

    async def receive(self) -> bytes:
        (size,) = LENGTH.unpack(await self._receive(LENGTH.size))
        if size > MAX_HANDSHAKE_FRAME:
            raise RpcConnectionError(
                f"a frame of {size} bytes came, the limit is {MAX_HANDSHAKE_FRAME}"
            )
        return bytes(await self._receive(size))

    async def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                received = self._wire.recv_into(view)
            except BlockingIOError:
                if self._until_readable is None:
                    raise
                await self._until_readable()
                continue
            if received == 0:
                raise RpcConnectionError(_ENDED)
            view = view[received:]
        return data


def shake_hands(handshake: Any) -> Any:
    """Run the coroutine of a handshake on a blocking socket, where it never suspends, and return
    its result."""
    try:
        handshake.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a handshake over a blocking wire does not suspend")


def _after(parts: Sequence[Part], sent: int) -> list[Part]:
    """Return what is left of *parts* after *sent* bytes."""
    for done, part in enumerate(parts):
        size = part.nbytes if type(part) is memoryview else len(part)
        if sent < size:
            rest = list(islice(parts, done, None))
            if sent:
                rest[0] = memoryview(part).cast("B")[sent:]
            return rest
        sent -= size
    return []
