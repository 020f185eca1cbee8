"""What a JobMaster and its SlotPool keep of what the coordinator of sources knows."""

from __future__ import annotations

import asyncio
from typing import cast

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart
from flinkray.actors.job_master.kept_parts import KeptParts, latest_parts
from flinkray.actors.job_master.slot_pool_connection import Call
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.rpc import FencedRpcEndpoint, LocalRpcService
from flinkray.testing.virtual_time import on_virtual_time

VERTEX = JobVertexID(b"v" * 16)


def part(version: int, restores: int = 0) -> KeptPart:
    return KeptPart(VERTEX, restores, version)


class Pool:
    def __init__(self) -> None:
        self.has: list[KeptPart] = []

    async def keep_part(self, kept: KeptPart) -> None:
        self.has.append(kept)


class Surroundings:
    """A JobMaster with a pool or without."""

    def __init__(self) -> None:
        token = JobMasterId(b"m" * 16)
        self.master = FencedRpcEndpoint(LocalRpcService("JobMaster"), "jobmaster", token)
        self.master.start()
        self.pool: Pool | None = Pool()
        self.found: list[asyncio.Future[bool]] = []
        self.parts = KeptParts(self.master, self.tell, self.is_found)

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
async def test_it_is_kept_when_a_pool_has_it_that_the_next_job_master_asks() -> None:
    """Pools of past JobMasters would hand over what does not count; one that a JobMaster starts
    which leads no more, nobody asks."""
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
async def test_a_job_master_that_leads_no_more_keeps_nothing() -> None:
    around = Surroundings()
    waiting = asyncio.ensure_future(around.parts.keep(part(1)))
    await around.is_kept(waiting)
    around.found[0].set_result(False)
    assert not await around.is_kept(waiting)
    waiting.cancel()


@on_virtual_time
async def test_a_pool_that_replaces_a_lost_one_is_told_the_last_of_all() -> None:
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


def test_what_is_of_a_later_restore_counts_whatever_its_version() -> None:
    assert latest_parts([part(9), part(1, restores=1), part(8)]) == {VERTEX: part(1, restores=1)}


@on_virtual_time
async def test_what_is_of_an_earlier_restore_is_of_no_use() -> None:
    around = Surroundings()
    around.parts.adopt([part(4)])
    assert around.parts.of(0) == (part(4),)
    assert around.parts.of(1) == ()
    around.parts.forget()
    assert around.parts.of(0) == ()
