"""Frames on a socket; for their layout see :mod:`flinkray.rpc.wire.fragments`."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE
from flinkray.rpc.wire.fragments import (
    FRAGMENT_BIT,
    FRAGMENT_HEAD,
    FRAGMENT_SIZE,
    LARGEST_FRAGMENT,
    LENGTH,
    FragmentJoiner,
    FrameSplitter,
)
from flinkray.rpc.wire.transport import WRITE_HIGH_WATER, FrameReceiver, Transport

MAX_HANDSHAKE_FRAME = 4096
"""Bytes; a peer may not send a larger frame before it has proved that it is of the cluster."""

KEEPALIVE_IDLE = 60
"""Seconds of silence on a TCP connection until the system probes the peer."""
KEEPALIVE_INTERVAL = 10
"""Seconds between two such probes."""
KEEPALIVE_COUNT = 6
"""How many unanswered probes end the connection."""

_WRITE_AT_ONCE = 131_072
"""Bytes that are given to the socket together; later frames have to wait for them."""


_WRITE_EARLY = 16_384
"""More queued bytes than this are written before the loop's turn ends; the peer can begin early."""


_MEMORY_KEPT = 1.0
"""Seconds for which the memory of a large frame is kept for the next one."""


_BUFFER_SIZE = 262_144
"""The most bytes that are read at once."""

_of_thread = threading.local()


def _receive_buffer() -> memoryview:
    """Return the receive buffer of this thread.

    Received bytes are copied or handled before anything else runs. Without this buffer the loop
    makes a new one for each read, as large as the most that may arrive, which costs several system
    calls.
    """
    buffer: memoryview | None = getattr(_of_thread, "buffer", None)
    if buffer is None:
        buffer = _of_thread.buffer = memoryview(bytearray(_BUFFER_SIZE))
    return buffer


class FrameStream(asyncio.BufferedProtocol, Transport):
    """One end of a socket between two processes: sends and receives frames.

    Until :meth:`attach`, the handshake reads frames one by one with :meth:`receive`; then each
    frame goes to the receiver. Frames sent in one turn of the loop are written together.
    """

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE) -> None:
        Transport.__init__(self, asyncio.get_running_loop())
        self._max_frame_size = max_frame_size
        self._transport: asyncio.Transport | None = None
        self._receiver: FrameReceiver | None = None
        self._buffer = _receive_buffer()
        self._unread = b""
        """Received bytes that are not a whole frame yet, or wait for their reader."""
        self._joiner = FragmentJoiner(max_frame_size)
        self._gap: memoryview | None = None
        """The memory for the rest of the current fragment; None: no fragment is incomplete."""
        self._gap_number = 0
        """The number of the large frame to which the incomplete fragment belongs."""
        self._is_memory_kept = False
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._outgoing = FrameSplitter()
        self._is_flush_due = False
        self._is_write_paused = False
        self._lost: str | None = None
        self._break_reason: str | None = None

    # --- handshake ----------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Return the next frame of the handshake.

        Raises:
            RpcConnectionError: the connection ended, or the frame is too large for a handshake.
        """
        while True:
            unread = self._unread
            if len(unread) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(unread)
                if length > MAX_HANDSHAKE_FRAME:
                    reason = f"a frame of {length} bytes came, the limit is {MAX_HANDSHAKE_FRAME}"
                    self.abort(reason)
                    raise RpcConnectionError(reason)
                end = LENGTH.size + length
                if len(unread) >= end:
                    self._unread = unread[end:]
                    return unread[LENGTH.size : end]
            if self._lost is not None:
                raise RpcConnectionError(self._lost)
            self._waiter = self._loop.create_future()
            self._read_on()
            await self._waiter

    def attach(self, receiver: FrameReceiver) -> None:
        # the handshake is over
        self._receiver = receiver
        self._split(memoryview(self._unread))
        if self._lost is None:
            if not self._is_paused:  # unless frames that had arrived have paused it
                self._read_on()
        elif self._receiver is not None:
            self._receiver = None
            receiver.connection_lost(self._lost)

    # --- sending ------------------------------------------------------------------------------

    def send(self, frame: bytes, lane: int | None = None) -> None:
        if self._lost is not None:
            return
        self._outgoing.put(frame, lane)
        self._queued()

    @property
    def has_unsent(self) -> bool:
        if self._lost is not None or self._transport is None:
            return False
        return bool(self._outgoing) or self._transport.get_write_buffer_size() > 0

    def send_parts(self, parts: Sequence[bytes], lane: int | None = None) -> None:
        if self._lost is None:
            self._outgoing.put_parts(parts, lane)
            self._queued()

    def _queued(self) -> None:
        outgoing = self._outgoing
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        if outgoing.small_bytes > _WRITE_EARLY:
            if not self._is_write_paused:
                self._write(_WRITE_AT_ONCE)
            elif outgoing.small_bytes > WRITE_HIGH_WATER:
                self._hold_senders()
        # a large frame delays only its own lane; many large frames delay all senders
        if outgoing.large_bytes > self._max_frame_size:
            self._hold_senders()

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_write_paused:
            return
        self._write(_WRITE_AT_ONCE)
        if self._outgoing and not self._is_write_paused and not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _write(self, size: int) -> None:
        outgoing = self._outgoing
        if self._transport is None or self._lost is not None or not outgoing:
            return
        self._transport.write(b"".join(outgoing.take(size)))
        if (
            self._congested is not None
            and outgoing.small_bytes <= WRITE_HIGH_WATER // 2
            and outgoing.large_bytes <= self._max_frame_size // 2
        ):
            self._let_senders_go()

    # --- reading ------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        if not self._is_paused:
            self._split(memoryview(self._unread))
        if not self._is_paused:
            self._read_on()

    def _read_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._receiver is None:  # a stranger may not send longer frames
            return self._buffer[:MAX_HANDSHAKE_FRAME]
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffer[:nbytes]
        if self._receiver is not None:
            self._split(memoryview(self._unread + data) if self._unread else data)
            return
        self._unread += data
        if len(self._unread) > MAX_HANDSHAKE_FRAME and self._transport is not None:
            self._transport.pause_reading()  # until the handshake has read it
        self._wake_reader()

    def _split(self, data: memoryview) -> None:
        end = len(data)
        position = 0
        limit = min(self._max_frame_size, FRAGMENT_SIZE)
        length_at = LENGTH.unpack_from
        receiver = self._receiver
        if self._gap is not None and not self._is_paused and receiver is not None:
            position = self._fill(data, position)
        while end - position >= 4 and not self._is_paused and receiver is not None:
            (length,) = length_at(data, position)
            begin = position + 4
            if length <= limit:
                position = begin + length
                if position > end:
                    position = begin - 4
                    break
                receiver.frame_received(data[begin:position])
            elif end - begin < FRAGMENT_HEAD.size and _may_be_fragment(length):
                break
            else:
                position = self._fragment(data, begin, length)
            receiver = self._receiver
        self._unread = bytes(data[position:])

    def _fragment(self, data: memoryview, begin: int, length: int) -> int:
        """Begin to receive the fragment of a large frame that starts at *begin* in *data*, or end
        the connection if it is invalid. Returns the position in *data* from which to read on."""
        assert self._receiver is not None
        size = length & ~FRAGMENT_BIT
        try:
            if not _may_be_fragment(length):
                kind = "frame" if size == length else "fragment"
                raise RpcConnectionError(
                    f"a {kind} of {size} bytes came, the limit is "
                    f"{min(self._max_frame_size, FRAGMENT_SIZE)}"
                )
            number, total = FRAGMENT_HEAD.unpack_from(data, begin)
            self._gap = self._joiner.place_for(number, total, size - FRAGMENT_HEAD.size)
        except RpcConnectionError as error:
            self._receiver.frame_refused(str(error))
            self.abort(str(error))
            self._is_paused = True
            return len(data)
        self._gap_number = number
        return self._fill(data, begin + FRAGMENT_HEAD.size)

    def _fill(self, data: memoryview, begin: int) -> int:
        """Copy the bytes of the current fragment from *data*, from *begin* on. Pass a large frame
        that is complete to the receiver. Returns the position after the copied bytes."""
        assert self._receiver is not None
        assert self._gap is not None
        gap = self._gap
        there = len(data) - begin
        if there < len(gap):
            gap[:there] = data[begin:]
            self._gap = gap[there:]
            return len(data)
        end = begin + len(gap)
        gap[:] = data[begin:end]
        self._gap = None
        frame = self._joiner.take(self._gap_number)
        if frame is not None:
            if not self._is_memory_kept:
                self._is_memory_kept = True
                self._loop.call_later(_MEMORY_KEPT, self._give_memory_back)
            self._receiver.frame_received(frame)
        return end

    def _give_memory_back(self) -> None:
        self._is_memory_kept = False
        self._joiner.give_back()

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        while self._outgoing and self._lost is None and self._transport is not None:
            self._write(_WRITE_AT_ONCE)
        if self._transport is not None:
            self._transport.close()

    def break_off(self, reason: str) -> None:
        self._receiver = None
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """End the connection at once, without sending the queued frames.

        *reason* is reported to this side's receiver.
        """
        self._break_reason = self._break_reason or reason
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.BufferedProtocol -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        own_end = transport.get_extra_info("socket")
        if own_end is not None and own_end.family in (socket.AF_INET, socket.AF_INET6):
            _notice_silence(own_end)

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        if self._break_reason is not None:
            self._lost = self._break_reason
        elif error is None:
            self._lost = "the connection was closed by the other side"
        else:
            self._lost = f"the connection broke: {error}"
        self._outgoing = FrameSplitter()
        self._let_senders_go()
        self._wake_reader()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            # proxies may hold a lost connection for long
            self._joiner, self._gap, self._unread = FragmentJoiner(0), None, b""
            receiver.connection_lost(self._lost)


def _notice_silence(own_end: socket.socket) -> None:
    """Have the system probe the peer: a peer whose machine loses its power sends no end.

    TCP_USER_TIMEOUT is not used, as with it Linux also ends connections to a live peer that does
    not read, such as a peer whose handlers cannot keep up.
    """
    own_end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ):
        if hasattr(socket, option):  # some systems other than Linux lack them
            own_end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _may_be_fragment(length: int) -> bool:
    size = length & ~FRAGMENT_BIT
    return size != length and FRAGMENT_HEAD.size < size <= LARGEST_FRAGMENT
