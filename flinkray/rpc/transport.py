"""What carries frames between two processes, and the one that never leaves this process."""

from __future__ import annotations

import asyncio
import contextvars
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol


class FrameReceiver(Protocol):
    """The end of a transport where frames arrive."""

    def frame_received(self, frame: bytes) -> None:
        """Frames arrive whole, in the order they were sent, each once."""

    def connection_lost(self, reason: str) -> None:
        """Once; no frame comes after it."""


class Transport(ABC):
    """The end of a transport where frames are sent."""

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """Queue a frame; dropped when the connection is gone."""

    @property
    @abstractmethod
    def is_congested(self) -> bool:
        """Whether so much is queued that senders should wait for :meth:`drain`."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until the queue is short again, or the connection gone."""

    @abstractmethod
    def close(self) -> None:
        """Send what is queued, then end the connection; the other side is told."""

    @abstractmethod
    def break_off(self, reason: str) -> None:
        """End the connection as it is; this side's receiver is not told."""


class MemoryTransport(Transport):
    """One end of a pair on one event loop; a frame arrives in the loop's next turn."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, latency: Callable[[], float] | None = None
    ) -> None:
        """*latency*: seconds until what is sent now arrives, if not in the next turn."""
        self._loop = loop
        self._latency = latency
        self._receiver: FrameReceiver | None = None
        self._peer: MemoryTransport | None = None
        self._inbox: list[bytes] = []
        # what arrives must not run in the context of who sent it
        self._context = contextvars.Context()

    @classmethod
    def pair(
        cls, loop: asyncio.AbstractEventLoop, latency: Callable[[], float] | None = None
    ) -> tuple[MemoryTransport, MemoryTransport]:
        one, other = cls(loop, latency), cls(loop, latency)
        one._peer, other._peer = other, one
        return one, other

    def attach(self, receiver: FrameReceiver) -> None:
        """Who gets the frames that arrive at this end."""
        self._receiver = receiver

    def send(self, frame: bytes) -> None:
        if self._peer is not None:
            self._peer._arriving(frame)

    @property
    def is_congested(self) -> bool:
        return False

    async def drain(self) -> None:
        return

    def close(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            self._loop.call_soon(peer._closed, context=peer._context)
            self._loop.call_soon(self._lost, "the connection was closed")

    def break_off(self, reason: str) -> None:
        peer, self._peer = self._peer, None
        self._receiver = None
        if peer is not None:
            peer._soon(lambda: peer._lost(reason))

    def _soon(self, callback: Callable[[], None]) -> None:
        if self._latency is None:
            self._loop.call_soon(callback, context=self._context)
        else:
            self._loop.call_later(self._latency(), callback, context=self._context)

    def _arriving(self, frame: bytes) -> None:
        if not self._inbox:
            self._soon(self._deliver)
        self._inbox.append(frame)

    def _deliver(self) -> None:
        frames, self._inbox = self._inbox, []
        for frame in frames:
            if self._receiver is not None:
                self._receiver.frame_received(frame)

    def _closed(self) -> None:
        self._deliver()
        self._lost("the connection was closed by the other side")

    def _lost(self, reason: str) -> None:
        self._peer = None
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.connection_lost(reason)
