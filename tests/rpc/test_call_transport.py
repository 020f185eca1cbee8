"""Frames that travel by calls of another system, whatever that does to their order."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.rpc.wire import handshake
from flinkray.rpc.wire.call_transport import (
    ROUND,
    SILENCE,
    AnsweringStream,
    CallingStream,
    Carrier,
)
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.virtual_time import run_on_virtual_time

SECRET = b"s" * 32
LIMIT = 2_000_000


@dataclass
class Recorder:
    """A receiver that keeps what it gets, and answers every frame if so wished."""

    frames: list[bytes] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    answering: AnsweringStream | None = None
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def frame_received(self, frame: bytes | memoryview) -> None:
        self.frames.append(bytes(frame))
        self.came.set()
        if self.answering is not None:
            self.answering.send(b"re:" + frame)

    def frame_refused(self, reason: str) -> None:
        raise AssertionError(reason)

    def connection_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.came.set()

    async def until(self, count: int) -> list[bytes]:
        while len(self.frames) < count:
            self.came.clear()
            await self.came.wait()
        return self.frames

    async def until_lost(self) -> str:
        while not self.lost:
            self.came.clear()
            await self.came.wait()
        return self.lost[0]


class System:
    """Carries calls with delays of its own, so that they start and end out of order; some twice."""

    def __init__(self, seed: int, doubled: float = 0.2) -> None:
        self.random = random.Random(seed)
        self.doubled = doubled
        self.calls = 0
        self.breaks_with: Exception | None = None
        self.served: asyncio.Queue[AnsweringStream] = asyncio.Queue()
        self.carrier = Carrier(self.served.put_nowait, lambda: LIMIT)

    def call(self, request: bytes) -> asyncio.Future[bytes]:
        self.calls += 1
        return asyncio.ensure_future(self._carry(request))

    async def _carry(self, request: bytes) -> bytes:
        if self.breaks_with is not None:
            raise self.breaks_with
        again = self.random.random() < self.doubled
        first = asyncio.ensure_future(self._run(request))
        if not again:
            return await first
        # the first answer is lost on the way, as when Ray runs a call again
        second = asyncio.ensure_future(self._run(request))
        await asyncio.wait({first, second})
        return second.result()

    async def _run(self, request: bytes) -> bytes:
        await asyncio.sleep(self.random.random() * 0.1)
        answer = await self.carrier.carry(request)
        await asyncio.sleep(self.random.random() * 0.1)
        return answer

    def connect(self, connection_id: bytes = b"1") -> CallingStream:
        return CallingStream(connection_id, self.call, LIMIT)


async def introduced(system: System) -> tuple[CallingStream, Recorder, AnsweringStream, Recorder]:
    calling = system.connect()
    introducing = asyncio.ensure_future(
        handshake.introduce(calling, SECRET, "client#1", "server", "1")
    )
    answering = await system.served.get()
    assert await handshake.receive(answering, SECRET, "server", "1") == "client#1"
    await introducing
    near, far = Recorder(), Recorder()
    calling.attach(near)
    answering.attach(far)
    return calling, near, answering, far


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.sampled_from([1, 100, 70_000, 300_000]), min_size=1, max_size=60),
)
def test_frames_carried_by_reordered_ray_calls_arrive_once_and_in_order(
    seed: int, sizes: list[int]
) -> None:
    async def run() -> None:
        system = System(seed)
        calling, near, answering, far = await introduced(system)
        far.answering = answering
        frames = [number.to_bytes(2, "big") * size for number, size in enumerate(sizes)]
        for frame in frames:
            calling.send(frame)
            if system.random.random() < 0.5:
                await asyncio.sleep(system.random.random() * 0.05)
        assert await far.until(len(frames)) == frames
        assert await near.until(len(frames)) == [b"re:" + frame for frame in frames]
        calling.close()
        assert await far.until_lost() == "the connection was closed by the other side"
        assert near.lost

    run_on_virtual_time(run())


def test_each_of_several_consecutive_asks_is_carried_by_one_ray_call() -> None:
    async def run() -> None:
        system = System(1, doubled=0)
        calling, near, answering, far = await introduced(system)
        far.answering = answering
        calling.send(b"first")
        await near.until(1)
        before = system.calls
        for number in range(100):
            calling.send(b"ask")
            await near.until(number + 2)
        assert system.calls - before == 100
        calling.close()

    run_on_virtual_time(run())


def test_idle_connection_carried_by_ray_calls_stays_open_with_one_call_per_round() -> None:
    async def run() -> None:
        system = System(3, doubled=0)
        calling, near, _, far = await introduced(system)
        before = system.calls
        await asyncio.sleep(100 * ROUND)
        assert not near.lost
        assert not far.lost
        assert system.calls - before <= 101
        calling.close()
        await far.until_lost()

    run_on_virtual_time(run())


def test_stalled_process_does_not_count_its_stall_as_peer_silence() -> None:
    async def run() -> None:
        calling, near, _, far = await introduced(System(4))
        process = asyncio.get_running_loop()
        assert isinstance(process, SimulatedProcess)
        for stall in (SILENCE, SILENCE + ROUND, 100 * ROUND):
            process.scheduler.at(process.time() + stall, process.resume)
            process.stop_serving()
            await asyncio.sleep(3 * ROUND)
            assert not far.lost
        assert not near.lost
        calling.close()
        await far.until_lost()

    run_on_virtual_time(run())


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"\xc1", msgpack.packb(7), msgpack.packb((b"1", "one", 1, False, ())), b"\x91" * 2000],
)
def test_bytes_that_are_no_request_are_refused(request_bytes: bytes) -> None:
    async def run() -> None:
        system = System(7)
        answer = msgpack.unpackb(await system.carrier.carry(request_bytes))
        assert answer == [-1, [], "not a request of a carried connection"]
        assert system.served.empty()

    run_on_virtual_time(run())
