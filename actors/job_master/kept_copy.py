"""The copy of a JobMaster's notes at a TaskExecutor, in case several processes die together.

JobMaster, SlotPool and the coordinator of the sources may die together. The copy survives unless
its TaskExecutor dies with them, and then the job could not continue anyway
(``docs/design/0082-kept-at-a-task-executor.md``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from flinkray.actors.gateways.stream_coordinator import KeptPiece
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.actors.shared.kept_notes import KeptNotes
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId, ResourceID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.taking_over import TaskExecutorReport

log = logging.getLogger(__name__)

_RETRY_DELAY = 0.1
"""Seconds until a call is repeated to a TaskExecutor that has not answered."""


class KeptCopy:
    """Stores a copy of this JobMaster's notes, with finished tasks and the parts of the source
    coordinator's state, at one TaskExecutor, the *keeper*.

    Lives on the JobMaster's main thread. The keeper is one of the TaskExecutors that the notes
    name. It is sent each change. Actions that depend on a change wait until the keeper has the
    change and all other connected TaskExecutors have dropped their earlier copies. Without a keeper
    nothing waits.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        task_executors: TaskExecutorConnections,
        book: KeptNotes,
        *,
        on_kept: Callable[[], None],
    ) -> None:
        """Create the copy of *book* (the notes and what belongs to them), without a keeper.
        *on_kept* is called whenever the keeper may have received changes, or was replaced.
        """
        self._job_master = job_master
        self._graph = graph
        self._task_executors = task_executors
        self._book = book
        self._on_kept = on_kept
        self._places: tuple[ResourceID, ...] = ()
        """The TaskExecutors that the last notes name. One of them is chosen as the keeper."""
        self._keeper: ResourceID | None = None
        self._copies = 0
        """How many copies were begun. This is also the number of the present copy."""
        self._is_anew = False
        """Whether the keeper must be sent all pieces again, as a new copy."""
        self._untold: list[KeptPiece] = []
        self._last_change = 0
        self._kept = -1
        """Number of the last change that the keeper has acknowledged.
        -1: the keeper may have no change.
        """
        self._others: dict[ResourceID, None] = {}
        """TaskExecutors with an earlier copy that they must drop."""
        self._without_slots: dict[ResourceID, None] = {}
        """TaskExecutors that refuse a copy, because the job has no slot there."""
        self._telling: asyncio.Task[None] | None = None

    # --- what changes -----------------------------------------------------------------------------

    def add(self, change: int, piece: KeptPiece) -> None:
        """Send *piece*, which is change number *change* of the notes, to the keeper: the
        TaskExecutor that stores the copy. If there is no keeper, one is chosen among the
        TaskExecutors that the last notes name."""
        self._last_change = change
        if self._keeper is not None:
            self._untold.append(piece)
        if piece.notes is not None:
            self._places = tuple(place.resource_id for place in piece.notes.task_executors)
            self._without_slots.clear()
            self._choose()
        self._tell()

    def has(self, change: int) -> bool:
        """Return whether actions that depend on change number *change* may begin. True if the
        keeper (the TaskExecutor that stores the copy) has the change and no other TaskExecutor has
        an older copy, so that the next JobMaster finds the change. Also True if there is no keeper.
        """
        return self._keeper is None or (self._kept >= change and not self._others)

    # --- TaskExecutors ----------------------------------------------------------------------------

    def reported(self, report: TaskExecutorReport) -> None:
        """Note that a TaskExecutor has registered, for the first time or again. If it has a copy of
        an earlier JobMaster, it is told to drop that. If it stores this JobMaster's copy, it is
        sent everything again, because it may have lost the copy."""
        resource_id = report.location.resource_id
        self._without_slots.pop(resource_id, None)
        if resource_id == self._keeper:
            self._is_anew, self._kept = True, -1
        elif report.notes is not None:
            self._others[resource_id] = None
        self._choose()
        self._tell()

    def lost(self, resource_id: ResourceID) -> None:
        """Note that a TaskExecutor has died, or has nothing of the job any more. If it stored the
        copy, another TaskExecutor is chosen to store it."""
        self._others.pop(resource_id, None)
        if resource_id == self._keeper:
            if self._telling is not None:  # the call may never be answered
                self._telling.cancel()
                self._telling = None
            self._give_up_keeper()
        self._on_kept()

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
                        "%s: the notes are sent to %s again: %s", self._graph.text, keeper, error
                    )
                    self._is_anew = True
                    await self._job_master.rpc_service.pause(_RETRY_DELAY)
                self._on_kept()
        finally:
            if self._telling is asyncio.current_task():
                self._telling = None

    async def _bring_up_to_date(self, keeper: ResourceID) -> None:
        if self._is_anew:
            self._copies += 1
            self._is_anew, self._untold = False, list(self._book.pieces())
        changes, untold, self._untold = self._last_change, self._untold, []
        executor, copy = self._task_executors.get(keeper), self._copies
        token = self._job_master.fencing_token
        for piece in untold:
            if not await executor.keep(self._graph.job_id, token, copy, piece):
                log.info("%s: %s does not store the notes", self._graph.text, keeper)
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
