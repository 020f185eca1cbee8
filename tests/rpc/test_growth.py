"""Processes that make way for fresh ones when they have grown."""

from __future__ import annotations

import asyncio
import mmap
import sys
import uuid
from contextlib import suppress

import pytest

from flinkray.core.errors import RpcError
from flinkray.rpc import RayRpcService, Renewal
from flinkray.rpc.ray.process import GrowthWatch, memory_of_its_own
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.waiting import eventually
from tests.rpc.endpoints import EchoGateway, echo_spec

MIB = 2**20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is known on Linux only")


class Memory:
    def __init__(self, now: int | None) -> None:
        self.now = now

    def __call__(self) -> int | None:
        return self.now


def test_memory_growth_is_reported_when_growth_and_age_exceed_their_limits() -> None:
    clock, memory = ManualClock(), Memory(500)
    watch = GrowthWatch(Renewal(growth=100, age=60.0), clock, memory)
    clock.advance(59.0)
    memory.now = 700
    assert not watch.grown(), "a fresh one may need as much"
    clock.advance(1.0)
    assert watch.grown() == 200
    memory.now = 600
    assert not watch.grown()
    memory.now = 601
    assert watch.grown() == 101


@pytest.mark.parametrize(("at_start", "later"), [(None, None), (None, 500), (1, None)])
def test_memory_growth_is_not_reported_when_the_memory_cannot_be_read(
    at_start: int | None, later: int | None
) -> None:
    clock, memory = ManualClock(), Memory(at_start)
    watch = GrowthWatch(Renewal(growth=100, age=0.0), clock, memory)
    memory.now = later
    assert not watch.grown()


@on_linux
def test_memory_of_this_process_includes_the_pages_that_it_maps() -> None:
    before = memory_of_its_own()
    assert before is not None
    # Mapped, not allocated: an allocator may give out what this process has freed before.
    with mmap.mmap(-1, 100 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as kept:
        kept.write(b"x" * (100 * MIB))
        after = memory_of_its_own()
    assert after is not None
    assert 90 * MIB < after - before < 250 * MIB


@on_linux
@pytest.mark.ray
async def test_process_that_has_grown_too_much_is_replaced_by_a_new_one(ray_cluster: None) -> None:
    service = await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", "driver")
    renewal = Renewal(growth=200 * MIB, age=0.0, interval=0.1)
    address = await service.spawn(echo_spec("worker", max_restarts=-1, renewal=renewal))
    grown = await service.connect(address, EchoGateway)
    pid = await grown.pid()
    died: asyncio.Queue[str] = asyncio.Queue()
    service.watch(grown, died.put_nowait)

    await grown.keep(100 * MIB)
    assert await grown.pid() == pid
    with suppress(RpcError):  # it may be gone before it answers
        await grown.keep(150 * MIB)
    await asyncio.wait_for(died.get(), 30)

    fresh = await eventually(lambda: service.connect(address, EchoGateway), 150, "a fresh process")
    assert await fresh.pid() != pid
    await service.close()
