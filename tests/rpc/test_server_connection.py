"""What a peer notices of the called side: answers, refusals, notices, and when it must wait."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import weakref
from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any

import pytest

from flinkray.core.errors import (
    EndpointNotStartedError,
    FencingTokenError,
    FrameTooLargeError,
    HandlerCancelledError,
    HandshakeError,
    RecipientUnreachableError,
    RemoteError,
    RpcConnectionError,
    RpcError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobMasterId, ResourceManagerId
from flinkray.core.message import message, type_name
from flinkray.rpc import (
    LocalRpcService,
    RpcEndpoint,
    RpcGateway,
    deadline,
    oneway,
    runs_to_completion,
)
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.envelope import CONTROL_LANE, ENDED, Kind
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, Leader, OrderError
from tests.rpc.peers import Peer


@message
class Parcel:
    """An argument whose end can be seen."""

    content: str


class HolderGateway(RpcGateway):
    """Holds calls until they are let go."""

    @abstractmethod
    async def hold(self, number: int, data: bytes) -> int: ...

    @abstractmethod
    @oneway
    async def hold_told(self, number: int, data: bytes) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def hold_thoroughly(self, number: int) -> int: ...

    @abstractmethod
    async def promise(self, number: int) -> int: ...

    @abstractmethod
    async def unwrap(self, parcel: Parcel) -> None: ...

    @abstractmethod
    async def fail_and_leave_work(self) -> None: ...

    @abstractmethod
    async def fail_at_length(self, length: int) -> None: ...


class Holder(RpcEndpoint, HolderGateway):
    """Notes what becomes of its handlers."""

    def __init__(self, service: LocalRpcService, endpoint_id: str = "holder") -> None:
        super().__init__(service, endpoint_id)
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.gates: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.story: list[str] = []
        self.cancellations: list[int] = []
        self.deadlines: list[float | None] = []

    async def on_start(self) -> None:
        await self.may_start.wait()

    async def let_go(self, *numbers: int) -> None:
        for number in numbers:
            self.gates[number].set()
        await asyncio.sleep(0.001)

    async def hold(self, number: int, data: bytes) -> int:
        task = asyncio.current_task()
        assert task is not None
        self.tasks[number] = task
        try:
            await self.gates.setdefault(number, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.story.append(f"{number} cancelled")
            if sys.version_info >= (3, 11):
                self.cancellations.append(task.cancelling())
            await asyncio.sleep(1)
            self.story.append(f"{number} cleaned up")
            raise
        self.story.append(f"{number} done")
        return number

    async def hold_told(self, number: int, data: bytes) -> None:
        await self.hold(number, data)

    async def hold_thoroughly(self, number: int) -> int:
        return await self.hold(number, b"")

    def promise(self, number: int) -> Awaitable[int]:  # type: ignore[override]
        """A handler may be a plain function that returns something to await."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(number)
        return future

    async def unwrap(self, parcel: Parcel) -> None:
        del parcel
        await self.hold(0, b"")

    async def fail_and_leave_work(self) -> None:
        async def look() -> None:
            await asyncio.sleep(1)
            self.deadlines.append(deadline())

        self.left = asyncio.ensure_future(look())
        self.deadlines.append(deadline())
        raise OrderError(7, "seven")

    async def fail_at_length(self, length: int) -> None:
        raise ValueError("x" * length)


HOLD = "HolderGateway.hold"


def hosting(**options: Any) -> tuple[LocalRpcService, Holder, Peer]:
    """The endpoint is the service's first: its number is 1."""
    service = LocalRpcService("host", **{k: v for k, v in options.items() if k == "max_frame_size"})
    for name, value in options.items():
        setattr(service, name, value)
    holder = Holder(service)
    holder.start()
    return service, holder, Peer(service)


# --- when a peer must wait ------------------------------------------------------------------------


@on_virtual_time
async def test_reading_pauses_at_first_call_beyond_limit_and_resumes_at_half() -> None:
    _, holder, peer = hosting(max_pending_calls=4)
    await asyncio.sleep(0)
    peer.ask(1, "promise", 9)
    for number in range(4):
        peer.ask(1, "hold", number, b"")
    peer.ask(1, "no_such_method")  # what is refused is not under way
    await asyncio.sleep(1)
    assert peer.wire.story == ["pause"]  # of the five that came at once
    await holder.let_go(0)
    assert peer.wire.story == ["pause"]
    await holder.let_go(1)
    assert peer.wire.story == ["pause", "resume"]
    await holder.let_go(2, 3)
    assert peer.wire.story == ["pause", "resume"]
    for number in range(4, 8):
        peer.tell(1, "hold_told", number, b"")
    await asyncio.sleep(1)
    assert peer.wire.story == ["pause", "resume"]  # four are the limit
    peer.ask(1, "hold", 8, b"")
    await asyncio.sleep(1)
    assert peer.wire.story == ["pause", "resume", "pause"]
    await holder.let_go(4, 5)
    assert peer.wire.story == ["pause", "resume", "pause"]
    await holder.let_go(6, 7, 8)
    assert peer.wire.story == ["pause", "resume", "pause", "resume"]


@on_virtual_time
async def test_reading_pauses_at_first_byte_beyond_limit_and_resumes_at_half() -> None:
    _, _, other = hosting()
    size = other.ask(1, "hold", 0, bytes(100))
    _, holder, peer = hosting(max_pending_bytes=4 * size)
    await asyncio.sleep(0)
    for number in range(4):
        assert peer.ask(1, "hold", number, bytes(100)) == size
    await asyncio.sleep(1)
    assert peer.wire.story == []
    peer.ask(1, "promise", 4)
    assert peer.wire.story == ["pause"]
    await holder.let_go(0)
    assert peer.wire.story == ["pause"]
    await holder.let_go(1)
    assert peer.wire.story == ["pause", "resume"]
    await holder.let_go(2, 3)
    assert peer.wire.story == ["pause", "resume"]


# --- answers --------------------------------------------------------------------------------------


@on_virtual_time
async def test_ask_is_answered_with_its_number_and_a_tell_is_not_answered() -> None:
    _, holder, peer = hosting()
    peer.ask(1, "hold", 1, b"", sequence=3)
    peer.tell(1, "hold_told", 2, b"", sequence=4)
    peer.tell(1, "hold", 3, b"", sequence=7)
    peer.ask(1, "promise", 4, sequence=9)
    await asyncio.sleep(1)
    assert peer.take() == [(Kind.RESULT, 9, 4)]
    await holder.let_go(3, 2, 1)
    assert peer.take() == [(Kind.RESULT, 3, 1)]


@on_virtual_time
async def test_failed_tell_is_logged_on_the_called_side_and_not_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a warning, unless the endpoint has ended normally."""
    caplog.set_level(logging.DEBUG, logger="flinkray.rpc.serving.dispatch")
    _, holder, peer = hosting()
    await asyncio.sleep(0)
    peer.tell(1, "fail_and_leave_work")
    await asyncio.sleep(0.1)
    peer.tell(1, "no_such_method")
    peer.tell(1, "hold", 1)
    await holder.close()
    peer.tell(1, "hold", 1, b"")
    told = [(record.levelno, record.getMessage(), record.exc_info) for record in caplog.records]
    levels, texts, causes = zip(*told, strict=True)
    assert levels == (logging.WARNING,) * 3 + (logging.DEBUG,)
    assert texts[0] == "fail_and_leave_work from peer#1 failed: OrderError(7, 'seven')"
    assert "Holder has no method no_such_method" in texts[1]
    assert f"{HOLD}: wrong number of arguments" in texts[2]
    assert ENDED in texts[3]
    assert [cause[0] for cause in causes] == [
        OrderError, RpcError, RpcSerializationError, RecipientUnreachableError,
    ]  # fmt: skip
    assert peer.take() == []


@on_virtual_time
async def test_failed_ask_is_reported_to_its_caller_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="flinkray.rpc.serving.dispatch")
    service, holder, peer = hosting()
    await asyncio.sleep(0)
    peer.ask(1, "fail_and_leave_work")
    await asyncio.sleep(0.1)
    assert str(peer.take_error()) == str(OrderError(7, "seven"))
    peer.ask(1, "no_such_method")
    assert "host/holder: Holder has no method no_such_method" in str(peer.take_error())
    await holder.close()
    peer.ask(1, "hold", 1, b"")
    assert isinstance(peer.take_error(), RecipientUnreachableError)
    peer.ask(77, "hold", 1, b"")
    assert str(peer.take_error()) == ENDED
    created = Holder(service, "created")
    peer.ask(2, "hold", 1, b"")
    error = peer.take_error()
    assert isinstance(error, EndpointNotStartedError)
    assert str(error) == "host/created: hold: the endpoint is not started yet"
    created.close()
    assert caplog.messages == []


@on_virtual_time
async def test_result_that_cannot_be_sent_is_reported_and_counted_as_failure() -> None:
    service = LocalRpcService("host", max_frame_size=20_000)
    endpoint = EchoEndpoint(service)
    endpoint.start()
    peer = Peer(service)
    peer.ask(1, "bytes_of_length", 20_000)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    too_large = peer.take_error()
    assert isinstance(too_large, FrameTooLargeError)
    assert str(too_large).startswith("host/echo: EchoGateway.bytes_of_length: the result: ")
    assert "above the frame limit of 20000 bytes" in str(too_large)
    peer.ask(1, "unsendable")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    unsendable = peer.take_error()
    assert isinstance(unsendable, RpcSerializationError)
    assert str(unsendable).startswith("host/echo: EchoGateway.unsendable: the result: cannot send")
    assert "in encode" in str(unsendable.__cause__)  # where it was noticed
    handled = service.metrics.handled
    for name in ("EchoGateway.bytes_of_length", "EchoGateway.unsendable"):
        assert (handled[name].calls, handled[name].failures) == (1, 1)
        assert handled[name].latency.count == 1


@on_virtual_time
async def test_error_too_large_for_a_frame_is_shortened() -> None:
    smallest = 65_536  # of rpc.frame-size
    _, _, peer = hosting(max_frame_size=smallest)
    peer.ask(1, "fail_at_length", smallest)
    await asyncio.sleep(1)
    error = peer.take_error()
    assert isinstance(error, RemoteError)
    assert error.error_type.endswith("ValueError")
    assert "x" * 1000 in str(error)


@on_virtual_time
async def test_refused_call_counts_as_a_failure_only_of_an_existing_method() -> None:
    service, holder, peer = hosting()
    peer.ask(1, "hold", 1)
    peer.ask(1, "no_such_method")
    peer.ask(77, "hold", 1)
    peer.send(Kind.TELL, 1, "hold", "no tuple")
    await holder.close()
    (name,) = service.metrics.handled
    metrics = service.metrics.handled[name]
    assert (name, metrics.calls, metrics.failures, metrics.latency.count) == (HOLD, 2, 2, 0)


@on_virtual_time
async def test_handler_latency_lasts_from_the_arrival_of_the_call_to_its_end() -> None:
    service, holder, peer = hosting()
    await asyncio.sleep(100)
    for number in range(3):
        peer.ask(1, "hold", number, b"")
    await asyncio.sleep(1)
    holder.gates[0].set()
    await asyncio.sleep(2)
    holder.gates[1].set()
    holder.tasks[2].cancel()
    await asyncio.sleep(5)
    latency = service.metrics.handled[HOLD].latency
    assert latency.seconds == pytest.approx(1 + 3 + 4)
    assert {i: count for i, count in enumerate(latency.counts) if count} == {20: 1, 22: 2}


@on_virtual_time
async def test_wrong_token_is_refused_with_both_tokens_named() -> None:
    service = LocalRpcService("host")
    right, wrong = JobMasterId(b"n" * 16), JobMasterId(b"o" * 16)
    leader = Leader(service, right)
    leader.start()
    echo = EchoEndpoint(service)
    echo.start()
    peer = Peer(service)
    for token, named in [
        (codec.encode(wrong), wrong),
        (None, None),
        (b"\xc1", None),
        (codec.encode("not a token"), None),
        (codec.encode(ResourceManagerId(b"n" * 16)), ResourceManagerId(b"n" * 16)),
    ]:
        peer.ask(1, "lead", token=token)
        error = peer.take_error()
        assert isinstance(error, FencingTokenError)
        assert (error.expected, error.received) == (right, named)
        peer.tell(1, "lead", token=token)  # ignored: no answer could report the refusal
    peer.ask(1, "lead", token=codec.encode(right))
    await asyncio.sleep(0.1)
    assert peer.take() == [(Kind.RESULT, 11, str(right))]
    assert leader.deeds == [right]
    peer.ask(2, "echo", 1, 1, token=codec.encode(wrong))  # an endpoint without a leader needs none
    await asyncio.sleep(0.1)
    assert peer.take() == [(Kind.RESULT, 1, 1)]


@on_virtual_time
async def test_arguments_that_cannot_be_decoded_are_refused_with_the_reason() -> None:
    service, _, peer = hosting()
    await asyncio.sleep(0)
    peer.send(Kind.ASK, 1, "hold", encoded=b"\xc1")
    error = peer.take_error()
    assert isinstance(error, RpcSerializationError)
    assert str(error).startswith(f"host/holder: {HOLD}: the arguments: cannot decode a message")
    assert service.metrics.handled[HOLD].failures == 1


@pytest.mark.parametrize("kind", [Kind.ASK, Kind.TELL])
@on_virtual_time
async def test_request_that_is_repeated_or_late_is_refused_for_its_endpoint(kind: Kind) -> None:
    """No socket repeats a frame, but a faulty peer may."""
    service = LocalRpcService("host")
    first, second = EchoEndpoint(service, "first"), EchoEndpoint(service, "second")
    first.start()
    second.start()
    peer = Peer(service)
    for number, target in [(1, 1), (1, 1), (4, 1), (3, 1), (4, 1), (2, 2), (5, 1), (2, 2)]:
        peer.send(kind, target, "note", (number,), sequence=number)
    Peer(service).send(kind, 1, "note", (1,), sequence=1)  # a new connection has its own order
    await asyncio.sleep(1)
    assert (first.seen, second.seen) == ([1, 4, 5, 1], [2])
    assert service.refused_frames == 4
    answered = sorted(number for _, number, _ in peer.take())
    assert answered == ([1, 2, 4, 5] if kind is Kind.ASK else [])


# --- requests to the process ----------------------------------------------------------------------


@on_virtual_time
async def test_endpoint_is_found_by_its_name_or_prefix_or_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="flinkray.rpc.serving.dispatch")
    service = LocalRpcService("host")
    first, second = EchoEndpoint(service, "echo_1"), EchoEndpoint(service, "echo_2")
    first.start()
    second.start()
    EchoEndpoint(service, "echo_3")  # not started
    Holder(service).start()
    peer = Peer(service)
    peer.resolve("echo_1", type_name(EchoGateway))
    peer.resolve("echo_*", type_name(EchoGateway))
    peer.resolve("echo_3")
    peer.resolve("", None, target=2)
    assert peer.take() == [
        (Kind.RESULT, 1, (1, "echo_1")),
        (Kind.RESULT, 2, (2, "echo_2")),
        (Kind.RESULT, 3, (3, "echo_3")),
        (Kind.RESULT, 1, (2, "echo_2")),
    ]
    assert caplog.messages == []


@pytest.mark.parametrize("gateway", ["tests.rpc.endpoints:OtherGateway", 7, {}, ("a",), True])
@on_virtual_time
async def test_endpoint_that_does_not_implement_the_gateway_is_not_resolved(
    gateway: object,
) -> None:
    service = LocalRpcService("host")
    EchoEndpoint(service)
    peer = Peer(service)
    peer.resolve("echo", gateway)
    error = peer.take_error()
    assert isinstance(error, HandshakeError)
    expected = f"host/echo is a EchoEndpoint and does not implement {gateway}"
    assert str(error) == expected


@on_virtual_time
async def test_unknown_endpoint_is_refused_with_the_reason_of_its_end() -> None:
    service = LocalRpcService("host")
    closed, failed = EchoEndpoint(service, "closed"), EchoEndpoint(service, "failed")
    closed.start()
    failed.start()
    await closed.close()
    failed.on_fatal_error(RuntimeError("broken on purpose"))
    await asyncio.wait({failed.terminated})
    peer = Peer(service)
    for name, target, told in [
        ("nobody", CONTROL_LANE, "no endpoint at host/nobody"),
        ("no*", CONTROL_LANE, "no endpoint at host/no*"),
        ("closed", CONTROL_LANE, "no endpoint at host/closed"),
        ("closed", 1, ENDED),
        ("failed", 2, f"{ENDED}: RuntimeError: broken on purpose"),
        ("never", 77, ENDED),
    ]:
        peer.resolve(name, None, target)
        error = peer.take_error()
        assert isinstance(error, RpcConnectionError)
        assert str(error) == told


@on_virtual_time
async def test_ping_is_answered_with_whether_the_process_has_endpoints() -> None:
    service = LocalRpcService("host")
    peer = Peer(service)
    peer.send(Kind.PING)
    endpoint = EchoEndpoint(service)
    peer.send(Kind.PING)
    await endpoint.close()
    peer.send(Kind.PING)
    assert peer.take() == [(Kind.RESULT, 1, False), (Kind.RESULT, 2, True), (Kind.RESULT, 3, False)]


@on_virtual_time
async def test_stop_request_is_answered_when_all_endpoints_have_ended() -> None:
    service, holder, peer = hosting()
    peer.resolve("holder")
    peer.ask(1, "hold", 5, b"")
    await asyncio.sleep(1)
    peer.take()
    peer.send(Kind.STOP)
    await asyncio.sleep(0.5)
    assert peer.take() == []
    await asyncio.sleep(5)
    assert holder.terminated.done()
    (error_kind, number, error), notice, answer = peer.take()
    assert (error_kind, number, type(error)) == (Kind.ERROR, 1, RecipientUnreachableError)
    assert notice == (Kind.TERMINATED, 1, None)
    assert answer == (Kind.RESULT, 2, None)
    assert not service.is_up
    assert peer.wire.story == ["close"]


# --- notices of ends ------------------------------------------------------------------------------


@on_virtual_time
async def test_end_of_an_endpoint_is_reported_once_to_peers_that_resolved_it() -> None:
    service = LocalRpcService("host")
    endpoints = [EchoEndpoint(service, f"echo_{number}") for number in (1, 2)]
    asked, calls, stranger = Peer(service), Peer(service, "calls#1"), Peer(service, "stranger#1")
    for endpoint in endpoints:
        endpoint.start()
        asked.resolve(endpoint.endpoint_id)
    asked.resolve("echo_1")  # a second time
    calls.ask(1, "notes")
    await asyncio.sleep(1)
    asked.take(), calls.take()
    endpoints[1].on_fatal_error(RuntimeError("broken on purpose"))
    await endpoints[0].close()
    await asyncio.wait({endpoints[1].terminated})
    assert sorted(asked.take()) == [
        (Kind.TERMINATED, 1, None),
        (Kind.TERMINATED, 2, f"{ENDED}: RuntimeError: broken on purpose"),
    ]
    assert calls.take() == stranger.take() == []


@on_virtual_time
async def test_connection_keeps_no_data_of_the_endpoints_that_a_peer_called_and_that_ended() -> (
    None
):
    service = LocalRpcService("host")
    peer = Peer(service)
    gone = []
    for number in range(1, 20):
        endpoint = EchoEndpoint(service)
        endpoint.start()
        peer.resolve("echo")
        peer.ask(number, "note", 1)
        await endpoint.close()
        gone.append(weakref.ref(endpoint))
        del endpoint
    peer.ask(1, "note", 1)
    await asyncio.sleep(1)
    gc.collect()
    assert [endpoint() for endpoint in gone] == [None] * len(gone)
    assert list(peer.connection._lanes) == [CONTROL_LANE]
    assert peer.connection._resolved == set()
    assert service.endpoints() == []


@on_virtual_time
async def test_nothing_is_sent_to_a_peer_whose_connection_is_lost() -> None:
    service, holder, peer = hosting()
    peer.resolve("holder")
    peer.take()
    peer.connection.connection_lost("the peer has died")
    await holder.close()
    assert peer.take() == []
    await service.close()
    assert peer.wire.story == []


# --- handlers and their deadlines -----------------------------------------------------------------


@on_virtual_time
async def test_argument_that_a_waiting_handler_has_deleted_is_freed() -> None:
    _, holder, peer = hosting()
    peer.ask(1, "unwrap", Parcel("a message"), timeout=1000.0)
    await asyncio.sleep(1)
    assert 0 in holder.gates
    gc.collect()
    assert not [kept for kept in gc.get_objects() if type(kept) is Parcel]
    await holder.let_go(0)
    assert peer.take() == [(Kind.RESULT, 1, None)]


@on_virtual_time
async def test_background_work_of_a_failed_handler_has_no_deadline() -> None:
    _, holder, peer = hosting()
    peer.ask(1, "fail_and_leave_work", timeout=10.0)
    await asyncio.sleep(2)
    assert holder.deadlines == [pytest.approx(10), None]


@on_virtual_time
async def test_call_made_before_the_endpoint_starts_and_answered_in_time_is_answered_once() -> None:
    """The deadline noted while the call was held must not answer a second time."""
    service = LocalRpcService("host")
    holder = Holder(service)
    holder.may_start.clear()
    holder.start()
    peer = Peer(service)
    peer.ask(1, "promise", 4, timeout=10.0)
    peer.ask(1, "fail_and_leave_work", timeout=10.0)
    await asyncio.sleep(5)
    holder.may_start.set()
    await asyncio.sleep(20)
    (kind, number, value), (error_kind, error_number, _) = peer.take()
    assert (kind, number, value) == (Kind.RESULT, 1, 4)
    assert (error_kind, error_number) == (Kind.ERROR, 2)
    handled = service.metrics.handled
    assert handled["HolderGateway.promise"].failures == 0
    assert handled["HolderGateway.fail_and_leave_work"].failures == 1
    assert peer.connection._pending_calls == 0


@on_virtual_time
async def test_handler_of_a_call_made_before_the_start_is_cancelled_once_at_its_deadline() -> None:
    service = LocalRpcService("host")
    holder = Holder(service)
    holder.may_start.clear()
    holder.start()
    peer = Peer(service)
    peer.ask(1, "hold", 1, b"", timeout=10.0)
    peer.ask(1, "hold_thoroughly", 2, timeout=10.0)
    await asyncio.sleep(5)
    holder.may_start.set()
    await asyncio.sleep(20)
    assert holder.story == ["1 cancelled", "1 cleaned up"]
    if sys.version_info >= (3, 11):  # by which asyncio's own time-outs tell whose they are
        assert holder.cancellations == [1]
    error = peer.take_error()
    assert isinstance(error, RpcTimeoutError)
    assert str(error) == f"host/holder: {HOLD}: given up, not done within 10 s"
    await holder.let_go(2)
    assert peer.take() == [(Kind.RESULT, 2, 2)]


@on_virtual_time
async def test_handler_task_is_cancelled_with_its_handler_unless_its_deadline_is_over() -> None:
    _, holder, peer = hosting()
    peer.ask(1, "hold", 1, b"", timeout=10.0)
    peer.ask(1, "hold", 2, b"", timeout=100.0)
    await asyncio.sleep(1)
    holder.tasks[2].cancel()
    await asyncio.sleep(20)
    assert [task.cancelled() for task in holder.tasks.values()] == [False, True]
    (_, _, cancelled), (_, _, too_late) = peer.take()
    assert isinstance(cancelled, HandlerCancelledError)
    assert str(cancelled).startswith(f"host/holder: {HOLD}: the handler was cancelled")
    assert isinstance(too_late, RpcTimeoutError)
