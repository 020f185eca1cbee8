"""What a JobMaster notes for the job's next one, before it acts on it: at its SlotPool, and at the
coordinator of the job's sources."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.stream_coordinator import StreamCoordinatorGateway
from flinkray.actors.job_master.past_pools import PastPools
from flinkray.actors.job_master.slot_pool_connection import Call
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
"""What is said of a coordinator that may live all the same."""
_RETRY_DELAY = 0.1
"""Seconds until it is told again."""
_FINISHED_PER_MESSAGE = 2000
"""Tasks, each with its slot: well below the frame size."""


class NotesForSuccessor:
    """Lives on the JobMaster's main thread.

    Each pool that replaces a lost one is told all of it first.  Until then the notes are where the
    coordinator of the sources is, if the job has one: a JobMaster may die just after its pool.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        tell: Callable[[Call], None],
        past: PastPools | None,
    ) -> None:
        """
        Args:
            tell: the SlotPool, if there is one.
            past: those that have notes of earlier JobMasters, if there may be any.
        """
        self._job_master = job_master
        self._tell = tell
        self._past = past
        self._notes: JobNotes | None = None
        self._finished: dict[ExecutionVertexID, FinishedTask] = {}
        self._number = 0
        """Of the last notes."""
        self._is_acknowledged = True
        """Whether the last notes are, by the pool."""
        self._second = _SecondCopy(job_master, self._go_on)
        self._waiting: list[asyncio.Future[None]] = []
        """Those of :meth:`acknowledged`, each with a future of its own: all go on in their order,
        and before whoever comes later."""
        if past is not None:
            past.on_ended(self._go_on)

    def note(self, notes: JobNotes) -> None:
        """Begin; what is deployed from now on waits until they are acknowledged."""
        if self._notes is not None and self._notes.graph_id != notes.graph_id:
            self._finished.clear()
        self._notes = notes
        self._second.keep(notes)
        self._send()

    def finished(self, tasks: tuple[FinishedTask, ...]) -> None:
        """Begin; nobody waits for it."""
        self._finished.update((task.state.attempt_id.vertex, task) for task in tasks)
        for call in _told_in_parts(tasks):
            self._tell(call)

    def coordinator_is_gone(self, attempt_number: int) -> None:
        """That of the sources, or it will not come: it hands over nothing."""
        self._second.has_gone(attempt_number)

    async def acknowledged(self) -> None:
        """Returns when all notes so far are, and no earlier ones can be found instead; who waits
        first returns first."""
        if not self._is_kept:
            waiting: asyncio.Future[None] = self._job_master.rpc_service.loop.create_future()
            self._waiting.append(waiting)
            await waiting

    @property
    def _is_kept(self) -> bool:
        is_alone = self._past is None or self._past.have_ended
        return is_alone and self._is_acknowledged and self._second.is_kept

    def for_next_pool(self) -> list[Call]:
        """All that it is to be told."""
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
    """Of the last notes, at the coordinator that they name."""

    def __init__(
        self, job_master: FencedRpcEndpoint[JobMasterId], on_kept: Callable[[], None]
    ) -> None:
        self._job_master = job_master
        self._on_kept = on_kept
        self._notes: JobNotes | None = None
        """The last ones."""
        self._kept: JobNotes | None = None
        """The last ones that are there."""
        self._keeping: asyncio.Task[None] | None = None
        self._gone = -1
        """The last attempt of the coordinator that is gone."""

    @property
    def is_kept(self) -> bool:
        """Whether the last ones are, or nobody is there who could keep them."""
        return self._kept is self._notes

    def keep(self, notes: JobNotes) -> None:
        """Begin."""
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
        """Of the coordinator; None: there is none that could have notes."""
        place = notes.source_coordinator
        return None if place is None or place.attempt_number <= self._gone else place.address

    async def _keep(self) -> None:
        while (notes := self._notes) is not None and self._kept is not notes:
            try:
                await self._send(notes)
            except _MAY_HAVE_EARLIER_ONES as error:  # what is wrong with it is found out elsewhere
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
    steps = range(0, len(tasks), _FINISHED_PER_MESSAGE)
    return [partial(_note_finished, tasks[n : n + _FINISHED_PER_MESSAGE]) for n in steps]


async def _note_finished(tasks: tuple[FinishedTask, ...], pool: SlotPoolGateway) -> None:
    await pool.note_finished(tasks)
