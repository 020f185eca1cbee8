"""Connects a source task to the enumerator of its source, in the job's coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
"""Longest pause in seconds before the coordinator is looked up again.
The pause doubles each time from _FIRST_PAUSE.
"""


class SplitClient:
    """Requests splits for a source task from the coordinator, and passes the coordinator's events
    to the task. Created on the event loop; the task's thread requests. Requests are repeated until
    they are answered, because the coordinator may not have started yet or may be replaced.

    Before a checkpoint the reader gets all events that the coordinator counts before the
    checkpoint. Then it gets nothing until its task has taken its snapshot, or has given up the
    checkpoint.
    """

    def __init__(self, rpc_service: RpcService, address: str, reader: ReaderProgress) -> None:
        self._rpc_service = rpc_service
        self._address = address
        self._reader = reader
        self._requests = 0
        self._position = 0
        self._checkpoint = 0
        """The latest checkpoint for which the task has taken its snapshot, or has given up."""
        self._triggers: deque[tuple[int, Callable[[], None]]] = deque()
        self._triggered: int | None = None
        """The checkpoint whose events were given, while the task has not taken its snapshot.
        Else None.
        """
        self._task_loop: TaskLoop | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def attach(self, task_loop: TaskLoop) -> None:
        """Set the task that receives events, and announce the reader.
        Called by the task's thread.
        """
        self._task_loop = task_loop
        self._call(self._ask_anew)

    def request_split(self) -> None:
        """Request one more split. Called by the task's thread."""
        self._call(self._count_request)

    def checkpointed(self, checkpoint_id: int) -> None:
        """Note that the task has taken its snapshot, or takes none. Called by the task's thread."""
        self._call(partial(self._go_on_after, checkpoint_id))

    def trigger(self, checkpoint_id: int, then: Callable[[], None]) -> None:
        """Call *then* when the reader has received all events that belong before the checkpoint.
        *then* sends the trigger to the task, which receives the trigger after the events. Called on
        the event loop.
        """
        self._triggers.append((checkpoint_id, then))
        self._ask_anew()

    def close(self) -> None:
        """Stop requesting: the task has ended. Called on the event loop."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()

    def _call(self, function: Callable[[], None]) -> None:
        self._rpc_service.loop.call_soon_threadsafe(function)

    def _count_request(self) -> None:
        self._requests += 1
        self._ask_anew()

    def _go_on_after(self, checkpoint_id: int) -> None:
        self._checkpoint = max(self._checkpoint, checkpoint_id)
        if self._triggered is not None and self._triggered <= checkpoint_id:
            self._triggered = None
            self._ask_anew()

    def _ask_anew(self) -> None:
        """End the present call to the coordinator and call again, with the latest request."""
        if self._asking is not None:
            self._asking.cancel()
        if not self._is_closed and self._task_loop is not None:
            self._asking = asyncio.ensure_future(self._ask(self._task_loop))

    async def _ask(self, task_loop: TaskLoop) -> None:
        pause = _FIRST_PAUSE
        while self._triggered is None:
            try:
                gateway = await self._rpc_service.connect(self._address, StreamCoordinatorGateway)
                if self._triggers:
                    await self._take_cut(gateway, task_loop)
                    continue
                events = await gateway.exchange(self._progress())
            except FlinkRayError as error:
                log.info("no splits from %s yet: %s", self._address, error)
                await self._rpc_service.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if not events:  # a later attempt of the task has replaced this one
                await self._rpc_service.pause(_LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            self._give(events, task_loop)

    async def _take_cut(self, gateway: StreamCoordinatorGateway, task_loop: TaskLoop) -> None:
        checkpoint_id, then = self._triggers[0]
        events = await gateway.exchange_until_cut(self._progress(), checkpoint_id)
        self._triggers.popleft()
        self._give(events, task_loop)
        self._triggered = checkpoint_id
        then()

    def _give(self, events: tuple[bytes, ...], task_loop: TaskLoop) -> None:
        self._position += len(events)
        task_loop.told(events)

    def _progress(self) -> ReaderProgress:
        return replace(
            self._reader,
            requests=self._requests,
            position=self._position,
            checkpoint_id=self._checkpoint,
        )
