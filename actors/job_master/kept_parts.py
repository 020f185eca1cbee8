"""Parts of the source coordinator's state, kept for the case that the coordinator dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.job_master.kept_copy import KeptCopy
from flinkray.actors.job_master.slot_pool_connection import Call
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.rpc import FencedRpcEndpoint


def latest_parts(parts: Iterable[KeptPart]) -> dict[JobVertexID | None, KeptPart]:
    """Return the latest part of each source, and the part with the results' address (key None)."""
    latest: dict[JobVertexID | None, KeptPart] = {}
    for part in parts:
        known = latest.get(part.vertex_id)
        if known is None or known.age < part.age:
            latest[part.vertex_id] = part
    return latest


@dataclass(slots=True)
class _Waiting:
    part: KeptPart
    change: int
    """Number of the change, returned by :meth:`KeptCopy.add`."""
    kept: asyncio.Future[None]
    is_at_pool: bool = False


class KeptParts:
    """Keeps the parts of the source coordinator's state that the coordinator reports.

    The parts are kept here, at the SlotPool, and at a TaskExecutor. Lives on the JobMaster's main
    thread. A pool that replaces a lost one is first sent all parts. A pool counts only once it is
    certain that the next JobMaster will ask it. It would ask another pool if this JobMaster has
    been replaced without knowing it, or if pools of past JobMasters still exist.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        tell: Callable[[Call], None],
        is_found_by_successor: Callable[[], Awaitable[bool]],
        copy: KeptCopy,
    ) -> None:
        """Create the collection of kept parts, without parts.

        Args:
            tell: sends a call to the SlotPool, if there is one.
            is_found_by_successor: whether the next JobMaster will ask the present pool. Waits until
                this is certain.
            copy: the copy at a TaskExecutor.
        """
        self._job_master = job_master
        self._tell = tell
        self._is_found_by_successor = is_found_by_successor
        self._found_by_successor: SlotPoolGateway | None = None
        self._parts: dict[JobVertexID | None, KeptPart] = {}
        self._waiting: list[_Waiting] = []
        self._copy = copy
        copy.on_kept(self._go_on)

    def adopt(self, parts: Iterable[KeptPart]) -> None:
        """Add the parts that past JobMasters have left.
        Call this before this JobMaster has a pool.
        """
        self._parts = latest_parts([*self._parts.values(), *parts])

    def forget(self) -> None:
        """Drop all parts, because the job begins again with all its sources."""
        self._parts.clear()

    def begin_unknown(self, sources: Iterable[JobVertexID], restores: int) -> None:
        """Replace all parts by marks: only the coordinator knows the progress of these sources.
        The pool must have the marks together with the notes until the coordinator has reported.
        Without a mark the next JobMaster would assume that a source has no progress.
        """
        self._parts = {vertex_id: KeptPart(vertex_id, restores, 0) for vertex_id in sources}

    async def keep(self, part: KeptPart) -> None:
        """Keep *part*. Returns when the SlotPool and the TaskExecutor with the copy have *part*."""
        self._parts = latest_parts([*self._parts.values(), part])
        kept: asyncio.Future[None] = self._job_master.rpc_service.loop.create_future()
        change = self._copy.add(KeptPiece(part=part))
        self._waiting.append(_Waiting(part, change, kept))
        self._tell(self._call(part))
        await kept

    def of(self, restores: int) -> tuple[KeptPart, ...]:
        """Return the parts that belong to restore number *restores* of the sources, and the part
        with the results' address.
        """
        return tuple(
            part
            for part in self._parts.values()
            if part.vertex_id is None or part.restores == restores
        )

    @property
    def all(self) -> tuple[KeptPart, ...]:
        """The latest part of each source, and the part with the results' address."""
        return tuple(self._parts.values())

    def for_next_pool(self) -> list[Call]:
        """Return the calls with which a new pool is sent all parts."""
        return [self._call(part) for part in self._parts.values()]

    def _call(self, part: KeptPart) -> Call:
        return partial(self._keep, part)

    async def _keep(self, part: KeptPart, pool: SlotPoolGateway) -> None:
        await pool.keep_part(part)
        if pool is self._found_by_successor:
            self._kept(part)
        else:  # runs in the background, so that the pool does not wait
            self._job_master.create_task(self._keep_first(part, pool), "keep what sources know")

    async def _keep_first(self, part: KeptPart, pool: SlotPoolGateway) -> None:
        if await self._is_found_by_successor():
            self._found_by_successor = pool
            self._kept(part)

    def _kept(self, part: KeptPart) -> None:
        """Note that the SlotPool has *part*. Calls of :meth:`keep` may have waited for this."""
        for one in self._waiting:
            one.is_at_pool |= one.part.vertex_id == part.vertex_id and one.part.age <= part.age
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not (one.is_at_pool and self._copy.has(one.change)):
                self._waiting.append(one)
            elif not one.kept.done():
                one.kept.set_result(None)
