"""A source task's way to know whether those are behind that take what becomes of its records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from flinkray.actors.gateways.stream_coordinator import Holders, StreamCoordinatorGateway
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import RpcService
from flinkray.streaming.sources.source_hold import SourceHold

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
"""Seconds until the coordinator is asked again that has not answered, doubled each time."""


class HoldClient:
    """Made on the event loop.  The coordinator is asked until it answers: it may not be there yet,
    or be replaced; what it said last holds meanwhile."""

    def __init__(
        self,
        rpc_service: RpcService,
        address: str,
        owner: JobMasterId,
        holders: Holders,
    ) -> None:
        self._rpc_service = rpc_service
        self._address = address
        self._owner = owner
        self._holders = holders
        self.hold = SourceHold()
        """Of the task's thread."""
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def attach(self, post: Callable[[Callable[[], None]], None]) -> None:
        """From the task's thread: *post* has something done by that thread."""
        self._rpc_service.loop.call_soon_threadsafe(self._begin, post)

    def _begin(self, post: Callable[[Callable[[], None]], None]) -> None:
        if not self._is_closed:
            self._asking = asyncio.ensure_future(self._ask(post))

    async def _ask(self, post: Callable[[Callable[[], None]], None]) -> None:
        known: bool | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                coordinator = await self._rpc_service.connect(
                    self._address, StreamCoordinatorGateway
                )
                known = await coordinator.await_hold(self._owner, self._holders, known)
            except FlinkRayError as error:
                log.info("%s does not say whether to wait yet: %s", self._address, error)
                await self._rpc_service.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            post(partial(self.hold.tell, known))

    def close(self) -> None:
        """On the event loop: the task has ended."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
