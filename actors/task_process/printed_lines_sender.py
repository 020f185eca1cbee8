"""Sends the lines that a task's print sinks write to the job's coordinator, for the client."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures

from flinkray.actors.gateways.stream_coordinator import (
    PrintedText,
    StreamCoordinatorGateway,
)
from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import RpcService
from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.records.in_flight import Settled

log = logging.getLogger(__name__)

MOST_WAITING = 2**20
"""Bytes that may wait for the coordinator. With more, the task waits, and all tasks before it."""
MAX_PIECE = 2**18
"""Largest number of characters in one message. A longer line is sent in several messages."""
_PAUSE = 0.1
"""Seconds until an unanswered message is repeated."""
_LAST_WORDS = 3.0
"""Seconds for which a failed task waits until its lines are sent."""


class PrintedLinesOutput:
    """Sends a task's printed lines to the job's coordinator.
    Created on the event loop and written by the task's thread. The coordinator answers when there
    is room for more, so that a slow client slows the task down.

    Lines that cannot be sent any more are written to the log of this process.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        address: str,
        job_master_id: JobMasterId,
        task: str,
        on_room: Callable[[], None],
    ) -> None:
        """Create an output without lines.
        *task* is the task's name with subtask and attempt. *on_room* is called when the task may
        write again, and when everything is sent.
        """
        self._rpc_service = rpc_service
        self._address = address
        self._job_master_id = job_master_id
        self._task = task
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._put = 0
        """Bytes written, counted by the task's thread."""
        self._sent = 0
        """Bytes sent, counted by the event loop."""
        self._messages = 0
        self._waiting: deque[bytes] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    # --- for the task's thread ----------------------------------------------------------------

    def write(self, lines: str) -> None:
        """Queue whole lines of text to be sent to the job's coordinator."""
        for piece in _pieces(lines):
            data = piece.encode("utf-8", "surrogatepass")
            self._put += len(data)
            self._loop.call_soon_threadsafe(self._add, data)

    def has_room(self) -> bool:
        return self._put - self._sent < MOST_WAITING

    def is_sent(self) -> bool:
        """Return whether everything that was written is sent."""
        return self._put == self._sent

    def flush(self) -> None:
        """Wait up to _LAST_WORDS seconds until everything is sent.
        Called when the task has ended.
        """
        if not self.is_sent():
            sent = asyncio.run_coroutine_threadsafe(self._all_sent(), self._loop)
            futures.wait([sent], timeout=_LAST_WORDS)
            sent.cancel()

    def flush_when_idle(self) -> None:
        """Do nothing: lines are sent at once."""

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """Call *settled* at once: the client sees no barriers, so nothing has to be waited for."""
        settled({})

    def cancelled_barrier(self, checkpoint_id: int) -> None:
        """Do nothing: the client sees no barriers."""

    def process_watermark(self, timestamp: int) -> None:
        """Do nothing: the client sees no watermarks."""

    def end_of_data(self) -> None:
        """Do nothing: lines are sent at once."""

    def is_processed(self) -> bool:
        return self.is_sent()

    def end_of_input(self) -> None:
        """Do nothing: everything is sent."""

    # --- on the event loop --------------------------------------------------------------------

    def _add(self, data: bytes) -> None:
        if self._is_closed:
            self._write_to_log(data)
            return
        self._waiting.append(data)
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        while self._waiting:
            data = self._waiting.popleft()
            while self._waiting and len(data) + len(self._waiting[0]) <= MAX_PIECE:
                data += self._waiting.popleft()
            self._messages += 1
            message = PrintedText(self._job_master_id, self._task, self._messages, data)
            try:
                await self._send(message)
            except asyncio.CancelledError:
                self._waiting.appendleft(data)
                raise
            self._sent += len(data)
            self._on_room()
        self._sending = None

    async def _send(self, message: PrintedText) -> None:
        while True:
            try:
                coordinator = await self._rpc_service.connect(
                    self._address, StreamCoordinatorGateway
                )
                await coordinator.printed(message)
                return
            except CoordinatorReplacedError as error:
                log.info("%s does not want what %s prints: %s", self._address, self._task, error)
                self._write_to_log(message.data)
                return
            except FlinkRayError as error:
                log.info("%s is not told yet what is printed: %s", self._address, error)
                await self._rpc_service.pause(_PAUSE)

    async def _all_sent(self) -> None:
        while self._sending is not None:
            await asyncio.shield(self._sending)

    def close(self) -> None:
        """Write unsent lines to the log: the task has ended."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.add_done_callback(lambda _: self._write_rest_to_log())
            self._sending.cancel()

    def _write_rest_to_log(self) -> None:
        while self._waiting:
            self._write_to_log(self._waiting.popleft())

    def _write_to_log(self, data: bytes) -> None:
        sys.stdout.write(data.decode("utf-8", "replace"))
        sys.stdout.flush()


def _pieces(lines: str) -> Iterator[str]:
    begin = 0
    while len(lines) - begin > MAX_PIECE:
        end = lines.rfind("\n", begin, begin + MAX_PIECE) + 1
        end = end or begin + MAX_PIECE
        yield lines[begin:end]
        begin = end
    yield lines[begin:]
