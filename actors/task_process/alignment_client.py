"""Connects a source task to the alignment group of its watermarks, in the job's coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from flinkray.actors.gateways.stream_coordinator import StreamCoordinatorGateway
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import RpcService
from flinkray.streaming.time.watermark_alignment import TaskAlignment

log = logging.getLogger(__name__)

_PAUSE = 0.1
"""Seconds until an unanswered report is repeated."""


class AlignmentClient:
    """Reports a source task's watermarks, and tells the task the least watermark of its group.
    Created on the event loop; the task's thread reports. If a member reports faster than the
    coordinator answers, only its last report is sent.
    """

    def __init__(
        self, rpc_service: RpcService, address: str, job_master_id: JobMasterId, task: str
    ) -> None:
        self._rpc_service = rpc_service
        self._address = address
        self._job_master_id = job_master_id
        self.alignment = TaskAlignment(task, self._report)
        """Holds the source back while its group is behind. Used by the task's thread."""
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._unsent: dict[tuple[str, str], int] = {}
        self._sending: asyncio.Task[None] | None = None

    def attach(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Set *post*, which runs a function in the task's thread. Called by this thread."""
        self._post = post

    def _report(self, group: str, member: str, watermark: int) -> None:
        self._rpc_service.loop.call_soon_threadsafe(self._note, group, member, watermark)

    def _note(self, group: str, member: str, watermark: int) -> None:
        self._unsent[group, member] = watermark
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while self._unsent:
            (group, member), watermark = next(iter(self._unsent.items()))
            try:
                coordinator = await self._rpc_service.connect(
                    self._address, StreamCoordinatorGateway
                )
                least = await coordinator.report_watermark(
                    self._job_master_id, group, member, watermark
                )
            except FlinkRayError as error:
                log.info("no watermarks of others from %s: %s", self._address, error)
                await self._rpc_service.pause(_PAUSE)
                continue
            if self._unsent.get((group, member)) == watermark:
                del self._unsent[group, member]
            self._announce(group, least)
        self._sending = None

    def _announce(self, group: str, least: int) -> None:
        if self._post is not None:
            self._post(lambda: self.alignment.announce(group, least))

    async def flush(self) -> None:
        """Return when everything is reported, so that an ended task does not hold others back."""
        while self._sending is not None:
            await asyncio.shield(self._sending)

    def close(self) -> None:
        """Stop reporting: the task has ended."""
        if self._sending is not None:
            self._sending.cancel()
