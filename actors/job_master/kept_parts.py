"""What the coordinator of the job's sources knows, kept for the case that it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart
from flinkray.actors.job_master.slot_pool_connection import Call
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.rpc import FencedRpcEndpoint


def latest_parts(parts: Iterable[KeptPart]) -> dict[JobVertexID | None, KeptPart]:
    """Of each source, and of the place of the results, the last one."""
    latest: dict[JobVertexID | None, KeptPart] = {}
    for part in parts:
        known = latest.get(part.vertex_id)
        if known is None or known.age < part.age:
            latest[part.vertex_id] = part
    return latest


class KeptParts:
    """Lives on the JobMaster's main thread: here, and at the SlotPool for the next JobMaster.

    Each pool that replaces a lost one is told all of it first.  A JobMaster that was paused, and
    does not know yet that another one leads, may start one that nobody will ask; and those of past
    JobMasters may be there yet.  So once for each pool it is made certain that it is the one that
    the next JobMaster asks.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        tell: Callable[[Call], None],
        is_found_by_successor: Callable[[], Awaitable[bool]],
    ) -> None:
        """*tell* the SlotPool, if there is one.  *is_found_by_successor*: whether the next
        JobMaster will ask that one; waits until it is certain."""
        self._job_master = job_master
        self._tell = tell
        self._is_found_by_successor = is_found_by_successor
        self._found_by_successor: SlotPoolGateway | None = None
        self._parts: dict[JobVertexID | None, KeptPart] = {}
        self._waiting: list[tuple[KeptPart, asyncio.Future[None]]] = []

    def adopt(self, parts: Iterable[KeptPart]) -> None:
        """Those of past JobMasters, before there is a pool."""
        self._parts = latest_parts([*self._parts.values(), *parts])

    def forget(self) -> None:
        """The job begins anew: they are of no use."""
        self._parts.clear()

    def begin_unknown(self, sources: Iterable[JobVertexID], restores: int) -> None:
        """Nobody but their coordinator knows how far these are.  The pool, which will have notes,
        is to say so until it has told: to the next JobMaster, what is missing would be nothing."""
        self._parts = {vertex_id: KeptPart(vertex_id, restores, 0) for vertex_id in sources}

    async def keep(self, part: KeptPart) -> None:
        """Return when the pool has it, too."""
        self._parts = latest_parts([*self._parts.values(), part])
        kept: asyncio.Future[None] = self._job_master.rpc_service.loop.create_future()
        self._waiting.append((part, kept))
        self._tell(self._call(part))
        await kept

    def of(self, restores: int) -> tuple[KeptPart, ...]:
        """What is known of sources that were restored so many times, and of the results."""
        return tuple(
            part
            for part in self._parts.values()
            if part.vertex_id is None or part.restores == restores
        )

    def for_next_pool(self) -> list[Call]:
        """All that it is to be told."""
        return [self._call(part) for part in self._parts.values()]

    def _call(self, part: KeptPart) -> Call:
        return partial(self._keep, part)

    async def _keep(self, part: KeptPart, pool: SlotPoolGateway) -> None:
        await pool.keep_part(part)
        if pool is self._found_by_successor:
            self._kept(part)
        else:  # which the pool is not to wait for
            self._job_master.create_task(self._keep_first(part, pool), "keep what sources know")

    async def _keep_first(self, part: KeptPart, pool: SlotPoolGateway) -> None:
        if await self._is_found_by_successor():
            self._found_by_successor = pool
            self._kept(part)

    def _kept(self, part: KeptPart) -> None:
        for waiting, kept in self._waiting:
            if waiting.vertex_id == part.vertex_id and waiting.age <= part.age and not kept.done():
                kept.set_result(None)
        self._waiting = [one for one in self._waiting if not one[1].done()]
