"""What a JobMaster and its SlotPool keep of what the coordinator of sources knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, cast

import pytest

from flinkray.actors.coordinators.runner import CoordinatorRunner
from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.job_master.kept_for_successor import KeptCopy, KeptParts, latest_parts
from flinkray.actors.job_master.slot_pool_connection import Call
from flinkray.actors.job_master.source_coordination import SourceCoordination
from flinkray.core.errors import CoordinatorReplacedError
from flinkray.core.ids import ExecutionGraphID, JobMasterId, JobVertexID
from flinkray.rpc import FencedRpcEndpoint, LocalNetwork, LocalRpcService
from flinkray.scheduler.execution.restarts import new_restart_strategy
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.streaming.sources.source_progress import SourceProgress
from flinkray.testing.virtual_time import on_virtual_time

VERTEX = JobVertexID(b"v" * 16)
PROGRESS = SourceProgress(1, 0, (), None, ())


def part(version: int, restores: int = 0) -> KeptPart:
    return KeptPart(VERTEX, restores, version)


class Pool:
    def __init__(self) -> None:
        self.has: list[KeptPart] = []

    async def keep_part(self, kept: KeptPart) -> None:
        self.has.append(kept)


class Copy:
    """At a TaskExecutor, which has what it is told as soon as it may."""

    def __init__(self) -> None:
        self.has_all = True
        self.listeners: list[Callable[[], None]] = []

    def on_kept(self, callback: Callable[[], None]) -> None:
        self.listeners.append(callback)

    def add(self, piece: KeptPiece) -> int:
        return 1

    def has(self, change: int) -> bool:
        return self.has_all


class Surroundings:
    """A JobMaster with a pool or without."""

    def __init__(self) -> None:
        token = JobMasterId(b"m" * 16)
        self.network = LocalNetwork()
        service = LocalRpcService("JobMaster", self.network)
        self.master = FencedRpcEndpoint(service, "jobmaster", token)
        self.master.start()
        self.pool: Pool | None = Pool()
        self.found: list[asyncio.Future[bool]] = []
        self.copy = Copy()
        self.parts = KeptParts(self.master, self.tell, self.is_found, cast(KeptCopy, self.copy))

    def tell(self, call: Call) -> None:
        if self.pool is not None:
            self.master.create_task(self.called(call, self.pool), "tell the pool")

    async def called(self, call: Call, pool: Pool) -> None:
        await call(cast(SlotPoolGateway, pool))

    def is_found(self) -> asyncio.Future[bool]:
        self.found.append(asyncio.get_running_loop().create_future())
        return self.found[-1]

    async def is_kept(self, waiting: asyncio.Future[None]) -> bool:
        await asyncio.wait([waiting], timeout=1)
        return waiting.done()


@on_virtual_time
async def test_source_progress_is_saved_once_the_slot_pool_of_the_leading_master_has_it() -> None:
    """SlotPools of past JobMasters hand over outdated parts. Nobody asks the SlotPool of a
    JobMaster that has lost leadership."""
    around = Surroundings()
    first = asyncio.ensure_future(around.parts.keep(part(1)))
    assert not await around.is_kept(first)
    assert around.pool is not None
    assert around.pool.has == [part(1)]
    around.found[0].set_result(True)
    assert await around.is_kept(first)
    await around.parts.keep(part(2))
    assert len(around.found) == 1  # once for each pool


@on_virtual_time
async def test_source_progress_is_not_saved_by_a_job_master_that_has_lost_leadership() -> None:
    around = Surroundings()
    waiting = asyncio.ensure_future(around.parts.keep(part(1)))
    await around.is_kept(waiting)
    around.found[0].set_result(False)
    assert not await around.is_kept(waiting)
    waiting.cancel()


@on_virtual_time
async def test_next_slot_pool_gets_the_latest_source_progress_when_a_slot_pool_is_lost() -> None:
    around = Surroundings()
    around.pool = None
    waiting = [asyncio.ensure_future(around.parts.keep(part(n))) for n in (1, 3, 2)]
    assert not await around.is_kept(waiting[0])
    around.pool = Pool()
    for call in around.parts.for_next_pool():
        around.tell(call)
    await around.is_kept(waiting[0])
    around.found[0].set_result(True)
    assert [await around.is_kept(one) for one in waiting] == [True] * 3
    assert around.pool.has == [part(3)]


def test_source_progress_after_a_later_restore_replaces_a_higher_version_before_it() -> None:
    assert latest_parts([part(9), part(1, restores=1), part(8)]) == {VERTEX: part(1, restores=1)}


@on_virtual_time
async def test_source_progress_of_an_earlier_restore_is_not_used() -> None:
    around = Surroundings()
    around.parts.adopt([part(4)])
    assert around.parts.of(0) == (part(4),)
    assert around.parts.of(1) == ()
    around.parts.forget()
    assert around.parts.of(0) == ()


def nobody() -> NoReturn:
    raise AssertionError("no coordinator is called here")


@on_virtual_time
async def test_source_progress_is_saved_only_once_the_backup_task_executor_has_it_too() -> None:
    around = Surroundings()
    around.copy.has_all = False
    waiting = asyncio.ensure_future(around.parts.keep(part(1)))
    assert not await around.is_kept(waiting)
    around.found[0].set_result(True)
    assert not await around.is_kept(waiting)
    around.copy.has_all = True
    for listener in around.copy.listeners:
        listener()
    assert await around.is_kept(waiting)


def sources_of(around: Surroundings) -> SourceCoordination:
    return SourceCoordination(
        around.master,
        cast("Callable[[], CoordinatorRunner]", nobody),
        (VERTEX,),
        around.parts,
        new_restart_strategy(FixedDelayRestart(3, 0.0)),
        lambda why: None,
        ExecutionGraphID.generate,
        nobody,
    )


@on_virtual_time
async def test_replaced_source_coordinator_cannot_save_progress_for_its_successor() -> None:
    """The coordinator did not answer when the next JobMaster took over, but lives. The job has
    begun anew with another coordinator of the same number. By the parts of the first coordinator,
    its splits were given away, and nobody would read them again (seed 20145)."""
    around = Surroundings()
    sources = sources_of(around)
    first = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0)
    sources.beginning(first)
    with pytest.raises(CoordinatorReplacedError, match="not the one that is there now"):
        await sources.keep(JobMasterId(b"l" * 16), first, part(1))
    assert around.parts.of(0) == ()
    keeping = asyncio.ensure_future(sources.keep(sources.owner, first, part(1)))
    assert not await around.is_kept(keeping)
    around.found[0].set_result(True)
    assert await around.is_kept(keeping)


@pytest.mark.parametrize(
    ("restores", "is_known", "is_kept", "may_go_on"),
    [
        (0, True, False, True),
        (0, True, True, True),
        (0, False, True, False),
        (1, True, False, False),
        (1, True, True, True),
    ],
)
@on_virtual_time
async def test_source_coordinator_may_start_anew_only_if_no_reader_was_assigned_a_split(
    restores: int, is_known: bool, is_kept: bool, may_go_on: bool
) -> None:
    """If a SlotPool says that readers were told nothing, another coordinator may begin anew in
    place of a dead one. After a restore it would have to begin with a checkpoint, which is
    unknown."""
    around = Surroundings()
    sources = sources_of(around)
    if is_kept:
        around.parts.adopt([KeptPart(VERTEX, restores, 1, progress=PROGRESS)])
    coordinator = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0)
    sources.adopted(coordinator, sources.owner, restores, is_known=is_known)
    assert sources.may_go_on(0.0) is may_go_on


@on_virtual_time
async def test_next_job_master_learns_that_the_progress_of_a_source_is_unknown() -> None:
    """A JobMaster whose predecessor's SlotPool was lost knows the coordinator from notes, and tells
    its own SlotPool. When both die before the coordinator has reported, this SlotPool must not seem
    to say that readers were told nothing: all splits would be read again (seed 42266)."""
    around = Surroundings()
    around.parts.adopt([KeptPart(VERTEX, 0, 1, progress=PROGRESS)])
    coordinator = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0)
    sources = sources_of(around)
    sources.adopted(coordinator, sources.owner, 0, is_known=False)
    left = around.parts.of(0)
    assert left == (KeptPart(VERTEX, 0, 0),)
    after = Surroundings()
    after.parts.adopt(left)
    sources = sources_of(after)
    sources.adopted(coordinator, sources.owner, 0, is_known=True)
    assert not sources.may_go_on(0.0)
