"""Base of the outputs of a task whose reader is the job's client."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.records.in_flight import Settled
from flinkray.streaming.task.task import StreamTaskOutput

MOST_WAITING = 2**20
"""Bytes that may wait for the client. With more, the task waits, and all tasks before it."""


class ClientOutput(StreamTaskOutput):
    """Base class of outputs that a task's thread writes and that are sent from the event loop, in
    order, for the job's client.

    The client sees no barriers and no watermarks. Created on the event loop.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        """Create an output with nothing to send. *on_room* is called whenever a piece was sent, so
        that the task may write again."""
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._put = 0
        """Bytes written, counted by the task's thread."""
        self._sent = 0
        """Bytes sent, counted by the event loop."""
        self._waiting: deque[bytes] = deque()
        self._sending: asyncio.Task[None] | None = None

    # --- for the task's thread ----------------------------------------------------------------

    def _write(self, piece: bytes) -> None:
        self._put += len(piece)
        self._loop.call_soon_threadsafe(self._add, piece)

    def has_room(self) -> bool:
        return self._put - self._sent < MOST_WAITING

    def flush_when_idle(self) -> None:
        """Do nothing: pieces are sent at once."""

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """Call *settled* at once: the client sees no barriers, so nothing has to be waited for."""
        settled({})

    def cancelled_barrier(self, checkpoint_id: int) -> None:
        """Do nothing: the client sees no barriers."""

    def process_watermark(self, timestamp: int) -> None:
        """Do nothing: the client sees no watermarks."""

    def end_of_data(self) -> None:
        """Do nothing: pieces are sent at once."""

    def end_of_input(self) -> None:
        """Do nothing: there is no other reader to be told."""

    # --- on the event loop --------------------------------------------------------------------

    def _add(self, piece: bytes) -> None:
        self._waiting.append(piece)
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        while self._waiting:
            piece = self._next()
            try:
                await self._send(piece)
            except asyncio.CancelledError:
                self._waiting.appendleft(piece)
                raise
            self._sent += len(piece)
            self._on_room()
        self._sending = None

    def _next(self) -> bytes:
        return self._waiting.popleft()

    @abstractmethod
    async def _send(self, piece: bytes) -> None:
        """Send a piece. Returns when the next piece may be sent."""

    async def _all_sent(self) -> None:
        while self._sending is not None:
            await asyncio.shield(self._sending)
