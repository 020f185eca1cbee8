"""Which sources of a job are not read, as those are behind that take what becomes of them.

All of it is in the cluster's storage, so whoever comes after a process that has died finds it.
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
"""Seconds between two looks at who is behind, or about to be."""
IDLE_LOOK_INTERVAL = 1.0
"""Seconds between two looks at any other: each lists a folder of the storage."""


class _Seen(NamedTuple):
    is_behind: bool
    is_close: bool
    """To that, or to being so no more."""


_NOT_SEEN = _Seen(is_behind=False, is_close=True)


class SourceHolds:
    """Of one job.  Those that may be behind are looked at from when a source has asked for them.

    Args:
        most_epochs: with so many that wait, a Spark stage is behind.
        execution: of the streams, at present.
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
        """Of those that were seen."""
        self._changed: asyncio.Future[None] = endpoint.rpc_service.loop.create_future()

    async def await_other_than(self, known: bool | None, holders: Holders) -> bool:
        """Whether one of them is behind, as soon as that is not what is known."""
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
            log.info("too much waits at %s: its sources wait, too", name)
        elif was_behind:
            log.info("%s has room again: its sources go on", name)
        self._is_behind[name] = is_behind
        self._changed.set_result(None)
        self._changed = self._endpoint.rpc_service.loop.create_future()
