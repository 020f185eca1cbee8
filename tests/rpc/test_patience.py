"""Deadlines that count the time in which the process was served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.rpc import LocalRpcService, RpcEndpoint, deadline
from flinkray.rpc.calls.metrics import MethodRecorder
from flinkray.rpc.calls.peer_deadlines import LONGEST_RESPITE, PUNCTUAL, RESPITES, PatientDeadlines
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION, Kind
from flinkray.rpc.wire.frames import FrameStream
from flinkray.testing import on_virtual_time
from tests.rpc.peers import framed
from tests.rpc.test_heartbeats_after_stalls import JumpingLoop


class SteppedLoop:
    """Serves timers while :meth:`serve` says so, and stands still in between."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object]) -> Any:
        self._numbers += 1
        entry = when, self._numbers, callback
        self._timers.append(entry)

        class Handle:
            def cancel(handle) -> None:  # noqa: N805 - self is the loop
                if entry in self._timers:
                    self._timers.remove(entry)

        return Handle()

    def timers(self) -> list[float]:
        return [when for when, *_ in self._timers]

    def serve(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and (entry := min(self._timers))[0] <= end:
            self.now = max(self.now, entry[0])
            self._timers.remove(entry)
            entry[2]()
        self.now = max(self.now, end)

    def serve_one(self) -> None:
        entry = min(self._timers)
        self._timers.remove(entry)
        entry[2]()

    def stand_still(self, seconds: float) -> None:
        self.now += seconds


class Bench:
    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.begin = self.loop.now
        self.deadlines = PatientDeadlines(self.loop)  # type: ignore[arg-type]
        self.expired: list[tuple[str, Any]] = []

    def wait(self, name: str, seconds: float) -> Any:
        def expires() -> None:
            self.expired.append((name, self.loop.now - self.begin))

        return self.deadlines.call_after(seconds, expires)

    def names(self) -> list[str]:
        return [name for name, _ in self.expired]


# --- while nothing stands still -------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 200.0), min_size=1, max_size=20))
def test_deadlines_expire_at_their_time_and_in_order(seconds: list[float]) -> None:
    bench = Bench()
    for one in seconds:
        bench.wait(f"{one}", one)
    bench.loop.serve(201)
    assert [at for _, at in bench.expired] == pytest.approx(sorted(seconds), abs=1e-5)
    assert bench.loop.timers() == []
    assert len(bench.deadlines) == 0


def test_cancelled_deadline_never_expires_and_all_deadlines_share_one_timer() -> None:
    bench = Bench()
    first, _ = bench.wait("first", 10.0), bench.wait("second", 20.0)
    bench.loop.serve(9.0)
    first.cancel()
    first.cancel()
    assert len(bench.loop.timers()) == 1
    bench.loop.serve(10.9)
    assert bench.expired == []
    bench.loop.serve(0.2)
    assert bench.expired == [("second", pytest.approx(20.0))]


def test_deadline_of_an_hour_is_checked_fewer_than_50_times() -> None:
    bench = Bench()
    bench.wait("hour", 3600.0)
    looks = 0
    while bench.loop.timers():
        [when] = bench.loop.timers()
        bench.loop.serve(when - bench.loop.now)
        looks += 1
    assert bench.names() == ["hour"]
    assert looks < 50


def test_nearer_deadline_added_later_expires_in_time() -> None:
    bench = Bench()
    bench.wait("far", 1000.0)
    bench.loop.serve(1.0)
    bench.wait("near", 2.0)
    bench.loop.serve(1.0)
    bench.wait("nearest", 0.1)
    bench.loop.serve(5.0)
    assert bench.expired == [("nearest", pytest.approx(2.1)), ("near", pytest.approx(3.0))]


def test_expired_deadline_may_add_a_new_one() -> None:
    bench = Bench()

    def again() -> None:
        bench.expired.append(("again", bench.loop.now - bench.begin))
        if len(bench.expired) < 3:
            bench.deadlines.call_after(1.0, again)

    bench.deadlines.call_after(1.0, again)
    bench.loop.serve(10)
    assert [at for _, at in bench.expired] == pytest.approx([1.0, 2.0, 3.0])


@given(st.floats(0.1, 1e7), st.floats(0.02, 1e6), st.floats(0.001, 100.0))
def test_expired_deadline_has_also_passed_on_the_clock_that_leaves_out_stalls(
    begin: float, stall: float, seconds: float
) -> None:
    """Otherwise a caller that compares the times would check again and again, or expire too
    early."""
    bench = Bench()
    bench.loop.now = begin
    bench.wait("earlier", 0.5)
    bench.loop.stand_still(stall)
    due = bench.deadlines.time() + seconds
    looks: list[float] = []

    def look() -> None:
        looks.append(bench.deadlines.time())
        if looks[-1] < due:
            bench.deadlines.call_after(due - looks[-1], look)

    bench.deadlines.call_after(seconds, look)
    bench.loop.serve(seconds + LONGEST_RESPITE + 0.1)
    assert due <= looks[-1] <= due + LONGEST_RESPITE + 0.02
    assert len(looks) < 4


def test_deadline_of_zero_seconds_that_is_added_again_and_again_lets_others_run() -> None:
    bench = Bench()
    turns = 0

    def again() -> None:
        nonlocal turns
        turns += 1
        bench.deadlines.call_after(0.0, again)

    bench.deadlines.call_after(0.0, again)
    for _ in range(3):
        [when] = bench.loop.timers()
        bench.loop.serve_one()
    assert (when, turns) == (bench.begin, 3)


def test_closed_deadlines_never_expire() -> None:
    bench = Bench()
    bench.wait("one", 1.0)
    bench.deadlines.close()
    assert bench.loop.timers() == []
    bench.loop.serve(10)
    assert bench.expired == []
    bench.loop.stand_still(5)
    before = bench.loop.now
    assert bench.deadlines.time() == before, "who waits for nothing notices no stall"


# --- stalls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stall", [2.0, 45.0, 60.0, 10_000.0])
@pytest.mark.parametrize("before", [0.0, 20.0, 49.0, 49.9999])
def test_one_stall_uses_up_at_most_a_quarter_of_the_remaining_time_of_a_deadline(
    stall: float, before: float
) -> None:
    bench = Bench()
    bench.wait("it", 50.0)
    bench.loop.serve(before)
    left = 50.0 - before
    bench.loop.stand_still(stall)
    bench.loop.serve(max(0.0, 0.75 * left - 0.26))
    assert bench.expired == []
    bench.loop.serve(0.25 * left + 0.52 + LONGEST_RESPITE)
    assert bench.names() == ["it"]


@pytest.mark.parametrize("notice", ["the look", "the time", "another deadline"])
def test_deadline_is_postponed_after_a_stall_so_that_a_heartbeat_can_cancel_it(
    notice: str,
) -> None:
    bench = Bench()
    bench.wait("silent", 10.0)
    heard = bench.wait("heard", 10.0)
    bench.loop.serve(9.9)
    bench.loop.stand_still(30.0)
    if notice == "the time":
        assert bench.deadlines.time() == pytest.approx(bench.begin + 10.0)
    elif notice == "another deadline":
        bench.wait("another", 5.0)
    bench.loop.serve(LONGEST_RESPITE - 0.05)
    assert bench.expired == []
    heard.cancel()
    bench.loop.serve(0.1)
    assert bench.names() == ["silent"]


def test_deadline_is_postponed_by_the_length_of_a_short_stall() -> None:
    bench = Bench()
    bench.wait("it", 10.0)
    bench.loop.serve(9.9)
    bench.loop.stand_still(0.3)
    bench.loop.serve(0.19)  # 0.2 s late
    assert bench.expired == []
    bench.loop.serve(0.02)
    assert bench.names() == ["it"]


def test_delay_of_a_few_milliseconds_does_not_count_as_a_stall() -> None:
    bench = Bench()
    bench.wait("it", 0.2)
    bench.loop.stand_still(0.2 + 0.9 * PUNCTUAL)
    bench.loop.serve(0)
    assert bench.names() == ["it"]


def test_deadline_added_after_a_stall_expires_after_its_full_time() -> None:
    """Whether the stall has been noticed or not."""
    bench = Bench()
    bench.wait("old", 10.0)
    bench.loop.serve(1.0)
    bench.loop.stand_still(100.0)
    bench.wait("new", 20.0)
    assert bench.deadlines.time() == pytest.approx(bench.begin + 2.5), "where the look was to be"
    bench.loop.serve(19.9)
    assert bench.names() == ["old"]
    bench.loop.serve(0.2)
    assert bench.expired[1:] == [("new", pytest.approx(121.0))]


def test_deadline_expires_in_a_process_that_stalls_repeatedly() -> None:
    bench = Bench()
    bench.wait("dead", 10.0)
    bench.loop.serve(9.9)
    for _ in range(RESPITES):
        bench.loop.stand_still(3.0)
        bench.loop.serve(0.1)
    assert bench.expired == []
    for _ in range(3):
        bench.loop.stand_still(3.0)
        bench.loop.serve(0.1)
    assert bench.names() == ["dead"]


def test_deadline_cancelled_in_time_resets_the_count_of_postponements() -> None:
    """The count of postponements is reset when no deadline is due."""
    bench = Bench()
    for number in range(3):
        name = f"it {number}"
        waits = bench.wait(name, 10.0)
        bench.loop.serve(9.9)
        for _ in range(RESPITES - 2):
            bench.loop.stand_still(3.0)
            bench.loop.serve(0.1)
        waits.cancel()
        bench.loop.serve(0.5)
    assert bench.expired == []


@given(
    st.floats(0.5, 100.0),
    st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.02, 200.0)), max_size=12),
)
def test_deadline_expires_once_and_not_early_whatever_stalls_there_are(
    seconds: float, story: list[tuple[float, float]]
) -> None:
    bench = Bench()
    waits = bench.wait("it", seconds)
    for served, stall in story:
        bench.loop.serve(served)
        bench.loop.stand_still(stall)
    bench.loop.serve(seconds + LONGEST_RESPITE + 0.01)
    assert waits.is_over
    [(_, at)] = bench.expired
    assert at >= seconds - 1e-5


# --- calls that are made for later ----------------------------------------------------------------


class Later(RpcEndpoint):
    def __init__(self, service: LocalRpcService) -> None:
        super().__init__(service, "later")
        self.story: list[str] = []


@on_virtual_time
async def test_scheduled_deadline_calls_its_endpoint_only_while_the_endpoint_runs() -> None:
    service = LocalRpcService("host")
    endpoint = Later(service)
    endpoint.start()

    async def note(what: str) -> None:
        assert deadline() is None
        endpoint.story.append(f"{what} at {endpoint.counted_time():g}")

    endpoint.schedule_deadline(5.0, lambda: note("first"))
    endpoint.schedule_deadline(6.0, lambda: note("cancelled")).cancel()
    endpoint.schedule_deadline(60.0, lambda: note("after the end"))
    await asyncio.sleep(10)
    assert endpoint.story == ["first at 5"]
    await endpoint.close()
    endpoint.schedule_deadline(5.0, lambda: note("ended"))
    await asyncio.sleep(100)
    assert endpoint.story == ["first at 5"]
    await service.close()


@on_virtual_time
async def test_time_limit_returns_the_result_or_cancels_the_work_and_raises_a_timeout() -> None:
    deadlines = LocalRpcService("host").deadlines
    cancelled = asyncio.Event()

    async def takes(seconds: float) -> float:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return seconds

    assert await deadlines.within(3.0, takes(2.0)) == 2.0
    assert await deadlines.within(None, takes(2.0)) == 2.0
    with pytest.raises(asyncio.TimeoutError):
        await deadlines.within(1.0, takes(2.0))
    await cancelled.wait()
    cancelled.clear()
    waiting = asyncio.ensure_future(deadlines.within(1.0, takes(2.0)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await cancelled.wait()

    async def fails() -> None:
        raise KeyError("it")

    with pytest.raises(KeyError):
        await deadlines.within(1.0, fails())


# --- answers --------------------------------------------------------------------------------------


def answer(sequence: int, value: object) -> bytes:
    frame: bytes = msgpack.packb(
        (PROTOCOL_VERSION, int(Kind.RESULT), sequence, codec.encode(value))
    )
    return framed(frame)


@pytest.mark.parametrize("stall", [11.0, 60.0, 10_000.0])
def test_answer_that_waits_in_the_socket_after_a_stall_is_not_a_timeout(stall: float) -> None:
    loop = JumpingLoop()

    async def run() -> None:
        service = LocalRpcService("caller")
        peer, near = socket.socketpair()
        for sock in (peer, near):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, 4 * 2**20)
        _, stream = await loop.create_connection(FrameStream, sock=near)
        connection = service._new_connection("peer", "1", stream)
        connection.followed.add(1)
        stream.attach(connection)
        made = [
            connection.ask(f"call {n}", 1, "m", None, codec.encode(()), 10.0, MethodRecorder())
            for n in range(3000)
        ]
        lost = connection.ask("lost", 1, "m", None, codec.encode(()), 10.0, MethodRecorder())
        await asyncio.sleep(0)
        peer.setblocking(False)
        data = b"".join(answer(n + 1, n) for n in range(3000))
        assert peer.send(data) == len(data)
        loop.offset += stall
        assert await asyncio.gather(*(one.future for one in made)) == list(range(3000))
        assert not lost.future.done()
        connection.close()
        peer.close()
        await service.close()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
