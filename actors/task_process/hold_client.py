"""Tells a source task whether consumers of its records are behind."""

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
"""Longest pause in seconds before an unanswered request is repeated.
The pause doubles each time from _FIRST_PAUSE.
"""


class HoldClient:
    """Asks the coordinator whether the source must not be read for now, and tells the task.
    Created on the event loop. Requests are repeated until the coordinator answers, because it may
    not have started yet or may be replaced. Until then the last answer applies.
    """

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
        """Last answer of the coordinator. Used by the task's thread."""
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def attach(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin to ask. Called by the task's thread; *post* runs a function in this thread."""
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
        """Stop asking: the task has ended. Called on the event loop."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
