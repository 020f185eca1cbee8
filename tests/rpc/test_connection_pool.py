"""The connections of one process: opened once for all, again when it is time, closed when idle."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pytest

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError
from flinkray.rpc.calls.background_tasks import BackgroundTasks
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.connection_pool import IDLE_LOOKS, ConnectionPool, Opened
from flinkray.rpc.calls.metrics import MethodRecorder
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.codec import pack
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION, RESOLVE, Kind, unpack_request
from flinkray.rpc.wire.transport import FrameReceiver, Transport
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.peers import Wire


class Line(Wire):
    """A transport whose other side is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.receiver: FrameReceiver | None = None
        self.lost_when_attached: str | None = None
        self.answers_pings = True

    def attach(self, receiver: FrameReceiver) -> None:
        self.receiver = receiver
        if self.lost_when_attached is not None:
            receiver.connection_lost(self.lost_when_attached)

    def send(self, frame: bytes, lane: int | None = None) -> None:
        super().send(frame, lane)
        kind, number = unpack_request(frame)[1:3]
        if kind == Kind.PING and self.answers_pings:
            asyncio.get_running_loop().call_soon(self.answer, number)

    def answer(self, number: int) -> None:
        assert self.receiver is not None
        payload = codec.encode(True)
        self.receiver.frame_received(pack((PROTOCOL_VERSION, int(Kind.RESULT), number, payload)))


@dataclass
class Attempt:
    """To open a connection."""

    process: str
    where: object
    at: float


class Network:
    """Opens what the pool asks for, as the test says."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.deadlines = PatientDeadlines(self.loop)
        self.attempts: list[Attempt] = []
        self.opened: list[ClientConnection] = []
        self.lines: list[Line] = []
        self.incarnation = "1"
        self.error: str | None = None
        self.lost_when_attached: str | None = None
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.tasks = BackgroundTasks(self.loop, "test")
        self.pool = ConnectionPool(
            self._open, self._new, lambda seconds: 1.5 * seconds, self.tasks, self.opened.append
        )

    async def _open(self, process: str, where: object) -> Opened:
        self.attempts.append(Attempt(process, where, self.loop.time()))
        await self.may_open.wait()
        if self.error is not None:
            raise RpcConnectionError(self.error)
        line = Line()
        line.lost_when_attached = self.lost_when_attached
        self.lines.append(line)
        return Opened(line, self.incarnation, f"where {self.incarnation} is")

    def _new(self, process: str, incarnation: str, transport: Transport) -> ClientConnection:
        return ClientConnection(process, incarnation, transport, self.deadlines)


def call(connection: ClientConnection) -> None:
    connection.followed.add(1)
    connection.tell("what", 1, "m", None, b"")


@on_virtual_time
async def test_concurrent_connects_to_one_process_share_one_connection() -> None:
    network = Network()
    pool = network.pool
    assert pool.get("host") is None
    network.may_open.clear()
    connecting = [asyncio.ensure_future(pool.connect("host")) for _ in range(3)]
    other = asyncio.ensure_future(pool.connect("other"))
    await asyncio.sleep(1)
    network.may_open.set()
    first, second, third = [await one for one in connecting]
    assert first is second is third is await pool.connect("host") is pool.get("host")
    assert [attempt.process for attempt in network.attempts] == ["host", "other"]
    assert network.opened == pool.all() == [first, await other]
    assert first.where == "where 1 is"
    assert network.lines[0].receiver is first


@on_virtual_time
async def test_failed_connect_is_reported_to_all_its_callers_and_retried_by_the_next_call() -> None:
    network = Network()
    network.error = "there is nobody"
    connecting = [asyncio.ensure_future(network.pool.connect("host")) for _ in range(2)]
    for one in connecting:
        with pytest.raises(RpcConnectionError, match="there is nobody"):
            await one
    assert network.pool.all() == []
    network.error = None
    assert await network.pool.connect("host") in network.opened
    assert len(network.attempts) == 2


@on_virtual_time
async def test_connection_that_is_lost_while_it_opens_is_not_added_to_the_pool() -> None:
    network = Network()
    network.lost_when_attached = "it was refused"
    connection = await network.pool.connect("host")
    assert connection.lost_reason == "it was refused"
    assert network.opened == network.pool.all() == []


@on_virtual_time
async def test_closed_connection_pool_opens_no_connection_and_keeps_the_existing_ones() -> None:
    network = Network()
    connection = await network.pool.connect("host")
    network.may_open.clear()
    connecting = asyncio.ensure_future(network.pool.connect("other"))
    await asyncio.sleep(1)
    network.pool.close("the service is closed")
    network.tasks.cancel()
    with pytest.raises(RpcConnectionError, match=r"^the service is closed$"):
        await connecting
    with pytest.raises(RpcConnectionError, match=r"^the service is closed$"):
        await network.pool.connect("third")
    with pytest.raises(RecipientUnreachableError, match=r"^the service is closed$"):
        network.pool.successor_of(connection)
    assert network.pool.all() == [connection]
    assert not connection.is_lost
    assert len(network.attempts) == 2


@on_virtual_time
async def test_connect_whose_attempt_is_cancelled_by_the_service_fails() -> None:
    network = Network()
    network.may_open.clear()
    connecting = asyncio.ensure_future(network.pool.connect("other"))
    await asyncio.sleep(1)
    network.tasks.cancel()
    with pytest.raises(RpcConnectionError, match="connecting to other ended"):
        await connecting


# --- successors -----------------------------------------------------------------------------------


@on_virtual_time
async def test_lost_connection_is_opened_again_once_for_all_its_callers() -> None:
    network = Network()
    lost = await network.pool.connect("host")
    lost.followed.update((3, 4))
    lost.break_off("the wire was cut")
    assert network.pool.all() == []
    network.may_open.clear()
    successor = network.pool.successor_of(lost)
    assert successor is network.pool.successor_of(lost)
    assert network.pool.all() == [successor]
    call(successor)
    await asyncio.sleep(1)
    assert network.opened == [lost]
    network.may_open.set()
    await asyncio.sleep(1)
    assert network.opened == [lost, successor]
    assert (network.attempts[1].process, network.attempts[1].where) == ("host", "where 1 is")
    assert len(network.attempts) == 2
    assert successor.where == "where 1 is"
    # it asks for the endpoints that the lost one knew, before anything else
    requests = [unpack_request(frame)[1:4] for frame in network.lines[1].frames]
    assert requests == [(RESOLVE, 1, 3), (RESOLVE, 2, 4), (Kind.TELL, 3, 1)]
    assert network.pool.successor_of(lost) is successor is await network.pool.connect("host")
    assert not successor.is_lost


@on_virtual_time
async def test_unreachable_process_is_tried_again_after_doubling_pauses() -> None:
    network = Network()
    lost = await network.pool.connect("host")
    lost.break_off("the wire was cut")
    network.error = "no route"
    begin = network.loop.time()
    step = 0.001
    while network.loop.time() - begin < 20:
        with suppress(RecipientUnreachableError):
            call(network.pool.successor_of(lost))
        await asyncio.sleep(step)
    times = [attempt.at - begin for attempt in network.attempts[1:]]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    # half as much again, as it was told to stretch them
    expected = [0.075, 0.15, 0.3, 0.6, 1.2, 2.4, *[3.0] * 5]
    assert times[0] == pytest.approx(0, abs=step)
    assert pauses == pytest.approx(expected, abs=3 * step)
    # once it was reached, counting begins anew
    network.error = None
    await asyncio.sleep(3)
    successor = network.pool.successor_of(lost)
    await asyncio.sleep(1)
    assert not successor.is_lost
    successor.break_off("cut again")
    network.error = "no route"
    before = len(network.attempts)
    call(network.pool.successor_of(successor))
    await asyncio.sleep(0.07)
    with pytest.raises(RecipientUnreachableError, match=r"^cut again; no route$"):
        network.pool.successor_of(successor)
    await asyncio.sleep(0.01)
    network.pool.successor_of(lost)
    await asyncio.sleep(0.001)
    assert len(network.attempts) == before + 2


@on_virtual_time
async def test_reason_of_an_unreachable_process_does_not_grow_with_each_attempt() -> None:
    network = Network()
    lost = await network.pool.connect("host")
    lost.break_off("the wire was cut")
    for attempt in range(1, 6):
        network.error = f"no route, {attempt}"
        successor = network.pool.successor_of(lost)
        await asyncio.sleep(10)
        assert successor.lost_reason == f"the wire was cut; no route, {attempt}"
    network.error = None
    reached = network.pool.successor_of(lost)
    await asyncio.sleep(10)
    reached.break_off("cut again")
    network.error = "no route"
    successor = network.pool.successor_of(lost)
    await asyncio.sleep(10)
    assert successor.lost_reason == "cut again; no route"


@on_virtual_time
async def test_lost_connection_to_a_dead_or_replaced_process_is_not_opened_again() -> None:
    network = Network()
    lost = await network.pool.connect("host")
    lost.break_off("the wire was cut")
    lost.peer_died = True
    with pytest.raises(RecipientUnreachableError, match=r"^the wire was cut$"):
        network.pool.successor_of(lost)
    lost.peer_died = False
    lost.where, where = None, lost.where
    with pytest.raises(RecipientUnreachableError, match=r"^the wire was cut$"):
        network.pool.successor_of(lost)
    lost.where = where
    network.incarnation = "2"
    newer = await network.pool.connect("host")
    assert newer is not lost
    with pytest.raises(RecipientUnreachableError) as refused:
        network.pool.successor_of(lost)
    assert str(refused.value) == "the wire was cut; another process named host has come since"
    assert len(network.attempts) == 2


@on_virtual_time
async def test_connect_that_overlaps_a_reopening_uses_the_reopened_connection() -> None:
    network = Network()
    lost = await network.pool.connect("host")
    lost.break_off("the wire was cut")
    network.may_open.clear()
    connecting = asyncio.ensure_future(network.pool.connect("host"))
    await asyncio.sleep(1)
    successor = network.pool.successor_of(lost)
    network.may_open.set()
    assert await connecting is successor
    await asyncio.sleep(1)
    stories = [line.story for line in network.lines[1:]]
    assert sorted(stories) == [[], ["close"]]
    assert network.pool.all() == [successor]
    assert not successor.is_lost


@on_virtual_time
async def test_reopened_connection_lost_while_it_opens_is_not_reported_as_opened() -> None:
    network = Network()
    lost = await network.pool.connect("host")
    lost.break_off("the wire was cut")
    network.lost_when_attached = "it was refused"
    successor = network.pool.successor_of(lost)
    await asyncio.sleep(1)
    assert successor.lost_reason == "it was refused"
    assert network.opened == [lost]
    assert network.pool.all() == []


@on_virtual_time
async def test_reopened_connection_that_never_opens_is_lost_with_the_first_reason() -> None:
    network = Network()
    lost = await network.pool.connect("host")
    lost.break_off("the wire was cut")
    network.may_open.clear()
    successor = network.pool.successor_of(lost)
    future = successor.ask(
        "what", next(iter(successor.followed)), "m", None, b"", None, MethodRecorder()
    ).future
    await asyncio.sleep(1)
    network.tasks.cancel()
    await asyncio.sleep(1)
    assert successor.lost_reason == "the wire was cut"
    assert str(future.exception()) == "what: the wire was cut"


# --- idle connections -----------------------------------------------------------------------------


@on_virtual_time
async def test_connection_is_closed_after_several_checks_in_a_row_find_it_idle() -> None:
    network = Network()
    pool = network.pool
    assert pool.idle_timeout is None
    connection = await pool.connect("host")
    await asyncio.sleep(1000)
    assert not connection.is_lost
    pool.idle_timeout = float(IDLE_LOOKS)
    # one look to see how many requests were sent, and so many to see that none was
    await asyncio.sleep(IDLE_LOOKS + 0.9)
    assert not connection.is_lost
    call(connection)  # the count begins anew
    await asyncio.sleep(IDLE_LOOKS)
    assert not connection.is_lost
    await asyncio.sleep(0.2)
    assert connection.lost_reason == "the connection was closed because nobody used it"
    assert network.lines[0].story == ["close"]
    assert pool.all() == []
    # looking begins again with the next connection
    again = await pool.connect("host")
    call(again)
    await asyncio.sleep(IDLE_LOOKS + 0.9)
    assert not again.is_lost
    await asyncio.sleep(0.2)
    assert again.is_lost


@on_virtual_time
async def test_connections_that_are_watched_or_within_the_process_are_never_idle() -> None:
    network = Network()
    network.pool.idle_timeout = float(IDLE_LOOKS)
    own, watched, idle = [await network.pool.connect(name) for name in ("own", "watched", "idle")]
    own.where = None  # leads to this very process
    release = watched.on_end_of(0, lambda _: None)
    await asyncio.sleep(10 * IDLE_LOOKS)
    assert [one.is_lost for one in (own, watched, idle)] == [False, False, True]
    release()
    await asyncio.sleep(IDLE_LOOKS + 0.9)
    assert not watched.is_lost
    await asyncio.sleep(1)
    assert watched.is_lost
    assert not own.is_lost


@on_virtual_time
async def test_changed_idle_timeout_counts_from_the_time_of_the_change() -> None:
    network = Network()
    connection = await network.pool.connect("host")
    network.pool.idle_timeout = float(IDLE_LOOKS)
    await asyncio.sleep(IDLE_LOOKS + 0.5)
    network.pool.idle_timeout = 10.0 * IDLE_LOOKS
    assert network.pool.idle_timeout == 10.0 * IDLE_LOOKS
    await asyncio.sleep(10 * IDLE_LOOKS + 9)  # the looks until now do not count
    assert not connection.is_lost
    await asyncio.sleep(2)
    assert connection.is_lost
    connection = await network.pool.connect("host")
    network.pool.idle_timeout = None
    await asyncio.sleep(1000)
    assert not connection.is_lost
    network.pool.idle_timeout = 1.0
    network.pool.close("the service is closed")
    await asyncio.sleep(1000)
    assert not connection.is_lost
    network.pool.idle_timeout = 1.0
    await asyncio.sleep(1000)
    assert not connection.is_lost


@pytest.mark.parametrize("meanwhile", ["nothing", "a call", "a watch", "no answer", "a loss"])
@on_virtual_time
async def test_idle_connection_closes_only_if_unused_until_the_ping_is_answered(
    meanwhile: str,
) -> None:
    network = Network()
    connection = await network.pool.connect("host")
    line = network.lines[0]
    line.answers_pings = False
    network.pool.idle_timeout = float(IDLE_LOOKS)
    await asyncio.sleep(IDLE_LOOKS + 1.5)
    assert [unpack_request(frame)[1] for frame in line.frames] == [Kind.PING]
    if meanwhile == "a call":
        call(connection)
    elif meanwhile == "a watch":
        connection.on_end_of(0, lambda _: None)
    elif meanwhile == "a loss":
        connection.break_off("the wire was cut")
    if meanwhile == "no answer":
        await asyncio.sleep(10)
    elif meanwhile != "a loss":
        line.answer(1)
    await asyncio.sleep(0.1)
    assert ("close" in line.story) == (meanwhile == "nothing")
    assert connection.is_lost == (meanwhile in ("nothing", "a loss"))
