"""A source task's way to the enumerator of its source, which runs in the job's coordinator."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from flinkray.actors.gateways.stream_coordinator import (
    ReaderProgress,
    StreamCoordinatorGateway,
)
from flinkray.core.errors import FlinkRayError
from flinkray.rpc import RpcService
from flinkray.streaming.task.task_loop import TaskLoop

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
"""Seconds until the coordinator is looked for again, doubled each time."""


class SplitClient:
    """Made on the event loop; the task's thread asks.  Questions are repeated until they are
    answered: the coordinator may not be there yet, or be replaced."""

    def __init__(self, rpc_service: RpcService, address: str, reader: ReaderProgress) -> None:
        self._rpc_service = rpc_service
        self._address = address
        self._reader = reader
        self._requests = 0
        self._position = 0
        self._task_loop: TaskLoop | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def attach(self, task_loop: TaskLoop) -> None:
        """From the task's thread: where splits go to.  The enumerator hears of the reader."""
        self._task_loop = task_loop
        self._call(self._ask_anew)

    def request_split(self) -> None:
        """From the task's thread."""
        self._call(self._count_request)

    def close(self) -> None:
        """On the event loop: the task has ended."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()

    def _call(self, function: object) -> None:
        self._rpc_service.loop.call_soon_threadsafe(function)  # type: ignore[arg-type]

    def _count_request(self) -> None:
        self._requests += 1
        self._ask_anew()

    def _ask_anew(self) -> None:
        """The call that is under way does not know of the latest request."""
        if self._asking is not None:
            self._asking.cancel()
        if not self._is_closed:
            self._asking = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            progress = replace(self._reader, requests=self._requests, position=self._position)
            try:
                gateway = await self._rpc_service.connect(self._address, StreamCoordinatorGateway)
                events = await gateway.exchange(progress)
            except FlinkRayError as error:
                log.info("no splits from %s yet: %s", self._address, error)
                await self._rpc_service.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if not events:  # a later attempt of the task has taken its place
                await self._rpc_service.pause(_LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            assert self._task_loop is not None
            self._position += len(events)
            self._task_loop.told(events)
