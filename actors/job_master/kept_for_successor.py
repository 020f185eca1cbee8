"""What a JobMaster keeps for its successor in case several processes die together: a copy of
everything at one TaskExecutor, and parts of the source coordinator's state.

JobMaster, SlotPool and the coordinator of the sources may die together. If this TaskExecutor dies
with them, the job could not continue anyway (``docs/design/0082-kept-at-a-task-executor.md``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.job_master.slot_pool_connection import Call
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId, JobVertexID, ResourceID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.taking_over import JobNotes, TaskExecutorReport

log = logging.getLogger(__name__)

_RETRY_DELAY = 0.1
"""Seconds until a call is repeated to a TaskExecutor that has not answered."""


class KeptCopy:
    """Keeps a copy of the notes, finished tasks and kept parts at a TaskExecutor.

    Lives on the JobMaster's main thread. There is one copy at a time, at the *keeper*: a
    TaskExecutor that the notes name, and that is sent each change. Actions that depend on a change
    wait until the keeper has the change and all other connected TaskExecutors have dropped their
    earlier copies. Without a keeper nothing waits.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        task_executors: TaskExecutorConnections,
        pieces: Callable[[], Iterable[KeptPiece]],
    ) -> None:
        """Create the copy, without a keeper.
        *pieces* returns everything that must be kept now, the notes last.
        """
        self._job_master = job_master
        self._graph = graph
        self._task_executors = task_executors
        self._pieces = pieces
        self._places: tuple[ResourceID, ...] = ()
        """The TaskExecutors that the last notes name. One of them is chosen as the keeper."""
        self._keeper: ResourceID | None = None
        self._copies = 0
        """How many copies were begun. This is also the number of the present copy."""
        self._is_anew = False
        """Whether the keeper must be sent all pieces again, as a new copy."""
        self._untold: list[KeptPiece] = []
        self._changes = 0
        self._kept = -1
        """Number of the last change that the keeper has acknowledged.
        -1: the keeper may have no change.
        """
        self._others: dict[ResourceID, None] = {}
        """TaskExecutors with an earlier copy that they must drop."""
        self._without_slots: dict[ResourceID, None] = {}
        """TaskExecutors that refuse a copy, because the job has no slot there."""
        self._telling: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []

    def on_kept(self, callback: Callable[[], None]) -> None:
        """Call *callback* whenever the keeper may have received changes, or was replaced."""
        self._listeners.append(callback)

    # --- what changes -----------------------------------------------------------------------------

    def noted(self, notes: JobNotes) -> int:
        """Add *notes* as a change, and return the number of the change.
        If there is no keeper, one is chosen among the TaskExecutors that *notes* name.
        """
        self._places = tuple(place.resource_id for place in notes.task_executors)
        self._without_slots.clear()
        change = self.add(KeptPiece(notes=notes))
        self._choose()
        return change

    def add(self, piece: KeptPiece) -> int:
        """Send *piece* to the keeper, if there is one.
        Returns the number of this change for :meth:`has`.
        """
        self._changes += 1
        if self._keeper is not None:
            self._untold.append(piece)
            self._tell()
        return self._changes

    def has(self, change: int) -> bool:
        """Return whether actions that depend on the change may begin.
        True if the keeper has the change and no other TaskExecutor has an older copy, so that the
        next JobMaster finds the change. Also True if there is no keeper.
        """
        return self._keeper is None or (self._kept >= change and not self._others)

    # --- TaskExecutors ----------------------------------------------------------------------------

    def reported(self, report: TaskExecutorReport) -> None:
        """Note that a TaskExecutor has registered, for the first time or again.
        The TaskExecutor may have a copy of an earlier JobMaster, or may have lost this JobMaster's
        copy.
        """
        resource_id = report.location.resource_id
        self._without_slots.pop(resource_id, None)
        if resource_id == self._keeper:
            self._is_anew, self._kept = True, -1
        elif report.notes is not None:
            self._others[resource_id] = None
        self._choose()
        self._tell()

    def lost(self, resource_id: ResourceID) -> None:
        """Note that a TaskExecutor has died, or has nothing of the job any more."""
        self._others.pop(resource_id, None)
        if resource_id == self._keeper:
            if self._telling is not None:  # the call may never be answered
                self._telling.cancel()
                self._telling = None
            self._give_up_keeper()
        self._go_on()

    def _give_up_keeper(self) -> None:
        self._keeper = None
        self._untold.clear()
        self._choose()

    def _choose(self) -> None:
        if self._keeper is not None:
            return
        there = (one for one in self._places if self._task_executors.is_connected(one))
        self._keeper = next((one for one in there if one not in self._without_slots), None)
        if self._keeper is not None:
            self._others.pop(self._keeper, None)  # the new copy will replace its earlier one
            self._is_anew, self._kept = True, -1
            self._tell()

    # --- calls ------------------------------------------------------------------------------------

    @property
    def _is_behind(self) -> bool:
        return self._keeper is not None and (
            self._is_anew or bool(self._untold) or bool(self._others)
        )

    def _tell(self) -> None:
        if self._is_behind and self._telling is None:
            self._telling = self._job_master.create_task(self._tell_all(), "keep at a TaskExecutor")

    async def _tell_all(self) -> None:
        try:
            while (keeper := self._keeper) is not None and self._is_behind:
                try:
                    await self._bring_up_to_date(keeper)
                # the keeper may have received it, and later pieces as well
                except FlinkRayError as error:
                    log.info(
                        "%s: %s is told again what to keep: %s", self._graph.text, keeper, error
                    )
                    self._is_anew = True
                    await self._job_master.rpc_service.pause(_RETRY_DELAY)
                self._go_on()
        finally:
            if self._telling is asyncio.current_task():
                self._telling = None

    async def _bring_up_to_date(self, keeper: ResourceID) -> None:
        if self._is_anew:
            self._copies += 1
            self._is_anew, self._untold = False, list(self._pieces())
        changes, untold, self._untold = self._changes, self._untold, []
        executor, copy = self._task_executors.get(keeper), self._copies
        token = self._job_master.fencing_token
        for piece in untold:
            if not await executor.keep(self._graph.job_id, token, copy, piece):
                log.info("%s: %s keeps nothing for it", self._graph.text, keeper)
                self._without_slots[keeper] = None
                self._give_up_keeper()
                return
        if self._is_anew:
            return
        self._kept = changes
        for other in tuple(self._others):
            await self._forget(other)

    async def _forget(self, other: ResourceID) -> None:
        try:
            executor = self._task_executors.get(other)
            await executor.keep_no_more(self._graph.job_id, self._job_master.fencing_token)
        except FlinkRayError as error:
            log.info("%s: %s is told again to forget: %s", self._graph.text, other, error)
            await self._job_master.rpc_service.pause(_RETRY_DELAY)
        else:
            self._others.pop(other, None)

    def _go_on(self) -> None:
        for listener in self._listeners:
            listener()


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
