"""What past JobMasters of a job have left for their successor: slots and notes at their SlotPools,
and copies of the notes at TaskExecutors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.job_processes import slot_pool_address, slot_pools_of_job
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.actors.shared.kept_notes import KeptNotes
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import AllocationID, JobMasterId, ResourceID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.taking_over import (
    NOT_DEPLOYED,
    FinishedTask,
    JobNotes,
    TaskExecutorReport,
)
from flinkray.scheduler.shared.tasks import unpack_numbers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Left:
    """Everything that past JobMasters have left: slots, notes, finished tasks, and parts of the
    source coordinator's state.
    """

    allocations: tuple[AllocationID, ...] = ()
    task_executors: tuple[WorkerLocation, ...] = ()
    """TaskExecutors on which the job has slots or results."""
    notes: JobNotes | None = None
    """Notes of the last JobMaster. None: nothing can be taken over."""
    finished: tuple[FinishedTask, ...] = ()
    """Finished tasks of the execution graph of the notes."""
    parts: tuple[KeptPart, ...] = ()
    """The latest kept part of each source, and the part with the results' address."""


class PastPools:
    """Asks the SlotPools of past JobMasters for slots and notes, and ends these pools.
    Lives on the JobMaster's main thread.
    """

    def __init__(self, job_master: FencedRpcEndpoint[JobMasterId], graph: JobGraph) -> None:
        self._job_master = job_master
        self._graph = graph
        self._of_no_use: list[str] = []
        """Process names of past pools that are ended once our pool has their knowledge."""
        self._ended: asyncio.Future[None] = job_master.rpc_service.loop.create_future()

    async def ask(self) -> Left:
        """Ask all past pools at once, and return the slots and notes that they have.
        A pool that does not answer counts as empty.
        """
        prefix = slot_pools_of_job(self._graph.job_id)
        names = await self._job_master.rpc_service.process_names(prefix)
        past = {name: JobMasterId.from_hex(name.removeprefix(prefix)) for name in names}
        answers = await asyncio.gather(*(self._left_by(*item) for item in past.items()))
        return together([left for left in answers if left is not None])

    async def _left_by(self, name: str, job_master_id: JobMasterId) -> Left | None:
        token = self._job_master.fencing_token
        try:
            pool = await self._job_master.connect(
                slot_pool_address(self._graph.job_id, job_master_id), SlotPoolGateway, job_master_id
            )
            left = await pool.hand_over(token)
            kept = await _all_pieces(lambda number: pool.hand_over_piece(token, number))
        # a required slot is accepted all the same when it is offered
        except FlinkRayError as error:
            log.info("%s: %s hands over nothing: %s", self._graph.text, name, error)
            if isinstance(error, RpcError):  # its knowledge must not be used later
                self._of_no_use.append(name)
            return None
        self._of_no_use.append(name)
        places = (task.slot.location for task in kept.finished)
        task_executors = tuple(dict.fromkeys((*left.task_executors, *places)))
        return Left(left.allocations, task_executors, left.notes, kept.finished, kept.parts)

    def end(self) -> None:
        """Begin to end the past pools. Their notes and slots must be stored elsewhere by now."""
        names, self._of_no_use = self._of_no_use, []
        self._job_master.create_task(self._end(names), name="end past SlotPools")

    async def _end(self, names: list[str]) -> None:
        await asyncio.gather(*map(self._job_master.rpc_service.kill, names))
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def have_ended(self) -> bool:
        """Whether the past pools have ended, so that no pool hands over outdated notes."""
        return self._ended.done()

    def on_ended(self, callback: Callable[[], None]) -> None:
        """Call *callback* once the past pools have ended, soon if they already have."""
        self._ended.add_done_callback(lambda _: callback())

    async def ended(self) -> None:
        """Wait until the past pools have ended."""
        await asyncio.shield(self._ended)


def together(left: list[Left]) -> Left:
    """Merge what several SlotPools or TaskExecutors have left, with the latest notes.

    If their notes name several execution graphs, the result has no notes and no finished tasks,
    because it is unknown which graph is later. Several exist only if a JobMaster died before it
    could end outdated SlotPools or copies.
    """
    with_notes = [one for one in left if one.notes is not None]
    graphs = {one.notes.graph_id for one in with_notes if one.notes is not None}
    latest = max(with_notes, key=age_of) if len(graphs) == 1 else None
    kept = KeptNotes()
    for part in (part for one in left for part in one.parts):
        kept.add(KeptPiece(part=part))
    return Left(
        tuple(dict.fromkeys(a for one in left for a in one.allocations)),
        tuple(dict.fromkeys(place for one in left for place in one.task_executors)),
        None if latest is None else latest.notes,
        () if latest is None else tuple(f for one in with_notes for f in one.finished),
        kept.parts,
    )


def age_of(left: Left) -> tuple[int, int, int]:
    """Return a key that orders notes of one execution graph. Later notes have a greater key."""
    notes = left.notes
    assert notes is not None
    numbers = unpack_numbers(notes.attempts)
    deployed = sum(2 * (n & ~NOT_DEPLOYED) - bool(n & NOT_DEPLOYED) for n in numbers)
    return notes.takeovers, notes.restores, deployed


_TASK_EXECUTORS = "TaskExecutor-"
"""Prefix of the process names of TaskExecutors."""


class PastCopies:
    """Reads the copies of notes that past JobMasters have left at TaskExecutors.
    Lives on the JobMaster's main thread.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        task_executors: TaskExecutorConnections,
    ) -> None:
        self._job_master = job_master
        self._graph = graph
        self._task_executors = task_executors

    async def places(self) -> dict[ResourceID, str]:
        """Return the addresses of all TaskExecutors of the cluster.
        Used if it is unknown which TaskExecutors have slots of the job.
        """
        names = await self._job_master.rpc_service.process_names(_TASK_EXECUTORS)
        return {ResourceID(name): f"{name}/taskexecutor" for name in names}

    async def left(self, reports: Iterable[TaskExecutorReport]) -> Left | None:
        """Read the copies of notes at all TaskExecutors whose reports mention a copy. Returns their
        merged contents. None if there is no copy, or if a copy cannot be read."""
        with_notes = [report for report in reports if report.notes is not None]
        try:
            found = await asyncio.gather(*map(self._left_at, with_notes))
        except FlinkRayError as error:  # its copy may be the latest
            log.warning("%s: a TaskExecutor hands over nothing: %s", self._graph.text, error)
            return None
        left = together(found)
        return None if left.notes is None else left

    async def _left_at(self, report: TaskExecutorReport) -> Left:
        executor = self._task_executors.get(report.location.resource_id)
        token = self._job_master.fencing_token
        kept = await _all_pieces(
            lambda number: executor.hand_over(self._graph.job_id, token, number)
        )
        places = (report.location, *(task.slot.location for task in kept.finished))
        task_executors = tuple(dict.fromkeys(places))
        return Left((), task_executors, report.notes, kept.finished, kept.parts)


async def _all_pieces(piece: Callable[[int], Awaitable[KeptPiece | None]]) -> KeptNotes:
    kept, number = KeptNotes(), 0
    while (found := await piece(number)) is not None:
        kept.add(found)
        number += 1
    return kept
