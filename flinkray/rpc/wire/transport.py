"""Transports carry frames between two processes; one kind stays within a process."""

from __future__ import annotations

import asyncio
import contextvars
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

WRITE_HIGH_WATER = 262_144
"""Bytes queued for the other side above which senders should wait."""


class FrameReceiver(Protocol):
    """Interface of an object to which a transport gives the frames that it receives."""

    def frame_received(self, frame: bytes | memoryview) -> None:
        """Handle a frame. Frames arrive whole, each once, and in the order in which they were sent
        in a lane.

        If *frame* is a view, its memory is used again after the call.
        """

    def frame_refused(self, reason: str) -> None:
        """Note that invalid data arrived instead of a frame; the connection ends after this."""

    def connection_lost(self, reason: str) -> None:
        """Handle the loss of the connection; called once, after the last frame."""


class Transport(ABC):
    """One end of a connection between two processes, which sends and receives frames."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._congested: asyncio.Future[None] | None = None
        """A future while senders should wait, completed when they may continue; else None."""

    @abstractmethod
    def attach(self, receiver: FrameReceiver) -> None:
        """Give *receiver* the frames that arrive at this end or have arrived already."""

    @abstractmethod
    def send(self, frame: bytes, lane: int | None = None) -> None:
        """Queue a frame; the frame is dropped if the connection is lost.

        Frames with the same *lane* (usually an endpoint's number) arrive in the order in which they
        were sent, and a large frame delays only its own lane. None: a large frame may be overtaken
        by any other frame.
        """

    def send_parts(self, parts: Sequence[bytes], lane: int | None = None) -> None:
        """Send one frame given in parts; large parts are not copied where that can be avoided."""
        self.send(b"".join(parts), lane)

    @property
    @abstractmethod
    def has_unsent(self) -> bool:
        """Whether frames that were sent here may not have left this process yet."""

    @property
    def is_congested(self) -> bool:
        """Whether so much is queued that senders should wait for :meth:`drain`."""
        return self._congested is not None

    async def drain(self) -> None:
        """Wait until the queue is short again, or the connection is lost."""
        if self._congested is not None:
            await asyncio.shield(self._congested)

    def _hold_senders(self) -> None:
        if self._congested is None:
            self._congested = self._loop.create_future()

    def _let_senders_go(self) -> None:
        congested, self._congested = self._congested, None
        if congested is not None and not congested.done():
            congested.set_result(None)

    @abstractmethod
    def pause_reading(self) -> None:
        """Give this side's receiver no more frames until :meth:`resume_reading`.

        The other side becomes congested if it goes on sending. May be called at any time, also
        while a frame is received; idempotent.
        """

    @abstractmethod
    def resume_reading(self) -> None:
        """Go on after :meth:`pause_reading`, from the loop's next turn; idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Send the queued frames, then end the connection; the other side notices the end."""

    @abstractmethod
    def break_off(self, reason: str) -> None:
        """End the connection at once; *reason* is not reported to this side's receiver."""


class MemoryTransport(Transport):
    """One end of a connection between two services on one event loop.
    A frame arrives at the other end in the loop's next turn.

    A frame takes no time to transfer, whatever its size, so lanes make no difference.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._receiver: FrameReceiver | None = None
        self._peer: MemoryTransport | None = None
        self._travelling: list[bytes] = []
        self._inbox: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_paused = False
        self._end: str | None = None
        """Why the connection ends once the inbox is empty; None: the connection does not end."""
        self._lost_reason: str | None = None
        # a frame must not be handled in the context of its sender
        self._context = contextvars.Context()

    @classmethod
    def pair(cls, loop: asyncio.AbstractEventLoop) -> tuple[MemoryTransport, MemoryTransport]:
        one, other = cls(loop), cls(loop)
        one._peer, other._peer = other, one
        return one, other

    def attach(self, receiver: FrameReceiver) -> None:
        if self._lost_reason is not None:
            receiver.connection_lost(self._lost_reason)
            return
        self._receiver = receiver
        if self._inbox or self._end is not None:
            self._soon(self._read)

    @property
    def has_unsent(self) -> bool:
        return self._peer is not None and self._peer._queued_bytes > 0

    def send(self, frame: bytes, lane: int | None = None) -> None:
        peer = self._peer
        if peer is not None:
            peer._coming(frame)
            if peer._queued_bytes > WRITE_HIGH_WATER:
                self._hold_senders()

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._read, context=self._context)

    def close(self) -> None:
        peer, self._peer = self._peer, None
        self._let_senders_go()
        if peer is not None:
            self._loop.call_soon(peer._closed, context=peer._context)
            self._loop.call_soon(self._lost, "the connection was closed")

    def break_off(self, reason: str) -> None:
        peer, self._peer = self._peer, None
        self._receiver = None
        self._forget()
        if peer is not None:
            peer._soon(lambda: peer._lost(reason))

    def _soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback, context=self._context)

    def _coming(self, frame: bytes) -> None:
        if not self._travelling:
            self._soon(self._arrived)
        self._travelling.append(frame)
        self._queued_bytes += len(frame)

    def _arrived(self) -> None:
        frames, self._travelling = self._travelling, []
        self._inbox.extend(frames)
        self._read()

    def _read(self) -> None:
        inbox = self._inbox
        while inbox and not self._is_paused and self._receiver is not None:
            frame = inbox.popleft()
            self._queued_bytes -= len(frame)
            self._receiver.frame_received(frame)
        peer = self._peer
        if (
            peer is not None
            and peer._congested is not None
            and self._queued_bytes <= WRITE_HIGH_WATER // 2
        ):
            peer._let_senders_go()
        if self._end is not None and not self._is_paused and self._receiver is not None:
            self._lost(self._end)

    def _closed(self) -> None:
        self._end = "the connection was closed by the other side"
        self._arrived()

    def _lost(self, reason: str) -> None:
        self._peer = None
        self._lost_reason = reason
        receiver, self._receiver = self._receiver, None
        self._forget()
        if receiver is not None:
            receiver.connection_lost(reason)

    def _forget(self) -> None:
        self._travelling.clear()
        self._inbox.clear()
        self._queued_bytes = 0
        self._let_senders_go()


class OpeningTransport(Transport):
    """Keeps frames that are sent while the real transport is being opened."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._frames: list[tuple[bytes, int | None]] = []
        self._hold_senders()

    def attach(self, receiver: FrameReceiver) -> None:
        """Do nothing, as no frame arrives here."""

    def send(self, frame: bytes, lane: int | None = None) -> None:
        self._frames.append((frame, lane))

    @property
    def has_unsent(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """Do nothing, as no frame arrives here."""

    def resume_reading(self) -> None:
        """Do nothing, as no frame arrives here."""

    def take(self) -> list[tuple[bytes, int | None]]:
        """Return (frame, lane) of the frames sent so far. Callers that wait in :meth:`drain`
        continue."""
        self._let_senders_go()
        frames, self._frames = self._frames, []
        return frames

    def close(self) -> None:
        self.take()

    def break_off(self, reason: str) -> None:
        self.take()
