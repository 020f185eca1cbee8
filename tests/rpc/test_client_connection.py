"""The calling side of a connection: what it sends, and what becomes of each answer and end."""

from __future__ import annotations

import asyncio
import gc
from abc import abstractmethod
from typing import Any

import pytest

from flinkray.core.errors import (
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.rpc import LocalRpcService, RpcGateway, deadline, oneway
from flinkray.rpc.calls.call_context import current_call, outside_of_handler
from flinkray.rpc.calls.connection import ClientConnection, PendingAnswer
from flinkray.rpc.calls.metrics import MethodRecorder, RpcRecorder
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.rpc.calls.proxy import Binding, asks_within, binding_of, make_proxy
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.codec import LARGE, pack
from flinkray.rpc.wire.envelope import (
    ASK,
    CONTROL_LANE,
    ENDED,
    MAX_CAUSE_BYTES,
    PING,
    PROTOCOL_VERSION,
    RESOLVE,
    STOP,
    TELL,
    Kind,
    unpack_request,
)
from flinkray.rpc.wire.transport import OpeningTransport
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, OrderError, Point
from tests.rpc.peers import Wire

NONE = codec.encode(None)
LOST_CALL = "; the call may have been handled all the same"


class Caller:
    """A connection whose other side is the test's."""

    def __init__(self, *numbers: int, max_frame_size: int = 1_000_000) -> None:
        """*numbers*: of the endpoints that were resolved."""
        self.loop = asyncio.get_running_loop()
        self.deadlines = PatientDeadlines(self.loop)
        self.line = Wire()
        self.connection = ClientConnection("host", "1", self.line, self.deadlines, max_frame_size)
        self.connection.followed.update(numbers)
        self.recorder = MethodRecorder()
        self.lost: list[str] = []
        self.connection.on_lost(lambda: self.lost.append("lost"))

    def ask(self, target: int, timeout: float | None = None) -> PendingAnswer:
        return self.connection.ask("what", target, "m", None, b"", timeout, self.recorder)

    def answer(self, kind: Kind, number: int, value: object) -> None:
        self.answer_encoded(kind, number, codec.encode(value))

    def answer_encoded(self, kind: Kind, number: int, payload: bytes) -> None:
        frame = pack((PROTOCOL_VERSION, int(kind), number, payload))
        self.connection.frame_received(frame)

    def sent(self) -> list[tuple[Any, ...]]:
        """Kind, number, target, method and payload of what was sent since the last time."""
        frames, self.line.frames = self.line.frames, []
        requests = [unpack_request(frame) for frame in frames]
        return [(*request[1:5], request[8]) for request in requests]


# --- requests -------------------------------------------------------------------------------------


@on_virtual_time
async def test_requests_are_numbered_and_use_the_lane_of_their_endpoint() -> None:
    caller = Caller(1, 2)
    connection = caller.connection
    assert connection.requests == 0
    connection.ask("what", 1, "a", b"token", b"args", 7.5, caller.recorder)
    connection.tell("what", 2, "b", None, b"more")
    frames = [unpack_request(frame) for frame in caller.line.frames]
    assert frames == [
        (PROTOCOL_VERSION, ASK, 1, 1, "a", b"token", 7.5, None, b"args"),
        (PROTOCOL_VERSION, TELL, 2, 2, "b", None, None, None, b"more"),
    ]
    connection.tell("what", 1, "c", None, [b"x", bytes(LARGE)])
    assert caller.line.lanes == [1, 2, 1]
    assert connection.requests == 3


@on_virtual_time
async def test_request_that_is_too_large_or_has_no_recipient_is_not_sent() -> None:
    caller = Caller(1, max_frame_size=1000)
    with pytest.raises(FrameTooLargeError, match=r"^what: a message of .* limit of 1000 bytes"):
        caller.connection.tell("what", 1, "m", None, bytes(1000))
    with pytest.raises(RecipientUnreachableError, match=f"^what: {ENDED}$"):
        caller.ask(2)
    caller.connection.close("closed here")
    with pytest.raises(RecipientUnreachableError, match=r"^what: closed here$"):
        caller.ask(1)
    with pytest.raises(RecipientUnreachableError, match=f"^what: {ENDED}$"):
        caller.ask(2)
    assert caller.sent() == []
    assert not caller.connection.is_needed


@on_virtual_time
async def test_answers_to_resolve_watch_and_ping_requests_reach_their_callers() -> None:
    caller = Caller()
    connection = caller.connection
    resolving = asyncio.ensure_future(connection.resolve("echo", "Gateway", 10.0))
    watching = asyncio.ensure_future(connection.resolve("echo", None, 10.0))
    pinging = asyncio.ensure_future(connection.ping(10.0))
    stopping = asyncio.ensure_future(connection.stop_process())
    await asyncio.sleep(0)
    assert caller.sent() == [
        (RESOLVE, 1, CONTROL_LANE, "echo", codec.encode("Gateway")),
        (RESOLVE, 2, CONTROL_LANE, "echo", NONE),
        (PING, 3, CONTROL_LANE, "", NONE),
        (STOP, 4, CONTROL_LANE, "", NONE),
    ]
    caller.answer(Kind.RESULT, 1, (7, "echo"))
    assert connection.followed == {CONTROL_LANE, 7}  # before its caller runs again
    assert await resolving == (7, "echo")
    caller.answer(Kind.RESULT, 2, (8, 9))
    with pytest.raises(RpcSerializationError, match="host/echo: unexpected answer"):
        await watching
    assert connection.followed == {CONTROL_LANE, 7}
    caller.answer(Kind.RESULT, 3, 1)
    assert await pinging is True
    await asyncio.sleep(1000)
    assert not stopping.done()
    caller.answer(Kind.RESULT, 4, None)
    await stopping


@on_virtual_time
async def test_cancelled_ping_leaves_nothing_pending() -> None:
    caller = Caller(1)
    pinging = asyncio.ensure_future(caller.connection.ping(10.0))
    await asyncio.sleep(0)
    assert caller.connection.is_needed
    pinging.cancel()
    await asyncio.wait({pinging})
    assert pinging.cancelled()
    assert not caller.connection.is_needed
    caller.answer(Kind.RESULT, 1, True)
    await asyncio.sleep(20)
    assert caller.recorder.failures == 0


@on_virtual_time
async def test_connection_is_not_idle_while_a_caller_waits_or_bytes_are_unsent() -> None:
    caller = Caller(1)
    connection = caller.connection
    assert not connection.is_needed
    caller.line.is_busy = True
    assert connection.is_needed
    caller.line.is_busy = False
    release = connection.on_end_of(1, lambda _: None)
    assert connection.is_needed
    release()
    release()
    assert not connection.is_needed
    release = connection.on_end_of(CONTROL_LANE, lambda _: None)
    assert connection.is_needed
    release()
    caller.ask(1)
    assert connection.is_needed
    caller.answer(Kind.RESULT, 1, None)
    assert not connection.is_needed


@on_virtual_time
async def test_waiting_for_a_congested_connection_to_drain_fails_if_it_is_lost() -> None:
    caller = Caller(1)
    await caller.connection.drain("what")
    assert not caller.connection.is_congested
    caller.line.may_send.clear()
    assert caller.connection.is_congested
    waiting = asyncio.ensure_future(caller.connection.drain("what"))
    await asyncio.sleep(1)
    assert not waiting.done()
    caller.connection.connection_lost("the peer has died")
    caller.line.may_send.set()
    with pytest.raises(RecipientUnreachableError, match=f"^what: the peer has died{LOST_CALL}$"):
        await waiting


# --- answers --------------------------------------------------------------------------------------


@on_virtual_time
async def test_answer_goes_to_the_request_with_its_number() -> None:
    caller = Caller(1)
    first, second, third = (caller.ask(1).future for _ in range(3))
    caller.answer(Kind.RESULT, 3, "third")
    caller.answer(Kind.ERROR, 2, OrderError(7, "seven"))
    caller.answer(Kind.RESULT, 99, "nobody's")
    assert not first.done()
    assert third.result() == "third"
    assert isinstance(second.exception(), OrderError)
    caller.answer(Kind.RESULT, 3, "again")
    caller.answer(Kind.RESULT, 1, "first")
    assert first.result() == "first"
    assert caller.recorder.failures == 1
    assert sum(caller.recorder.buckets) == 3
    assert caller.connection.refused_frames == 0


@pytest.mark.parametrize(
    ("kind", "payload", "told", "refused"),
    [
        (Kind.RESULT, b"\xc1", "what: the answer: cannot decode a message", 0),
        (Kind.ERROR, b"\xc1", "what: the answer: cannot decode a message", 0),
        (Kind.ERROR, codec.encode("no error"), "what: the answer makes no sense", 1),
        (Kind.ERROR, NONE, "what: the answer makes no sense", 1),
    ],
)
@on_virtual_time
async def test_answer_that_cannot_be_read_fails_its_request(
    kind: Kind, payload: bytes, told: str, refused: int
) -> None:
    caller = Caller(1)
    future = caller.ask(1).future
    caller.answer_encoded(kind, 1, payload)
    error = future.exception()
    assert isinstance(error, RpcSerializationError)
    assert str(error).startswith(told)
    assert caller.connection.refused_frames == refused
    assert caller.recorder.failures == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RecipientUnreachableError(f"{ENDED}: why"), f"what: {ENDED}: why"),
        (RecipientUnreachableError(ENDED), f"what: {ENDED}"),
        (RecipientUnreachableError("of another call"), "of another call"),
        (RpcConnectionError(ENDED), ENDED),
    ],
)
@on_virtual_time
async def test_error_about_an_unreachable_recipient_names_the_call(
    error: Exception, told: str
) -> None:
    caller = Caller(1)
    future = caller.ask(1).future
    caller.answer(Kind.ERROR, 1, error)
    arrived = future.exception()
    assert type(arrived) is type(error)
    assert str(arrived) == told


@on_virtual_time
async def test_only_answered_calls_have_a_latency_and_only_awaited_errors_are_failures() -> None:
    caller = Caller(1)
    await asyncio.sleep(100)
    given_up, answered, late = (caller.ask(1, timeout=5.0) for _ in range(3))
    futures = [one.future for one in (given_up, answered, late)]
    futures[0].cancel()
    await asyncio.sleep(3)
    caller.answer(Kind.ERROR, 1, OrderError(7, "seven"))  # nobody waits for it
    caller.answer(Kind.RESULT, 2, "answered")
    assert caller.recorder.failures == 0
    assert caller.recorder.seconds == pytest.approx(6)
    found = {i: count for i, count in enumerate(caller.recorder.buckets) if count}
    assert found == {22: 2}
    await asyncio.sleep(3)
    error = futures[2].exception()
    assert isinstance(error, RpcTimeoutError)
    assert str(error) == "what: no answer within 5 s"
    assert (caller.recorder.failures, sum(caller.recorder.buckets)) == (1, 2)
    caller.answer(Kind.RESULT, 3, "too late")
    assert sum(caller.recorder.buckets) == 2
    assert not caller.connection.is_needed


@on_virtual_time
async def test_received_frame_that_is_no_answer_is_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caller = Caller(1)
    future = caller.ask(1).future
    caller.connection.frame_received(b"\xc1")
    caller.connection.frame_received(caller.line.frames[0])  # a request
    assert caller.connection.refused_frames == 2
    assert [line.partition(": ")[0] for line in caplog.messages] == [
        "refused a frame from host"
    ] * 2
    assert not future.done()


@on_virtual_time
async def test_answer_or_error_of_a_call_is_freed_before_the_deadline_of_the_call() -> None:
    caller = Caller(1)
    for _ in range(5):
        future = caller.ask(1, timeout=1000.0).future
        caller.answer(Kind.ERROR, caller.connection.requests, OrderError(7, "seven"))
        assert isinstance(future.exception(), OrderError)
        future = caller.ask(1, timeout=1000.0).future
        caller.answer(Kind.RESULT, caller.connection.requests, Point(7, 0.0))
        assert future.result() == Point(7, 0.0)
        del future
    gc.collect()
    assert not [kept for kept in gc.get_objects() if type(kept) in (OrderError, Point)]
    assert len(caller.deadlines) == 10


# --- ends of endpoints ----------------------------------------------------------------------------


@on_virtual_time
async def test_end_of_an_endpoint_is_reported_once_to_each_waiting_caller() -> None:
    caller = Caller(1, 2)
    connection = caller.connection
    told: list[str] = []
    for name in ("a", "b", "released"):
        release = connection.on_end_of(1, lambda why, name=name: told.append(f"{name}: {why}"))  # type: ignore[misc]
    release()
    waiting = asyncio.ensure_future(connection.until_end_of(1))
    given_up = asyncio.ensure_future(connection.until_end_of(2))
    await asyncio.sleep(0)
    given_up.cancel()
    caller.answer(Kind.TERMINATED, 1, f"{ENDED}: why")
    caller.answer(Kind.TERMINATED, 1, f"{ENDED}: again")
    assert told == [f"a: {ENDED}: why", f"b: {ENDED}: why"]
    assert await waiting == f"{ENDED}: why"
    assert connection.has_ended(1)
    assert not connection.has_ended(2)
    assert connection.end_of(1) == f"{ENDED}: why"
    assert connection.end_of(2) is None
    assert not connection.is_needed  # nobody waits any more
    late: list[str] = []
    connection.on_end_of(1, late.append)()
    assert late == [f"{ENDED}: why"]
    assert await connection.until_end_of(1) == f"{ENDED}: why"


@on_virtual_time
async def test_end_of_an_endpoint_reaches_other_waiters_if_one_waiter_is_cancelled() -> None:
    caller = Caller(1)
    told: list[str] = []
    waiting = asyncio.ensure_future(caller.connection.until_end_of(1))
    await asyncio.sleep(0)
    caller.connection.on_end_of(1, told.append)
    waiting.cancel()
    caller.answer(Kind.TERMINATED, 1, None)
    assert told == [ENDED]
    await asyncio.wait({waiting})
    assert waiting.cancelled()


@on_virtual_time
async def test_end_notice_of_an_endpoint_does_not_answer_the_request_of_its_number() -> None:
    caller = Caller(1, 2)
    future = caller.ask(2).future
    caller.answer(Kind.TERMINATED, 1, None)
    assert not future.done()
    assert caller.connection.end_of(1) == ENDED
    caller.answer(Kind.RESULT, 1, "answered")
    assert future.result() == "answered"
    assert caller.connection.refused_frames == 0


@on_virtual_time
async def test_end_notice_of_an_endpoint_that_was_not_resolved_is_dropped() -> None:
    caller = Caller(1)
    caller.answer(Kind.TERMINATED, 99, f"{ENDED}: why")
    caller.answer(Kind.TERMINATED, CONTROL_LANE, f"{ENDED}: why")
    assert caller.connection.ended_with == {}
    assert not caller.connection.has_ended(CONTROL_LANE)
    assert caller.connection.end_of(99) == ENDED


LONGEST_CAUSE = f"{ENDED}: {'x' * MAX_CAUSE_BYTES}"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (NONE, ENDED),
        (b"\xc1", ENDED),
        (codec.encode(7), ENDED),
        (codec.encode(""), ENDED),
        (codec.encode("another story"), ENDED),
        (codec.encode(f"{ENDED}: why"), f"{ENDED}: why"),
        (codec.encode(LONGEST_CAUSE), LONGEST_CAUSE),
        (codec.encode(f"{LONGEST_CAUSE}x"), None),
    ],
)
@on_virtual_time
async def test_end_reason_of_an_endpoint_is_reported_and_shortened_when_it_is_long(
    payload: bytes, reason: str | None
) -> None:
    caller = Caller(1)
    caller.answer_encoded(Kind.TERMINATED, 1, payload)
    told = caller.connection.end_of(1)
    if reason is not None:
        assert told == reason
    else:
        assert told is not None
        assert told.startswith(f"{ENDED}: xxx")
        assert "shortened" in told
        assert len(told.encode()) <= len(LONGEST_CAUSE)


@on_virtual_time
async def test_new_connection_resolves_each_endpoint_used_on_the_lost_connection_once() -> None:
    caller = Caller(1)
    connection = caller.connection
    connection.follow([1, 2, 3])
    connection.follow([2, 4])
    requests = caller.sent()
    assert requests == [(RESOLVE, n, n + 1, "", NONE) for n in (1, 2, 3)]
    told: list[str] = []
    for number in (2, 3, 4):
        connection.on_end_of(number, told.append)
    caller.answer(Kind.RESULT, 1, (2, "echo"))
    caller.answer(Kind.ERROR, 2, RpcConnectionError(f"{ENDED}: why"))
    caller.answer(Kind.ERROR, 3, RpcSerializationError("something else"))
    await asyncio.sleep(0)
    assert told == [f"{ENDED}: why"]
    assert [connection.has_ended(number) for number in (1, 2, 3, 4)] == [False, False, True, False]
    connection.close()
    connection.follow([9])
    assert 9 not in connection.followed


# --- the end of the connection --------------------------------------------------------------------


@on_virtual_time
async def test_lost_connection_fails_pending_requests_and_reports_its_loss_once() -> None:
    caller = Caller(1, 2)
    connection = caller.connection
    futures = [caller.ask(1, timeout=10.0).future, caller.ask(2).future]
    told: list[str] = []
    connection.on_end_of(1, told.append)
    connection.on_end_of(CONTROL_LANE, told.append)
    assert not connection.is_lost
    connection.connection_lost("the peer has died")
    connection.connection_lost("again")
    for future in futures:
        error = future.exception()
        assert isinstance(error, RecipientUnreachableError)
        assert str(error) == f"what: the peer has died{LOST_CALL}"
    assert told == ["the peer has died"] * 2
    assert caller.lost == ["lost"]
    assert connection.lost_reason == "the peer has died"
    assert caller.recorder.failures == 2
    await asyncio.sleep(20)  # nothing expires any more
    late: list[str] = []
    connection.on_end_of(1, late.append)
    assert late == ["the peer has died"]
    assert await connection.until_end_of(2) == "the peer has died"


@pytest.mark.parametrize("by_force", [True, False])
@on_virtual_time
async def test_closing_a_connection_ends_its_transport_and_fails_its_requests(
    by_force: bool,
) -> None:
    caller = Caller(1)
    future = caller.ask(1).future
    if by_force:
        caller.connection.break_off("enough")
        assert caller.line.story == ["break off: enough"]
        assert caller.connection.lost_reason == "enough"
    else:
        caller.connection.close()
        assert caller.line.story == ["close"]
        assert caller.connection.lost_reason == "this side closed the connection"
    assert isinstance(future.exception(), RecipientUnreachableError)


@on_virtual_time
async def test_request_of_an_unopened_connection_fails_and_is_never_sent() -> None:
    loop = asyncio.get_running_loop()
    opening = OpeningTransport(loop)
    connection = ClientConnection("host", "1", opening, PatientDeadlines(loop))
    connection.followed.add(1)
    future = connection.ask("what", 1, "m", None, b"", None, MethodRecorder()).future
    connection.break_off("it could not be reached")
    assert str(future.exception()) == "what: it could not be reached"
    assert list(opening.take()) == []
    transport = Wire()
    connection.use(transport, ((b"late", 1),))
    assert transport.story == ["close"]
    assert transport.frames == []


@on_virtual_time
async def test_frames_sent_before_a_connection_has_opened_are_sent_first() -> None:
    loop = asyncio.get_running_loop()
    opening = OpeningTransport(loop)
    connection = ClientConnection("host", "1", opening, PatientDeadlines(loop))
    connection.followed.update((1, 2))
    for number in (1, 2):
        connection.tell("what", number, f"m{number}", None, b"")
    transport = Wire()
    connection.use(transport, opening.take())
    connection.tell("what", 1, "m3", None, b"")
    assert [unpack_request(frame)[4] for frame in transport.frames] == ["m1", "m2", "m3"]
    assert transport.lanes == [1, 2, 1]


# --- proxies --------------------------------------------------------------------------------------


class InHandling:
    """A call that is being handled."""

    def __init__(self, deadline: float | None, ask_deadline: float | None) -> None:
        self.deadline = deadline
        self.ask_deadline = ask_deadline


def proxy_of(caller: Caller, ask_timeout: float = 10.0) -> EchoGateway:
    def none(lost: ClientConnection) -> ClientConnection:
        raise RecipientUnreachableError("there is no other connection")

    recorder = RpcRecorder()
    binding = Binding(caller.connection, 1, "host/echo", None, ask_timeout, none, recorder)
    return make_proxy(EchoGateway, binding)


def timeouts(caller: Caller) -> list[float | None]:
    frames, caller.line.frames = caller.line.frames, []
    return [unpack_request(frame)[6] for frame in frames]


@on_virtual_time
async def test_ask_timeout_is_that_of_the_call_its_method_or_its_handler() -> None:
    caller = Caller(1)
    await asyncio.sleep(100)  # what is left is counted from now
    echo = proxy_of(caller)
    asked: list[asyncio.Future[Any]] = []

    async def ask(*calls: Any) -> list[float | None]:
        asked.extend(asyncio.ensure_future(call()) for call in calls)
        await asyncio.sleep(0)
        return timeouts(caller)

    assert await ask(echo.pid, echo.too_slow, echo.hang) == [10.0, 0.05, None]
    with asks_within(3.0):
        assert await ask(echo.pid, echo.too_slow, echo.hang) == [3.0] * 3
    now = asyncio.get_running_loop().time()
    token = current_call.set(InHandling(now + 5, now + 5))
    assert await ask(echo.pid, echo.too_slow, echo.hang) == [5.0, 0.05, 5.0]
    current_call.set(InHandling(now + 0.75, now + 0.75))  # less than a second is something
    assert await ask(echo.pid) == [0.75]
    current_call.set(InHandling(now + 5, None))  # it runs to completion
    assert await ask(echo.pid, echo.hang) == [10.0, None]
    current_call.reset(token)
    assert await ask(echo.pid) == [10.0]
    for one in asked:
        one.cancel()
    await asyncio.wait(asked)
    assert not caller.connection.is_needed


@pytest.mark.parametrize("left", [0.0, -1.0])
@on_virtual_time
async def test_ask_by_a_handler_whose_time_is_over_is_refused(left: float) -> None:
    caller = Caller(1)
    echo = proxy_of(caller)
    now = asyncio.get_running_loop().time()
    current_call.set(InHandling(now + left, now + left))
    assert deadline() == 0.0
    with pytest.raises(RpcTimeoutError) as refused:
        await echo.pid()
    told = "host/echo: EchoGateway.pid: not sent, the time of the call that asks for it is over"
    assert str(refused.value) == told
    assert caller.sent() == []
    assert outside_of_handler(deadline) is None


@on_virtual_time
async def test_proxy_methods_have_the_names_of_the_gateway_methods() -> None:
    """Users find calls by these names among tasks and in tracebacks."""

    class ClerkGateway(RpcGateway):
        @abstractmethod
        async def count(self) -> int: ...

        @abstractmethod
        @oneway
        async def forget(self) -> None: ...

    clerk = make_proxy(ClerkGateway, binding_of(proxy_of(Caller(1))))
    for method in (clerk.count, clerk.forget):
        assert method.__qualname__ == f"ClerkGateway.{method.__name__}"
    assert (clerk.count.__name__, clerk.forget.__name__) == ("count", "forget")


@on_virtual_time
async def test_arguments_given_by_name_are_sent_by_position() -> None:
    caller = Caller(1)
    echo = proxy_of(caller)

    async def sent(call: Any) -> object:
        calling = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        ((_, _, _, _, payload),) = caller.sent()
        calling.cancel()
        await asyncio.wait({calling})
        return codec.decode(payload)

    assert await sent(echo.note(1)) == (1,)
    assert await sent(echo.note(number=2)) == (2,)
    assert await sent(echo.echo("a")) == ("a", 1)
    assert await sent(echo.echo("a", times=3)) == ("a", 3)
    assert await sent(echo.echo(times=3, value="a")) == ("a", 3)
    assert await sent(echo.fail("x")) == ("x",)
    assert await sent(echo.fail(how="x")) == ("x",)
    anything: Any = echo
    for wrong in (
        anything.note(),
        anything.note(1, 2),
        anything.note(1, number=1),
        anything.note(1, text="x"),
        anything.fail("x", how="x"),
        anything.echo("a", 3),
    ):
        with pytest.raises(TypeError):
            await wrong
    assert caller.sent() == []


@on_virtual_time
async def test_argument_that_cannot_be_sent_is_named_and_counted_as_failure() -> None:
    """RPC-31"""
    caller = Caller(1)
    recorder = RpcRecorder()
    binding = Binding(caller.connection, 1, "host/echo", None, 10.0, lambda lost: lost, recorder)
    echo = make_proxy(EchoGateway, binding)
    for call, told in (
        (echo.echo(object()), r"EchoGateway\.echo: argument 'value': cannot send"),
        (echo.note(2**64), r"EchoGateway\.note: argument 'number': cannot send"),
    ):
        with pytest.raises(RpcSerializationError, match=rf"^host/echo: {told}"):
            await call
    called = recorder.snapshot().called
    assert {name: (one.calls, one.failures) for name, one in called.items()} == {
        "EchoGateway.echo": (1, 1), "EchoGateway.note": (1, 1),
    }  # fmt: skip
    assert caller.sent() == []


@on_virtual_time
async def test_proxy_uses_the_next_connection_after_a_loss_until_its_endpoint_ends() -> None:
    lost, next_one = Caller(1), Caller(1)
    asked_for: list[ClientConnection] = []

    def successor_of(connection: ClientConnection) -> ClientConnection:
        asked_for.append(connection)
        return next_one.connection

    recorder = RpcRecorder()
    binding = Binding(lost.connection, 1, "host/echo", None, 10.0, successor_of, recorder)
    echo = make_proxy(EchoGateway, binding)
    assert binding_of(echo) is binding
    assert echo.address == "host/echo"
    assert repr(echo) == "<EchoGateway of host/echo>"
    await echo.note(1)
    (frame,) = lost.line.frames
    assert unpack_request(frame)[5] is None, "without a fencing token"
    lost.connection.close()
    await echo.note(2)
    await echo.note(3)
    assert asked_for == [lost.connection]
    assert [request[1] for request in next_one.sent()] == [1, 2]
    next_one.answer(Kind.TERMINATED, 1, None)
    next_one.connection.close()
    with pytest.raises(RecipientUnreachableError, match=rf"EchoGateway\.note: {ENDED}$"):
        await echo.note(4)
    with pytest.raises(RecipientUnreachableError, match=rf"EchoGateway\.pid: {ENDED}$"):
        await echo.pid()
    assert asked_for == [lost.connection]
    refusing = proxy_of(lost)
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.pid: there is no other"):
        await refusing.pid()


@on_virtual_time
async def test_tell_waiting_on_a_congested_connection_fails_when_it_is_lost() -> None:
    caller = Caller(1)
    echo = proxy_of(caller)
    caller.line.may_send.clear()
    telling = asyncio.ensure_future(echo.note(1))
    await asyncio.sleep(1)
    assert not telling.done()
    caller.connection.connection_lost("the peer has died")
    caller.line.may_send.set()
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.note: the peer has died"):
        await telling


@on_virtual_time
async def test_metrics_contain_only_methods_that_were_called() -> None:
    service = LocalRpcService("host")
    EchoEndpoint(service).start()
    echo = await service.connect("host/echo", EchoGateway)
    await echo.echo(1)
    assert list(service.metrics.called) == list(service.metrics.handled) == ["EchoGateway.echo"]
    assert service.samplers == [], "nobody else measures"
