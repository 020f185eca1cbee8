"""Keeps the lines that a job's tasks print until the job's client has read them."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import suppress

from flinkray.actors.gateways.stream_coordinator import PrintedPart, PrintedText
from flinkray.rpc import RpcService
from flinkray.rpc.time_limit import within

MOST_KEPT = 2**20
"""Bytes of unread text that are kept. When more text comes, its task waits for the client.
If the client is gone, the oldest text is dropped instead.
"""
MOST_READ = 2**21
"""Largest answer in bytes, unless it is a single text."""
READ_WAIT = 5.0
"""Seconds that a read waits for text before it returns none."""
PATIENCE = 10.0
"""Seconds since the client's last read after which the client counts as gone.
Before the first read they count from the first text.
"""
END_PATIENCE = 5.0
"""Seconds that the job's end waits for a client that does not count as gone."""


class PrintedLines:
    """Stores the text that tasks have printed until the client has read it.
    Texts are numbered from 0.

    One reader is served at a time. While the client reads, no text is lost: tasks wait for the
    client. If the client has not read for PATIENCE seconds, the newest MOST_KEPT bytes stay, and
    older text goes to the log of this process.
    """

    def __init__(self, rpc_service: RpcService, coordinator: str) -> None:
        """Create a store without lines.
        *coordinator* is the id of the coordinator. The texts of another coordinator are numbered
        from 0 again.
        """
        self._clock = rpc_service.clock
        self._loop = rpc_service.loop
        self._coordinator = coordinator
        self._texts: deque[bytes] = deque()
        self._first = 0
        """Number of the first kept text."""
        self._size = 0
        self._given = 0
        """Number of the first text that was not sent to the client yet."""
        self._left_out = 0
        """Number of lines that were dropped before the client has received them."""
        self._messages: dict[str, int] = {}
        """Task name -> number of its latest message, to recognise repeated messages."""
        self._reads = 0
        """Number of reads that wait at present."""
        self._read_at: float | None = None
        """Monotonic time at which the last read ended.
        Before the first read: when the first text came.
        """
        self._has_ended = False
        self._is_read = False
        self._changed = self._loop.create_future()

    async def add(self, text: PrintedText) -> None:
        """Store *text*, unless it is stored already. Returns when the task may send more."""
        if self._messages.get(text.task, 0) < text.number:
            self._messages[text.task] = text.number
            self._append(text.data)
        while self._size > MOST_KEPT and (patience := self._patience()) > 0:
            await self._change(patience)
        while self._size > MOST_KEPT:
            self._push_out()

    def _append(self, data: bytes) -> None:
        if self._read_at is None:
            self._read_at = self._clock.monotonic()
        if self._has_ended:
            _write_to_log(data)
            return
        self._texts.append(data)
        self._size += len(data)
        self._notify()

    def _push_out(self) -> None:
        is_given = self._first < self._given
        data = self._take_first()
        if not is_given:
            self._left_out += data.count(b"\n")
            _write_to_log(data)

    def _take_first(self) -> bytes:
        data = self._texts.popleft()
        self._first += 1
        self._size -= len(data)
        return data

    async def read(self, known: str | None, position: int) -> PrintedPart:
        """Wait for printed texts from *position* on and return them; see
        :meth:`StreamCoordinatorGateway.read_printed`."""
        if known != self._coordinator:
            position = 0
        self._reads += 1
        try:
            while self._texts and self._first < position:
                self._take_first()
            self._notify()
            if not self._texts and not self._has_ended:
                await self._change(READ_WAIT)
        finally:
            self._reads -= 1
            self._read_at = self._clock.monotonic()
        if self._has_ended and not self._texts:
            self._is_read = True
            self._notify()
        return self._answer()

    def _answer(self) -> PrintedPart:
        chosen: list[bytes] = []
        size = 0
        for data in self._texts:
            size += len(data)
            if chosen and size > MOST_READ:
                break
            chosen.append(data)
        self._given = self._first + len(chosen)
        is_end = self._has_ended and len(chosen) == len(self._texts)
        return PrintedPart(self._coordinator, tuple(chosen), self._given, self._left_out, is_end)

    async def end(self) -> None:
        """Wait until the client has read everything or is gone. Call when no task prints any more.
        Text that the client has not read goes to the log.
        """
        self._has_ended = True
        self._notify()
        deadline = self._clock.monotonic() + END_PATIENCE
        while self._is_awaited():
            left = min(self._patience(), deadline - self._clock.monotonic())
            if left <= 0:
                break
            await self._change(left)
        while self._texts:
            self._push_out()

    def _is_awaited(self) -> bool:
        return not self._is_read and (self._reads > 0 or self._read_at is not None)

    def _patience(self) -> float:
        if self._reads or self._read_at is None:
            return PATIENCE
        return self._read_at + PATIENCE - self._clock.monotonic()

    async def _change(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await within(seconds, asyncio.shield(self._changed))

    def _notify(self) -> None:
        self._changed.set_result(None)
        self._changed = self._loop.create_future()


def _write_to_log(data: bytes) -> None:
    sys.stdout.write(data.decode("utf-8", "replace"))
    sys.stdout.flush()
