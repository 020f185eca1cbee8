"""How many epochs wait for the Spark stages of a job, and which sources are not read for that.

All of it is in the cluster's storage, so whoever comes after a process that has died finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from flinkray.core.ids import JobVertexID
from flinkray.file_results import Epochs
from flinkray.rpc import RpcEndpoint

log = logging.getLogger(__name__)

LOOK_INTERVAL = 0.2
"""Seconds between two looks at a stage that is behind, or about to be."""
IDLE_LOOK_INTERVAL = 1.0
"""Seconds between two looks at any other: each lists a folder of the storage."""


class WaitingEpochs:
    """Of one job.  A stage is looked at from when a source of its stream has asked.

    Args:
        most: with so many that wait, a stage is behind.
        location_of: where the epochs of a stage are.
    """

    def __init__(
        self, endpoint: RpcEndpoint, most: int, location_of: Callable[[JobVertexID], str]
    ) -> None:
        self._endpoint = endpoint
        self._most = most
        self._location_of = location_of
        self._looked_at: set[JobVertexID] = set()
        self._is_behind: dict[JobVertexID, bool] = {}
        """Of stages that were seen."""
        self._changed: asyncio.Future[None] = endpoint.rpc_service.loop.create_future()

    async def await_other_than(self, known: bool | None, takers: Sequence[JobVertexID]) -> bool:
        """Whether one of these stages is behind, as soon as that is not what is known."""
        for taker in takers:
            if taker not in self._looked_at:
                self._looked_at.add(taker)
                self._endpoint.create_task(self._look(taker), "look for epochs that wait")
        while True:
            if all(taker in self._is_behind for taker in takers):
                is_held = any(self._is_behind[taker] for taker in takers)
                if is_held is not known:
                    return is_held
            await asyncio.shield(self._changed)

    async def _look(self, taker: JobVertexID) -> None:
        service, location = self._endpoint.rpc_service, self._location_of(taker)
        waiting = 0
        while True:
            try:
                waiting = await service.run_blocking(lambda: Epochs(location).waiting())
            except OSError as error:
                log.warning("how many epochs wait for %s is not known: %s", taker, error)
            else:
                self._note(taker, waiting)
            is_close = 2 * waiting >= self._most
            await service.pause(LOOK_INTERVAL if is_close else IDLE_LOOK_INTERVAL)

    def _note(self, taker: JobVertexID, waiting: int) -> None:
        is_behind = waiting >= self._most
        if self._is_behind.get(taker) is is_behind:
            return
        if is_behind or taker in self._is_behind:
            log.info(
                "%d epochs wait for %s: its sources %s",
                waiting,
                taker,
                "wait, too" if is_behind else "go on",
            )
        self._is_behind[taker] = is_behind
        self._changed.set_result(None)
        self._changed = self._endpoint.rpc_service.loop.create_future()
