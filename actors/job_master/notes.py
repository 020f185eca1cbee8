"""Notes of a JobMaster for its successor, stored before the JobMaster acts.
They are kept at the SlotPool, at the coordinator of the job's sources, and at a TaskExecutor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.stream_coordinator import (
    KeptPart,
    KeptPiece,
    StreamCoordinatorGateway,
)
from flinkray.actors.job_master.kept_for_successor import KeptCopy
from flinkray.actors.job_master.left_by_past_job_masters import PastPools
from flinkray.actors.job_master.slot_pool_connection import Call
from flinkray.actors.shared.kept_notes import FINISHED_PER_MESSAGE, in_pieces
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import ExecutionVertexID, JobMasterId
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes

log = logging.getLogger(__name__)

_MAY_HAVE_EARLIER_ONES = (RpcTimeoutError, RpcConnectionError, RecipientUnreachableError)
"""Errors of a call after which the coordinator may still live, with older notes than the call's."""
_RETRY_DELAY = 0.1
"""Seconds until the call is repeated."""


class NotesForSuccessor:
    """Keeps the notes and finished tasks for the next JobMaster.
    Lives on the JobMaster's main thread.

    A pool that replaces a lost one is first sent all notes. Until then the notes are at the
    coordinator of the sources, if the job has one, because a JobMaster may die just after its pool.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        tell: Callable[[Call], None],
        past: PastPools | None,
        copy: KeptCopy,
    ) -> None:
        """Create the object that keeps the notes, without notes.

        Args:
            tell: sends a call to the SlotPool, if there is one.
            past: the pools that may have notes of earlier JobMasters. None if there are none.
            copy: the copy at a TaskExecutor.
        """
        self._job_master = job_master
        self._tell = tell
        self._past = past
        self._notes: JobNotes | None = None
        self._finished: dict[ExecutionVertexID, FinishedTask] = {}
        self._number = 0
        """Number of the last notes, counted from 1 in this JobMaster."""
        self._is_acknowledged = True
        """Whether the pool has acknowledged the last notes."""
        self._second = _SecondCopy(job_master, self._go_on)
        self._copy = copy
        self._copied = 0
        """Number that :meth:`KeptCopy.noted` has returned for the last notes."""
        copy.on_kept(self._go_on)
        self._waiting: list[asyncio.Future[None]] = []
        """One future for each waiting call of :meth:`acknowledged`.
        The calls return in their order, and before later calls.
        """
        if past is not None:
            past.on_ended(self._go_on)

    def note(self, notes: JobNotes) -> None:
        """Begin to keep *notes*.
        :meth:`acknowledged`, for which deployments wait, returns once they are kept.
        """
        if self._notes is not None and self._notes.graph_id != notes.graph_id:
            self._finished.clear()
        self._notes = notes
        self._second.keep(notes)
        self._copied = self._copy.noted(notes)
        self._send()

    def finished(self, tasks: tuple[FinishedTask, ...]) -> None:
        """Begin to keep finished tasks. Nothing waits for this."""
        self._finished.update((task.state.attempt_id.vertex, task) for task in tasks)
        for call in _told_in_parts(tasks):
            self._tell(call)
        self._copy.add(KeptPiece(finished=tasks))

    def coordinator_is_gone(self, attempt_number: int) -> None:
        """Note that an attempt of the source coordinator has died, together with its copy of the
        notes.
        """
        self._second.has_gone(attempt_number)

    async def acknowledged(self) -> None:
        """Return when all notes so far are kept, and no earlier notes can be found instead.
        Calls return in the order in which they were made.
        """
        if not self._is_kept:
            waiting: asyncio.Future[None] = self._job_master.rpc_service.loop.create_future()
            self._waiting.append(waiting)
            await waiting

    @property
    def _is_kept(self) -> bool:
        is_alone = self._past is None or self._past.have_ended
        is_copied = self._second.is_kept and self._copy.has(self._copied)
        return is_alone and self._is_acknowledged and is_copied

    def in_pieces(self, parts: Iterable[KeptPart]) -> Iterable[KeptPiece]:
        """Return messages that together hold *parts*, the finished tasks and the notes.
        There are no messages before the first notes.
        """
        if self._notes is None:
            return ()
        return in_pieces(parts, tuple(self._finished.values()), self._notes)

    def for_next_pool(self) -> list[Call]:
        """Return the calls with which a new pool is sent the notes and the finished tasks."""
        if self._notes is None:
            return []
        return [self._call(), *_told_in_parts(tuple(self._finished.values()))]

    def _send(self) -> None:
        self._number += 1
        self._is_acknowledged = False
        self._tell(self._call())

    def _call(self) -> Call:
        assert self._notes is not None
        return partial(self._note, self._number, self._notes)

    async def _note(self, number: int, notes: JobNotes, pool: SlotPoolGateway) -> None:
        await pool.note(notes)
        if number == self._number:
            self._is_acknowledged = True
            self._go_on()

    def _go_on(self) -> None:
        if self._is_kept:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)


class _SecondCopy:
    """Keeps a copy of the last notes at the source coordinator that the notes name."""

    def __init__(
        self, job_master: FencedRpcEndpoint[JobMasterId], on_kept: Callable[[], None]
    ) -> None:
        self._job_master = job_master
        self._on_kept = on_kept
        self._notes: JobNotes | None = None
        self._kept: JobNotes | None = None
        """The last notes that the coordinator has, or need not have.
        None before the first notes.
        """
        self._keeping: asyncio.Task[None] | None = None
        self._gone = -1
        """Number of the last attempt of the coordinator that is known to be gone."""

    @property
    def is_kept(self) -> bool:
        """Whether the coordinator has the last notes, or there is no coordinator to keep them."""
        return self._kept is self._notes

    def keep(self, notes: JobNotes) -> None:
        self._notes = notes
        if self._keeping is None and self._address(notes) is None:
            self._kept = notes
        elif self._keeping is None:
            self._keeping = self._job_master.create_task(self._keep(), "note at the coordinator")

    def has_gone(self, attempt_number: int) -> None:
        self._gone = max(self._gone, attempt_number)
        notes = self._notes
        if self._keeping is not None and notes is not None and self._address(notes) is None:
            self._keeping.cancel()
            self._ended(notes)

    def _address(self, notes: JobNotes) -> str | None:
        """Return the address of the coordinator in *notes*. None: no coordinator, or it is gone."""
        place = notes.source_coordinator
        return None if place is None or place.attempt_number <= self._gone else place.address

    async def _keep(self) -> None:
        while (notes := self._notes) is not None and self._kept is not notes:
            try:
                await self._send(notes)
            # other components find out why it does not answer
            except _MAY_HAVE_EARLIER_ONES as error:
                log.info("the coordinator of the sources is told its notes again: %s", error)
                await self._job_master.rpc_service.pause(_RETRY_DELAY)
                continue
            except FlinkRayError as error:
                log.info("the coordinator of the sources keeps no notes: %s", error)
            self._kept = notes
        self._ended(self._notes)

    def _ended(self, kept: JobNotes | None) -> None:
        self._kept, self._keeping = kept, None
        self._on_kept()

    async def _send(self, notes: JobNotes) -> None:
        address = self._address(notes)
        if address is not None:
            coordinator = await self._job_master.connect(address, StreamCoordinatorGateway)
            await coordinator.note(self._job_master.fencing_token, notes)


def _told_in_parts(tasks: tuple[FinishedTask, ...]) -> list[Call]:
    steps = range(0, len(tasks), FINISHED_PER_MESSAGE)
    return [partial(_note_finished, tasks[n : n + FINISHED_PER_MESSAGE]) for n in steps]


async def _note_finished(tasks: tuple[FinishedTask, ...], pool: SlotPoolGateway) -> None:
    await pool.note_finished(tasks)
