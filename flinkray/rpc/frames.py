"""Frames on a stream: four bytes of length, big-endian, then the frame."""

from __future__ import annotations

import asyncio
import struct
from collections import deque

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc.envelope import MAX_FRAME_SIZE
from flinkray.rpc.transport import FrameReceiver, Transport

_LENGTH = struct.Struct(">I")

MAX_HANDSHAKE_FRAME = 4096
"""Bytes; nobody may send more before it has proved that it belongs to the cluster."""


class FrameStream(asyncio.Protocol, Transport):
    """Both ends of one socket: frames out, frames in.

    Until :meth:`attach`, frames are read one by one by :meth:`receive` (the handshake does); from
    then on each goes to the receiver as it comes.  Frames that are sent in one turn of the loop
    are written together.
    """

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_frame_size = max_frame_size
        self._limit = MAX_HANDSHAKE_FRAME
        self._transport: asyncio.Transport | None = None
        self._receiver: FrameReceiver | None = None
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._outgoing: list[bytes] = []
        self._congested: asyncio.Future[None] | None = None
        self._is_paused = False
        self._lost: str | None = None
        self._break_reason: str | None = None

    # --- handshake ----------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """The next frame of the handshake.

        Raises:
            RpcConnectionError: the connection ended.
        """
        while not self._frames:
            if self._lost is not None:
                raise RpcConnectionError(self._lost)
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._frames.popleft()

    def attach(self, receiver: FrameReceiver) -> None:
        # the handshake is over
        self._limit = self._max_frame_size
        self._receiver = receiver
        while self._frames:
            receiver.frame_received(self._frames.popleft())
        if self._lost is not None:
            receiver.connection_lost(self._lost)
        else:
            self._split()

    # --- Transport ----------------------------------------------------------------------------

    def send(self, frame: bytes, lane: int | None = None) -> None:
        if self._lost is not None:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(_LENGTH.pack(len(frame)))
        self._outgoing.append(frame)

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None and self._lost is None:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    @property
    def is_congested(self) -> bool:
        return self._congested is not None

    async def drain(self) -> None:
        if self._congested is not None:
            await asyncio.shield(self._congested)

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._is_paused and self._lost is None:
            self._split()
        if not self._is_paused and self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def break_off(self, reason: str) -> None:
        self._receiver = None
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """End the connection as it is; the receiver is told the reason."""
        self._break_reason = self._break_reason or reason
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._split()

    def _split(self) -> None:
        buffer = self._buffer
        end = len(buffer)
        position = 0
        try:
            while end - position >= 4 and not self._is_paused:
                (length,) = _LENGTH.unpack_from(buffer, position)
                if length > self._limit:
                    self.abort(f"a frame of {length} bytes came, the limit is {self._limit}")
                    position = end
                    return
                if end - position - 4 < length:
                    return
                frame = bytes(memoryview(buffer)[position + 4 : position + 4 + length])
                position += 4 + length
                if self._receiver is not None:
                    self._receiver.frame_received(frame)
                else:
                    self._frames.append(frame)
                    if self._waiter is not None and not self._waiter.done():
                        self._waiter.set_result(None)
        finally:
            del buffer[:position]

    def pause_writing(self) -> None:
        self._congested = self._loop.create_future()

    def resume_writing(self) -> None:
        congested, self._congested = self._congested, None
        if congested is not None and not congested.done():
            congested.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._break_reason is not None:
            self._lost = self._break_reason
        elif error is None:
            self._lost = "the connection was closed by the other side"
        else:
            self._lost = f"the connection broke: {error}"
        self.resume_writing()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.connection_lost(self._lost)
