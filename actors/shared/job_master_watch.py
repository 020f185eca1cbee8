"""Whether the JobMaster lives that a process works for which outlives it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flinkray.actors.gateways import JobMasterGateway
from flinkray.core.errors import FencingTokenError, RecipientUnreachableError, RpcError
from flinkray.rpc import RpcEndpoint

log = logging.getLogger(__name__)

_LOOK_PAUSE = 5.0
"""Seconds after which it is looked whether the one that is watched is the right one, and looked
again if that was not told."""


class JobMasterWatch:
    """Lives on the main thread of the process's endpoint.

    It may have died before it was watched.  As all JobMasters of a job have one address, its
    successor is watched then, which is asked who it is.
    """

    def __init__(
        self, endpoint: RpcEndpoint, job_master: JobMasterGateway, on_lost: Callable[[str], None]
    ) -> None:
        """*on_lost* is told once, with the reason, when it is gone or another one is in its
        place."""
        self._endpoint = endpoint
        self._job_master = job_master
        self._on_lost = on_lost
        self._is_over = False
        self._watch = endpoint.watch(job_master, self._lost)
        endpoint.create_task(self._look_until_it_is_known(), name="look for the JobMaster")

    def cancel(self) -> None:
        """Nobody is told anything any more; idempotent."""
        self._is_over = True
        self._watch.cancel()

    async def look(self) -> bool:
        """Ask now; whether it is known.  If it is gone, that is told before this returns."""
        if self._is_over:
            return True
        try:
            await self._job_master.request_job_status()
        except (FencingTokenError, RecipientUnreachableError) as error:
            self._lost(str(error))
        except RpcError as error:
            log.info("whether the JobMaster lives is not known: %s", error)
            return False
        return True

    async def _look_until_it_is_known(self) -> None:
        is_known = False
        while not is_known:
            await self._endpoint.rpc_service.pause(_LOOK_PAUSE)
            is_known = await self.look()

    def _lost(self, reason: str) -> None:
        if not self._is_over:
            self.cancel()
            self._on_lost(reason)
