"""Decides which sources of a job are paused because consumers of their records are behind.

A consumer is a Spark stage, whose epochs wait in the cluster's storage, or a look-up join, which
notes in the storage that too many records wait. A new coordinator finds both there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from flinkray.actors.gateways.stream_coordinator import Holders
from flinkray.core.ids import JobID, JobVertexID
from flinkray.file_results import Epochs, LookUpNotes, epochs_location, look_ups_location
from flinkray.rpc import RpcEndpoint

log = logging.getLogger(__name__)

LOOK_INTERVAL = 0.2
"""Seconds between two looks at a consumer that is behind, or close to it."""
IDLE_LOOK_INTERVAL = 1.0
"""Seconds between two looks at a consumer that is not close to being behind.
Each look lists a folder of the storage.
"""


class _Seen(NamedTuple):
    is_behind: bool
    is_close: bool
    """Whether the next look may find that the consumer is behind, or is not behind any more."""


_NOT_SEEN = _Seen(is_behind=False, is_close=True)


class SourceHolds:
    """Knows which consumers of a job's sources are behind.
    A consumer is watched from the first time that a source asks about it.

    Args:
        most_epochs: a Spark stage is behind if this many epochs wait for it.
        execution: returns the name of the present stream execution.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        storage_dir: str,
        job_id: JobID,
        most_epochs: int,
        execution: Callable[[], str],
    ) -> None:
        self._endpoint = endpoint
        self._storage_dir = storage_dir
        self._job_id = job_id
        self._most_epochs = most_epochs
        self._execution = execution
        self._looked_at: set[str] = set()
        self._is_behind: dict[str, bool] = {}
        """Name of each consumer that was looked at -> whether the consumer is behind."""
        self._changed: asyncio.Future[None] = endpoint.rpc_service.loop.create_future()

    async def await_other_than(self, known: bool | None, holders: Holders) -> bool:
        """Return whether any of *holders* is behind. Waits until the answer differs from *known*
        (None: there is no earlier answer)."""
        looks = {f"Spark stage {one}": partial(self._at_stage, one) for one in holders.stages}
        looks |= {f"look-up {one}": partial(self._at_look_up, one) for one in holders.look_ups}
        for name, look in looks.items():
            if name not in self._looked_at:
                self._looked_at.add(name)
                self._endpoint.create_task(self._look(name, look), f"look at {name}")
        while True:
            if looks.keys() <= self._is_behind.keys():
                is_held = any(self._is_behind[name] for name in looks)
                if is_held is not known:
                    return is_held
            await asyncio.shield(self._changed)

    def _at_stage(self, stage: JobVertexID, execution: str) -> _Seen:
        epochs = Epochs(epochs_location(self._storage_dir, self._job_id, stage))
        waiting = epochs.waiting()
        return _Seen(waiting >= self._most_epochs, 2 * waiting >= self._most_epochs)

    def _at_look_up(self, look_up: str, execution: str) -> _Seen:
        notes = LookUpNotes(look_ups_location(self._storage_dir, self._job_id, look_up))
        is_full = notes.is_full(execution)
        return _Seen(is_full, is_full)

    async def _look(self, name: str, look: Callable[[str], _Seen]) -> None:
        service, seen = self._endpoint.rpc_service, _NOT_SEEN
        while True:
            try:
                seen = await service.run_blocking(look, self._execution())
            except OSError as error:
                log.warning("whether %s is behind is not known: %s", name, error)
            else:
                self._note(name, seen.is_behind)
            await service.pause(LOOK_INTERVAL if seen.is_close else IDLE_LOOK_INTERVAL)

    def _note(self, name: str, is_behind: bool) -> None:
        was_behind = self._is_behind.get(name)
        if was_behind is is_behind:
            return
        if is_behind:
            log.info("%s is behind: its sources are paused", name)
        elif was_behind:
            log.info("%s is not behind any more: its sources continue", name)
        self._is_behind[name] = is_behind
        self._changed.set_result(None)
        self._changed = self._endpoint.rpc_service.loop.create_future()
