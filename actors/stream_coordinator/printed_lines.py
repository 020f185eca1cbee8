"""What the tasks of a job print, until the job's client has read it."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import suppress

from flinkray.actors.gateways.stream_coordinator import PrintedPart, PrintedText
from flinkray.rpc import RpcService
from flinkray.rpc.time_limit import within

MOST_KEPT = 2**20
"""Bytes: tasks that write more wait for the client, or push out what is oldest when it is gone."""
MOST_READ = 2**21
"""Bytes of one answer, if it is not a single text."""
READ_WAIT = 5.0
"""Seconds that a read waits for text before it is answered with none."""
PATIENCE = 10.0
"""Seconds since a client's last read, or the first text, after which it is taken for gone."""
END_PATIENCE = 5.0
"""Seconds that the job's end waits for a client which is not taken for gone."""


class PrintedLines:
    """One reader at a time.  Texts have numbers that count from 0.

    While the client reads, nothing is lost: tasks wait for it.  When it has not for PATIENCE
    seconds, the newest MOST_KEPT bytes are kept, and what is older goes to the log of this process.
    """

    def __init__(self, rpc_service: RpcService, attempt_number: int) -> None:
        """*attempt_number*: of the coordinator; another one begins anew."""
        self._clock = rpc_service.clock
        self._loop = rpc_service.loop
        self._coordinator = f"{rpc_service.process_name}#{attempt_number}"
        self._texts: deque[bytes] = deque()
        self._first = 0
        """The number of the first of these."""
        self._size = 0
        self._given = 0
        """The number of the first that no read was answered with."""
        self._left_out = 0
        """Lines that the client has not got."""
        self._messages: dict[str, int] = {}
        """Of tasks: the latest."""
        self._reads = 0
        """That wait at present."""
        self._read_at: float | None = None
        """When the last read ended; that of the first text before there was one."""
        self._has_ended = False
        self._is_read = False
        """To the end."""
        self._changed = self._loop.create_future()

    async def add(self, text: PrintedText) -> None:
        """Returns when there is room for more.  May be repeated."""
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
        """The oldest text; what the client was given, and has not read on behind, it has."""
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
        """See :meth:`StreamCoordinatorGateway.read_printed`."""
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
        """No task prints any more: returns when the client has read all, or is gone."""
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
        """Seconds until the client is taken for gone."""
        if self._reads or self._read_at is None:
            return PATIENCE
        return self._read_at + PATIENCE - self._clock.monotonic()

    async def _change(self, seconds: float) -> None:
        """Wait for one, though not for longer."""
        with suppress(asyncio.TimeoutError):
            await within(seconds, asyncio.shield(self._changed))

    def _notify(self) -> None:
        self._changed.set_result(None)
        self._changed = self._loop.create_future()


def _write_to_log(data: bytes) -> None:
    sys.stdout.write(data.decode("utf-8", "replace"))
    sys.stdout.flush()
