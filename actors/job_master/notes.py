"""What a JobMaster notes at its SlotPool for the job's next JobMaster, before it acts on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.job_master.slot_pool_connection import Call
from flinkray.core.ids import ExecutionVertexID, JobMasterId
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes

_FINISHED_PER_MESSAGE = 2000
"""Tasks, each with its slot: well below the frame size."""


class NotesForSuccessor:
    """Lives on the JobMaster's main thread.

    Each pool that replaces a lost one is told all of it first.
    """

    def __init__(
        self, job_master: FencedRpcEndpoint[JobMasterId], tell: Callable[[Call], None]
    ) -> None:
        """*tell* the SlotPool, if there is one."""
        self._job_master = job_master
        self._tell = tell
        self._notes: JobNotes | None = None
        self._finished: dict[ExecutionVertexID, FinishedTask] = {}
        self._number = 0
        """Of the last notes."""
        self._is_acknowledged = True
        """Whether the last notes are."""
        self._waiting: list[asyncio.Future[None]] = []
        """Those of :meth:`acknowledged`, each with a future of its own: all go on in their order,
        and before whoever comes later."""

    def note(self, notes: JobNotes) -> None:
        """Begin; what is deployed from now on waits until they are acknowledged."""
        if self._notes is not None and self._notes.graph_id != notes.graph_id:
            self._finished.clear()
        self._notes = notes
        self._send()

    def finished(self, tasks: tuple[FinishedTask, ...]) -> None:
        """Begin; nobody waits for it."""
        self._finished.update((task.state.attempt_id.vertex, task) for task in tasks)
        for call in _told_in_parts(tasks):
            self._tell(call)

    async def acknowledged(self) -> None:
        """Returns when all notes so far are; who waits first returns first."""
        if not self._is_acknowledged:
            waiting: asyncio.Future[None] = self._job_master.rpc_service.loop.create_future()
            self._waiting.append(waiting)
            await waiting

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
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)


def _told_in_parts(tasks: tuple[FinishedTask, ...]) -> list[Call]:
    steps = range(0, len(tasks), _FINISHED_PER_MESSAGE)
    return [partial(_note_finished, tasks[n : n + _FINISHED_PER_MESSAGE]) for n in steps]


async def _note_finished(tasks: tuple[FinishedTask, ...], pool: SlotPoolGateway) -> None:
    await pool.note_finished(tasks)
