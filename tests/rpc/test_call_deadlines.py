"""The caller's time travels with an ask and is the handler's."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from flinkray.core.errors import RpcTimeoutError
from flinkray.rpc import (
    LocalNetwork,
    LocalRpcService,
    RpcEndpoint,
    RpcGateway,
    ask_timeout,
    deadline,
    oneway,
    runs_to_completion,
)
from flinkray.rpc.calls.deadlines import Deadlines
from flinkray.rpc.calls.proxy import asks_within
from flinkray.testing.virtual_time import on_virtual_time


class SlowGateway(RpcGateway):
    """Takes its time."""

    @abstractmethod
    async def slow(self, seconds: float) -> float | None: ...

    @abstractmethod
    @ask_timeout(None)
    async def endless(self, seconds: float) -> float | None: ...

    @abstractmethod
    @runs_to_completion
    async def thorough(self, seconds: float) -> float | None: ...

    @abstractmethod
    @oneway
    async def told(self, seconds: float) -> None: ...

    @abstractmethod
    async def leave_work_behind(self, seconds: float) -> None: ...


class Slow(RpcEndpoint, SlowGateway):
    """With a *next*, asks that one instead of sleeping."""

    def __init__(self, service: LocalRpcService, next_one: SlowGateway | None = None) -> None:
        super().__init__(service, "slow")
        self.next_one = next_one
        self.story: list[str] = []
        self.lefts: list[float | None] = []
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def on_start(self) -> None:
        await self.may_start.wait()

    async def slow(self, seconds: float) -> float | None:
        left = deadline()
        try:
            if self.next_one is not None:
                return await self.next_one.slow(seconds)
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.story.append(f"cancelled at {self.clock.monotonic():g}")
            raise
        self.story.append(f"done at {self.clock.monotonic():g}")
        self.lefts.append(deadline())
        return left

    async def endless(self, seconds: float) -> float | None:
        return await self.slow(seconds)

    async def thorough(self, seconds: float) -> float | None:
        await asyncio.sleep(seconds)
        return await self.slow(seconds)

    async def told(self, seconds: float) -> None:
        self.lefts.append(deadline())
        await self.slow(seconds)

    async def leave_work_behind(self, seconds: float) -> None:
        self.run_async(lambda: self.lefts.append(deadline()))  # runs while the handler does
        await asyncio.sleep(0)
        self.create_task(self.slow(seconds))
        self.schedule_run_async(seconds, lambda: self.lefts.append(deadline()))
        self.loose = asyncio.ensure_future(self.slow(2 * seconds))  # begins after the handler's end


async def chain(length: int) -> tuple[LocalRpcService, list[Slow], SlowGateway]:
    """Endpoints of which each asks the next, and a gateway of the first."""
    network = LocalNetwork()
    caller = LocalRpcService("caller", network)
    endpoints: list[Slow] = []
    gateway: SlowGateway | None = None
    for number in range(length):
        service = LocalRpcService(f"host-{number}", network)
        endpoint = Slow(service, gateway)
        endpoint.start()
        endpoints.append(endpoint)
        asks = caller if number == length - 1 else LocalRpcService(f"between-{number}", network)
        gateway = await asks.connect(endpoint.address, SlowGateway)
    assert gateway is not None
    return caller, endpoints[::-1], gateway


@on_virtual_time
async def test_a_handler_is_cancelled_when_its_caller_has_stopped_waiting() -> None:
    _, (endpoint,), gateway = await chain(1)
    with pytest.raises(RpcTimeoutError, match=r"SlowGateway\.slow: no answer within 10 s"):
        await gateway.slow(11)
    await asyncio.sleep(5)
    assert endpoint.story == ["cancelled at 10"]


@on_virtual_time
async def test_a_handler_is_told_how_many_seconds_it_has_left() -> None:
    _, (endpoint,), gateway = await chain(1)
    assert await gateway.slow(4) == pytest.approx(10)
    assert endpoint.lefts == [pytest.approx(6)]
    assert await gateway.endless(1) is None
    await gateway.told(1)
    await asyncio.sleep(2)
    assert endpoint.lefts[1:] == [None, None, None]
    assert deadline() is None


@on_virtual_time
async def test_asks_of_a_handler_time_out_with_the_call_that_it_handles() -> None:
    _, endpoints, gateway = await chain(3)
    with asks_within(3), pytest.raises(RpcTimeoutError):
        await gateway.slow(11)
    await asyncio.sleep(5)
    assert [endpoint.story for endpoint in endpoints] == [["cancelled at 3"]] * 3
    left = await gateway.slow(4)
    assert left == pytest.approx(10)


@on_virtual_time
async def test_handler_marked_to_complete_goes_on_after_its_caller_gave_up() -> None:
    _, (first, last), gateway = await chain(2)
    with asks_within(3), pytest.raises(RpcTimeoutError):
        await gateway.thorough(4)
    await asyncio.sleep(10)
    assert last.story == ["done at 8"]
    assert last.lefts == [pytest.approx(6)]
    assert first.story == []  # only the sleeping one notes its end
    assert await gateway.thorough(1) == pytest.approx(10)


@on_virtual_time
async def test_background_work_that_a_handler_started_has_no_deadline() -> None:
    _, (first, last), gateway = await chain(2)
    with asks_within(3):
        await gateway.leave_work_behind(4)
    await asyncio.sleep(30)
    assert last.story == ["done at 4", "done at 8"]
    assert first.lefts == [None, None]


@on_virtual_time
async def test_call_whose_caller_gave_up_before_on_start_has_finished_is_not_handled() -> None:
    network = LocalNetwork()
    caller, host = LocalRpcService("caller", network), LocalRpcService("host", network)
    endpoint = Slow(host)
    endpoint.may_start.clear()
    endpoint.start()
    gateway = await caller.connect(endpoint.address, SlowGateway)
    with pytest.raises(RpcTimeoutError):
        await gateway.thorough(1)
    endpoint.may_start.set()
    assert await gateway.slow(1) is not None
    await asyncio.sleep(30)
    assert endpoint.story == ["done at 11"]


class Entry:
    """Something with a deadline."""

    def __init__(self, expired: list[Entry]) -> None:
        self.is_over = False
        self._expired = expired

    def expire(self) -> None:
        self._expired.append(self)


@on_virtual_time
async def test_deadlines_of_finished_calls_are_removed_whenever_their_number_doubled() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    expired: list[Entry] = []

    def add(count: int, *, is_over: bool) -> None:
        for _ in range(count):
            entry = Entry(expired)
            deadlines.add(10.0, entry)
            entry.is_over = is_over

    add(255, is_over=True)
    assert len(deadlines) == 255
    add(1, is_over=False)
    assert len(deadlines) == 1
    add(254, is_over=False)
    add(1, is_over=True)  # the 256th: it is there when the others are looked at
    assert len(deadlines) == 256
    add(255, is_over=True)  # now there are 255 that are not over
    assert len(deadlines) == 511
    add(1, is_over=False)
    assert len(deadlines) == 256
    await asyncio.sleep(11)
    assert len(expired) == 256
    assert len(deadlines) == 0


@on_virtual_time
async def test_deadlines_expire_on_time_although_others_are_removed() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    random = Random(1)
    begin = loop.time()
    times: dict[Entry, float] = {}

    class Noting(Entry):
        def expire(self) -> None:
            times[self] = loop.time() - begin

    wanted: dict[Entry, float] = {}
    for number in range(2000):
        entry, seconds = Noting([]), random.uniform(1.0, 100.0)
        deadlines.add(begin + seconds, entry)
        if number % 4:
            entry.is_over = True
        else:
            wanted[entry] = seconds
    await asyncio.sleep(101)
    assert times == pytest.approx(wanted, abs=1e-5)


class CountingLoop:
    """Keeps the timers that were asked for, and runs none."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], object], asyncio.Event]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object]) -> Any:
        cancelled = asyncio.Event()
        self.timers.append((when, callback, cancelled))

        class Handle:
            def cancel(self) -> None:
                cancelled.set()

        return Handle()

    def pending(self) -> list[float]:
        return [when for when, _, cancelled in self.timers if not cancelled.is_set()]

    def run(self, until: float) -> None:
        """Also what is due a little later, as loops do by their clock's resolution."""
        self.now = until
        due = [timer for timer in self.timers if timer[0] <= until + 1e-7]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, callback, cancelled in due:
            if not cancelled.is_set():
                callback()


def test_many_deadlines_share_one_timer_for_the_nearest() -> None:
    loop: Any = CountingLoop()
    deadlines = Deadlines(loop)
    expired: list[Entry] = []
    entries = {when: Entry(expired) for when in (5.0, 3.0, 4.0, 9.0, 1.0)}
    for when, entry in entries.items():
        deadlines.add(when, entry)
    assert loop.pending() == [1.0]
    loop.run(1.0)
    assert expired == [entries[1.0]]
    assert loop.pending() == [3.0]
    entries[4.0].is_over = True
    loop.run(3.0)
    assert expired == [entries[1.0], entries[3.0]]
    assert loop.pending() == [5.0]  # not for what is over
    loop.run(4.9999999)  # a loop may call a little early
    assert expired[2:] == [entries[5.0]]
    assert loop.pending() == [9.0]
    deadlines.close()
    assert loop.pending() == []
    assert len(deadlines) == 0
    deadlines.close()
    last = Entry(expired)
    deadlines.add(20.0, last)
    assert loop.pending() == [20.0]
    loop.run(20.0)
    assert expired[3:] == [last]
    assert loop.pending() == []


class Adding(Entry):
    """Its end is the beginning of another one."""

    def __init__(self, expired: list[Entry], deadlines: Deadlines, count: int) -> None:
        super().__init__(expired)
        self._deadlines = deadlines
        self._count = count

    def expire(self) -> None:
        super().expire()
        for _ in range(self._count):
            self._deadlines.add(1.0, Entry(self._expired))


@pytest.mark.parametrize("count", [1, 600])
def test_deadline_added_while_others_expire_expires_as_well(count: int) -> None:
    """Also with so many deadlines that finished ones are removed meanwhile."""
    loop: Any = CountingLoop()
    deadlines = Deadlines(loop)
    expired: list[Entry] = []
    deadlines.add(1.0, Adding(expired, deadlines, count))
    loop.run(2.0)
    while loop.pending():
        loop.run(2.0)
    assert len(expired) == count + 1
    assert len(deadlines) == 0
