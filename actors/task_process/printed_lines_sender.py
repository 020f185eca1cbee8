"""Sends the lines that a task's print sinks write to the job's coordinator, for the client."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from concurrent import futures

from flinkray.actors.gateways.stream_coordinator import (
    PrintedText,
    StreamCoordinatorGateway,
)
from flinkray.actors.task_process.client_output import ClientOutput
from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import RpcService

log = logging.getLogger(__name__)

MAX_PIECE = 2**18
"""Largest number of characters in one message. A longer line is sent in several messages."""
_PAUSE = 0.1
"""Seconds until an unanswered message is repeated."""
_LAST_WORDS = 3.0
"""Seconds for which a failed task waits until its lines are sent."""


class PrintedLinesOutput(ClientOutput):
    """Sends a task's printed lines to the job's coordinator, which keeps them for the client.
    The coordinator answers when there is room for more, so that a slow client slows the task down.

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
        super().__init__(on_room)
        self._rpc_service = rpc_service
        self._address = address
        self._job_master_id = job_master_id
        self._task = task
        self._messages = 0
        self._is_closed = False

    # --- for the task's thread ----------------------------------------------------------------

    def write(self, lines: str) -> None:
        """Queue whole lines of text to be sent to the job's coordinator."""
        for piece in _pieces(lines):
            self._write(piece.encode("utf-8", "surrogatepass"))

    def is_processed(self) -> bool:
        """Return whether everything that was written is sent."""
        return self._put == self._sent

    def flush(self) -> None:
        """Wait up to _LAST_WORDS seconds until everything is sent.
        Called when the task has ended.
        """
        if not self.is_processed():
            sent = asyncio.run_coroutine_threadsafe(self._all_sent(), self._loop)
            futures.wait([sent], timeout=_LAST_WORDS)
            sent.cancel()

    # --- on the event loop --------------------------------------------------------------------

    def _add(self, piece: bytes) -> None:
        if self._is_closed:
            _write_to_log(piece)
        else:
            super()._add(piece)

    def _next(self) -> bytes:
        """Remove as many waiting pieces as fit into one message, and return them joined."""
        data = super()._next()
        while self._waiting and len(data) + len(self._waiting[0]) <= MAX_PIECE:
            data += super()._next()
        return data

    async def _send(self, piece: bytes) -> None:
        self._messages += 1
        message = PrintedText(self._job_master_id, self._task, self._messages, piece)
        while True:
            try:
                coordinator = await self._rpc_service.connect(
                    self._address, StreamCoordinatorGateway
                )
                await coordinator.printed(message)
                return
            except CoordinatorReplacedError as error:
                log.info(
                    "%s refuses the lines that %s prints: %s", self._address, self._task, error
                )
                _write_to_log(piece)
                return
            except FlinkRayError as error:
                log.info("printed lines cannot be sent to %s yet: %s", self._address, error)
                await self._rpc_service.pause(_PAUSE)

    def close(self) -> None:
        """Write unsent lines to the log: the task has ended."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.add_done_callback(lambda _: self._write_rest_to_log())
            self._sending.cancel()

    def _write_rest_to_log(self) -> None:
        while self._waiting:
            _write_to_log(self._waiting.popleft())


def _write_to_log(data: bytes) -> None:
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
