"""Notes of a JobMaster for its successor, stored before the JobMaster acts.

The JobMaster writes them. Its SlotPool and a TaskExecutor keep them, so that they are lost only if
tasks are lost, too (``docs/design/0085-one-book.md``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.job_master.kept_copy import KeptCopy
from flinkray.actors.job_master.left_by_past_job_masters import PastPools
from flinkray.actors.job_master.slot_pool_supervision import Call
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.actors.shared.kept_notes import FINISHED_PER_MESSAGE, KeptNotes
from flinkray.core.ids import JobMasterId
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that waits until a change is stored where the next JobMaster finds it."""

    change: int
    is_of_part: bool
    kept: asyncio.Future[None]


class NotesForSuccessor:
    """Stores this JobMaster's notes for the next JobMaster, with finished tasks and parts of the
    source coordinator's state. Lives on the JobMaster's main thread.

    Each change has a number, counted from 1, and is sent to the SlotPool and to the *keeper*, a
    TaskExecutor (:class:`KeptCopy`). A pool that replaces a lost one is first sent everything.
    A change is *kept* once both have it.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        task_executors: TaskExecutorConnections,
        tell: Callable[[Call], None],
        past: PastPools | None,
        is_certain: Callable[[], Awaitable[bool]],
    ) -> None:
        """Create the object that keeps the notes, without notes.

        Args:
            tell: sends a call to the SlotPool, if there is one.
            past: the pools that may have notes of earlier JobMasters. None if there are none.
            is_certain: asks the election whether this JobMaster still leads.
        """
        self._job_master = job_master
        self._tell = tell
        self._past = past
        self._is_certain = is_certain
        self._book = KeptNotes()
        self.copy = KeptCopy(job_master, graph, task_executors, self._book, on_kept=self._go_on)
        self._changes = 0
        self._noted = 0
        """Number of the last change of the notes. 0: there are no notes."""
        self._untold: set[int] = set()
        """Changes that no pool has acknowledged."""
        self._uncertain: set[int] = set()
        """Changes of parts that no pool has acknowledged of which it is certain that the next
        JobMaster will ask it.
        """
        self._found_by_successor: SlotPoolGateway | None = None
        """The last pool of which it is certain that the next JobMaster will ask it."""
        self._waiting: list[_Waiting] = []
        """Waiting calls. They return in their order, and before later calls."""
        if past is not None:
            past.on_ended(self._go_on)

    # --- changes ----------------------------------------------------------------------------------

    def note(self, notes: JobNotes) -> None:
        """Begin to store *notes*. :meth:`acknowledged` returns once they are stored."""
        self._noted = self._add(KeptPiece(notes=notes))

    def finished(self, tasks: tuple[FinishedTask, ...]) -> None:
        """Begin to store that these tasks have finished. No action waits for this."""
        for first in range(0, len(tasks), FINISHED_PER_MESSAGE):
            self._add(KeptPiece(finished=tasks[first : first + FINISHED_PER_MESSAGE]))

    async def keep(self, part: KeptPart) -> None:
        """Store *part* of the source coordinator's state. Returns when the next JobMaster would
        find it: the SlotPool and the keeper (a TaskExecutor) have *part*, and the next JobMaster
        will certainly ask this pool. It would ask another pool if this JobMaster was replaced
        without knowing it, or if pools of past JobMasters still exist."""
        await self._until_kept(self._add(KeptPiece(part=part)), is_of_part=True)

    def _add(self, piece: KeptPiece) -> int:
        self._changes += 1
        change = self._changes
        self._untold.add(change)
        if piece.part is not None:
            self._uncertain.add(change)
        self._book.add(piece)
        self.copy.add(change, piece)
        self._tell(partial(self._keep, change, piece))
        return change

    def adopt(self, parts: Iterable[KeptPart]) -> None:
        """Add the parts of the source coordinator's state that past JobMasters have left.
        Must be called before this JobMaster has a pool.
        """
        for part in parts:
            self._book.add(KeptPiece(part=part))

    def forget_parts(self) -> None:
        """Drop all parts of the source coordinator's state, because all sources begin again."""
        self._book.forget_parts()

    def parts(self, restores: int) -> tuple[KeptPart, ...]:
        """Return the parts of the source coordinator's state that were made after the sources were
        restored for the *restores*-th time, and the part with the address of the job's results."""
        return tuple(
            part for part in self._book.parts if part.vertex_id is None or part.restores == restores
        )

    # --- the SlotPool -----------------------------------------------------------------------------

    def for_next_pool(self) -> list[Call]:
        """Return the calls that send a new pool everything that is stored."""
        pieces = list(self._book.pieces())
        last = len(pieces) - 1
        return [
            partial(self._keep, self._changes, piece, is_all=number == last)
            for number, piece in enumerate(pieces)
        ]

    async def _keep(
        self, change: int, piece: KeptPiece, pool: SlotPoolGateway, *, is_all: bool | None = None
    ) -> None:
        """Send *piece* to the pool, and note which changes of the notes the pool then has.

        *is_all* None: *piece* is change number *change*. Otherwise *pool* is new and gets
        everything up to *change* in several pieces: True for the last piece, False for the pieces
        before.
        """
        await pool.keep(piece)
        if is_all is False:
            return
        told = {n for n in self._untold if n == change or (is_all and n <= change)}
        self._untold -= told
        uncertain = {n for n in self._uncertain if n == change or (is_all and n <= change)}
        if pool is self._found_by_successor:
            self._uncertain -= uncertain
        elif uncertain:  # runs in the background, so that the pool does not wait
            self._job_master.create_task(self._find(pool, uncertain), "keep what sources know")
        self._go_on()

    async def _find(self, pool: SlotPoolGateway, changes: set[int]) -> None:
        """Wait until it is certain that the next JobMaster would ask *pool*: past pools have ended,
        and the election confirms that this JobMaster leads. Then mark *changes*, which *pool* has,
        as kept."""
        if self._past is not None:
            await self._past.ended()
        if await self._is_certain():
            self._found_by_successor = pool
            self._uncertain -= changes
            self._go_on()

    # --- waiting ----------------------------------------------------------------------------------

    async def acknowledged(self) -> None:
        """Wait until all notes so far are stored, and the next JobMaster cannot find earlier notes.
        Calls return in the order in which they were made."""
        await self._until_kept(self._noted, is_of_part=False)

    async def _until_kept(self, change: int, *, is_of_part: bool) -> None:
        if not self._is_kept(change, is_of_part=is_of_part):
            kept: asyncio.Future[None] = self._job_master.rpc_service.loop.create_future()
            self._waiting.append(_Waiting(change, is_of_part, kept))
            await kept

    def _is_kept(self, change: int, *, is_of_part: bool) -> bool:
        missing = self._uncertain if is_of_part else self._untold
        is_alone = is_of_part or self._past is None or self._past.have_ended
        return is_alone and self.copy.has(change) and all(number > change for number in missing)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not self._is_kept(one.change, is_of_part=one.is_of_part):
                self._waiting.append(one)
            elif not one.kept.done():
                one.kept.set_result(None)
