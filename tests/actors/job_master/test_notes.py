"""When the notes of a JobMaster count as kept for the next JobMaster."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from flinkray.actors.coordinators.runner import CoordinatorRunner
from flinkray.actors.gateways import SlotPoolGateway, TaskExecutorGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.job_master.left_by_past_job_masters import PastPools
from flinkray.actors.job_master.notes import NotesForSuccessor
from flinkray.actors.job_master.slot_pool_supervision import Call
from flinkray.actors.job_master.source_coordination import SourceCoordination
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.errors import CoordinatorReplacedError
from flinkray.core.ids import (
    ExecutionGraphID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    WorkerGroupId,
)
from flinkray.rpc import FencedRpcEndpoint, HeartbeatSettings, LocalNetwork, LocalRpcService
from flinkray.scheduler.execution.restart_strategy import new_restart_strategy
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, JobGraph
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.taking_over import JobNotes
from flinkray.streaming.sources.source_progress import SourceProgress
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.kept_progress import progress_after_reset
from tests.actors.resource_cluster import number

TOKEN = number(JobMasterId, 1)
GRAPH = JobGraph(number(JobID, 1), "a job", ())
VERTEX = JobVertexID(b"v" * 16)
PROGRESS = SourceProgress(1, 0, (), None, ())
COORDINATOR = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0)


def part(version: int, restores: int = 0) -> KeptPart:
    return KeptPart(VERTEX, restores, version)


class Pool:
    """A SlotPool that keeps what it is told, as soon as it may."""

    def __init__(self) -> None:
        self.has: list[KeptPiece] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def keep(self, piece: KeptPiece) -> None:
        await self.may_answer.wait()
        self.has.append(piece)

    @property
    def parts(self) -> list[KeptPart]:
        return [piece.part for piece in self.has if piece.part is not None]


class Noting:
    """A JobMaster with a SlotPool or without."""

    def __init__(self, *, has_predecessors: bool = False) -> None:
        self.network = network = LocalNetwork()
        service = LocalRpcService("JobMaster", network)
        self.master = FencedRpcEndpoint[JobMasterId](service, "jobmaster", TOKEN)
        self.master.start()
        self.pool: Pool | None = Pool()
        self.asked: list[asyncio.Future[bool]] = []
        """Questions whether this JobMaster still leads."""
        self.past = PastPools(self.master, GRAPH)
        self.connections = TaskExecutorConnections(
            self.master,
            GRAPH.job_id,
            HeartbeatSettings(),
            allocations=lambda _: (),
            on_lost=lambda *_: None,
        )
        self.notes = NotesForSuccessor(
            self.master,
            GRAPH,
            self.connections,
            self.tell,
            self.past if has_predecessors else None,
            self.is_certain,
        )

    def tell(self, call: Call) -> None:
        if self.pool is not None:
            self.master.create_task(self.called(call, self.pool), "tell the pool")

    async def called(self, call: Call, pool: Pool) -> None:
        await call(cast(SlotPoolGateway, pool))

    async def replace_pool(self) -> Pool:
        self.pool = pool = Pool()
        for call in self.notes.for_next_pool():
            await self.called(call, pool)
        return pool

    def is_certain(self) -> asyncio.Future[bool]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    async def start_keeper(self, may_keep: asyncio.Event) -> WorkerLocation:
        """Register a TaskExecutor that keeps the notes as soon as it may."""
        executor = TestingGateway(TaskExecutorGateway).lenient()

        async def keep(*_: object) -> bool:
            return await may_keep.wait()

        executor.on(TaskExecutorGateway.keep).calling(keep)
        executor.start(LocalRpcService("te", self.network), "taskexecutor")
        place = WorkerLocation(
            ResourceID("te"), executor.address, "n", "127.0.0.1", 1, WorkerGroupId("g"), 0
        )
        self.connections.start()
        await self.connections.add(place)
        return place

    def coordination(self) -> SourceCoordination:
        return SourceCoordination(
            self.master,
            cast(CoordinatorRunner, None),
            (VERTEX,),
            self.notes,
            new_restart_strategy(FixedDelayRestart(3, 0.0)),
            lambda why: None,
        )


def notes(restores: int, *places: WorkerLocation) -> JobNotes:
    graph = number(ExecutionGraphID, 1)
    return JobNotes(graph, (), b"", restores, task_executors=places)


async def is_over(waiting: asyncio.Future[None]) -> bool:
    """Whether this ends within a second."""
    await asyncio.wait([waiting], timeout=1)
    return waiting.done()


def acknowledged(noting: Noting) -> asyncio.Future[None]:
    return asyncio.ensure_future(noting.notes.acknowledged())


# --- notes ----------------------------------------------------------------------------------------


@on_virtual_time
async def test_recovery_notes_are_durable_once_the_slot_pool_has_the_last_of_them() -> None:
    noting = Noting()
    assert noting.pool is not None
    noting.pool.may_answer.clear()
    for restores in (1, 2, 3):
        noting.notes.note(notes(restores))
    waiting = acknowledged(noting)
    assert not await is_over(waiting)
    noting.pool.may_answer.set()
    assert await is_over(waiting)
    assert noting.pool.has[-1] == KeptPiece(notes=notes(3))


@on_virtual_time
async def test_recovery_notes_are_durable_once_a_task_executor_named_in_them_has_them() -> None:
    noting, may_keep = Noting(), asyncio.Event()
    place = await noting.start_keeper(may_keep)
    noting.notes.note(notes(1, place))
    waiting = acknowledged(noting)
    assert not await is_over(waiting)
    may_keep.set()
    assert await is_over(waiting)


@on_virtual_time
async def test_recovery_notes_are_durable_only_once_slot_pools_of_past_masters_have_ended() -> None:
    """A past SlotPool outlived its successor. By its notes an attempt was never deployed, and the
    attempt was deployed a second time (seed 40883)."""
    noting = Noting(has_predecessors=True)
    noting.notes.note(notes(1))
    waiting = acknowledged(noting)
    assert not await is_over(waiting)
    noting.past.end()
    assert await is_over(waiting)


@on_virtual_time
async def test_notes_made_without_a_slot_pool_are_durable_once_the_next_pool_has_them_all() -> None:
    noting = Noting()
    noting.pool = None
    noting.notes.note(notes(1))
    keeping = asyncio.ensure_future(noting.notes.keep(part(1)))
    waiting = acknowledged(noting)
    assert not await is_over(waiting)
    pool = await noting.replace_pool()
    assert await is_over(waiting)
    assert pool.has == [KeptPiece(part=part(1)), KeptPiece(notes=notes(1))]
    keeping.cancel()


# --- parts of the source coordinator's state ------------------------------------------------------


@on_virtual_time
async def test_source_progress_is_saved_once_the_slot_pool_of_the_leading_master_has_it() -> None:
    """SlotPools of past JobMasters hand over outdated parts. Nobody asks the SlotPool of a
    JobMaster that has lost leadership."""
    noting = Noting()
    first = asyncio.ensure_future(noting.notes.keep(part(1)))
    assert not await is_over(first)
    assert noting.pool is not None
    assert noting.pool.parts == [part(1)]
    noting.asked[0].set_result(True)
    assert await is_over(first)
    await noting.notes.keep(part(2))
    assert len(noting.asked) == 1  # once for each pool


@on_virtual_time
async def test_source_progress_is_saved_only_after_slot_pools_of_past_masters_have_ended() -> None:
    noting = Noting(has_predecessors=True)
    waiting = asyncio.ensure_future(noting.notes.keep(part(1)))
    assert not await is_over(waiting)
    assert noting.asked == []
    noting.past.end()
    assert not await is_over(waiting)
    noting.asked[0].set_result(True)
    assert await is_over(waiting)


@on_virtual_time
async def test_source_progress_is_not_saved_by_a_job_master_that_has_lost_leadership() -> None:
    noting = Noting()
    waiting = asyncio.ensure_future(noting.notes.keep(part(1)))
    await is_over(waiting)
    noting.asked[0].set_result(False)
    assert not await is_over(waiting)
    waiting.cancel()


@on_virtual_time
async def test_next_slot_pool_gets_the_latest_source_progress_when_a_slot_pool_is_lost() -> None:
    noting = Noting()
    noting.pool = None
    waiting = [asyncio.ensure_future(noting.notes.keep(part(n))) for n in (1, 3, 2)]
    assert not await is_over(waiting[0])
    pool = await noting.replace_pool()
    await is_over(waiting[0])
    noting.asked[0].set_result(True)
    assert [await is_over(one) for one in waiting] == [True] * 3
    assert pool.parts == [part(3)]


@on_virtual_time
async def test_source_progress_after_a_restore_replaces_any_progress_before_the_restore() -> None:
    noting = Noting()
    noting.notes.adopt([part(9), part(1, restores=1), part(8)])
    assert noting.notes.parts(0) == ()
    assert noting.notes.parts(1) == (part(1, restores=1),)
    noting.notes.forget_parts()
    assert noting.notes.parts(1) == ()


@on_virtual_time
async def test_source_progress_is_saved_only_once_the_backup_task_executor_has_it_too() -> None:
    noting, may_keep = Noting(), asyncio.Event()
    place = await noting.start_keeper(may_keep)
    noting.notes.note(notes(1, place))
    waiting = asyncio.ensure_future(noting.notes.keep(part(1)))
    assert not await is_over(waiting)
    noting.asked[0].set_result(True)
    assert not await is_over(waiting)
    may_keep.set()
    assert await is_over(waiting)


@on_virtual_time
async def test_replaced_source_coordinator_cannot_save_progress_for_its_successor() -> None:
    """The coordinator did not answer when the next JobMaster took over, but lives. The job has
    begun anew with another coordinator of the same number. By the parts of the first coordinator,
    its splits were given away, and nobody would read them again (seed 20145)."""
    noting = Noting()
    sources = noting.coordination()
    sources.beginning(COORDINATOR, number(ExecutionGraphID, 1))
    with pytest.raises(CoordinatorReplacedError, match="not the one that is there now"):
        await sources.keep(JobMasterId(b"l" * 16), COORDINATOR, part(1))
    assert noting.notes.parts(0) == ()
    keeping = asyncio.ensure_future(sources.keep(sources.owner, COORDINATOR, part(1)))
    assert not await is_over(keeping)
    noting.asked[0].set_result(True)
    assert await is_over(keeping)


@pytest.mark.parametrize(
    ("restores", "is_kept", "may_go_on"),
    [(0, False, True), (0, True, True), (1, False, False), (1, True, True)],
)
@on_virtual_time
async def test_source_coordinator_may_start_anew_only_if_no_reader_was_assigned_a_split(
    restores: int, is_kept: bool, may_go_on: bool
) -> None:
    """If a SlotPool says that readers were told nothing, another coordinator may begin anew in
    place of a dead one. After a restore it would have to begin with a checkpoint, which is
    unknown."""
    noting = Noting()
    sources = noting.coordination()
    if is_kept:
        noting.notes.adopt([KeptPart(VERTEX, restores, 1, progress=PROGRESS)])
    sources.adopted(COORDINATOR, sources.owner, restores)
    assert sources.may_go_on(0.0) is may_go_on


@on_virtual_time
async def test_source_coordinator_whose_progress_could_not_be_saved_is_not_replaced() -> None:
    noting = Noting()
    noting.notes.adopt([part(1)])
    sources = noting.coordination()
    sources.adopted(COORDINATOR, sources.owner, 0)
    assert not sources.may_go_on(0.0)


@pytest.mark.parametrize("has_called", [False, True])
@on_virtual_time
async def test_reader_counts_in_saved_source_progress_only_if_it_called_the_coordinator(
    has_called: bool,
) -> None:
    """Seed 10 of masters that die: a coordinator had only been told where its readers begin, and
    died. The next JobMaster believed that noted tasks had been sent, and restarted the job."""
    noting = Noting()
    progress = progress_after_reset(has_called=has_called)
    noting.notes.adopt([KeptPart(VERTEX, 0, 1, progress=progress)])
    assert noting.coordination().has_readers is has_called
