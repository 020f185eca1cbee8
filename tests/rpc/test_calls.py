"""Calls between two processes, on every service."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.core.errors import (
    EndpointNotStartedError,
    FencingTokenError,
    FrameTooLargeError,
    HandshakeError,
    RecipientUnreachableError,
    RemoteError,
    RpcConnectionError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc.codec import remote_traceback
from tests.rpc.conftest import Pair
from tests.rpc.endpoints import (
    EchoEndpoint,
    EchoGateway,
    Leader,
    LeaderGateway,
    OrderError,
    OtherGateway,
    Point,
)


async def connected(pair: Pair) -> tuple[EchoEndpoint, EchoGateway]:
    endpoint = EchoEndpoint(pair.host)
    endpoint.start()
    return endpoint, await pair.caller.connect(endpoint.address, EchoGateway)


async def test_an_answer_is_what_the_handler_returned(pair: Pair) -> None:
    _, echo = await connected(pair)
    job = JobID(bytes(16))
    value = (None, True, 3, -1.5, "ü", b"\0", Point(1, 2.0), {"a": (job,)})
    assert await echo.echo(value) == value
    assert await echo.echo("x", times=2) == ("x", "x")


async def test_the_gateway_has_the_endpoints_address(pair: Pair) -> None:
    """RPC-08"""
    endpoint, echo = await connected(pair)
    assert echo.address == endpoint.address == "host/echo"


async def test_a_self_gateway_answers(pair: Pair) -> None:
    """RPC-01, RPC-04"""
    endpoint, _ = await connected(pair)
    gateway = endpoint.get_self_gateway(EchoGateway)
    assert await gateway.echo(1337) == 1337
    assert await gateway.running() is True


async def test_a_self_gateway_of_a_foreign_type_is_refused(pair: Pair) -> None:
    """RPC-02"""
    endpoint, _ = await connected(pair)
    with pytest.raises(TypeError, match="EchoEndpoint does not implement OtherGateway"):
        endpoint.get_self_gateway(OtherGateway)


async def test_a_call_before_start_fails_at_once_and_works_after(pair: Pair) -> None:
    """RPC-06"""
    endpoint = EchoEndpoint(pair.host)
    echo = await pair.caller.connect(endpoint.address, EchoGateway)
    with pytest.raises(EndpointNotStartedError, match="host/echo"):
        await echo.echo(1)
    endpoint.start()
    assert await echo.echo(2) == 2


@pytest.mark.parametrize("address", ["nobody/echo", "host/nothing", "no-address"])
async def test_connecting_to_nothing_fails_at_once_and_names_the_address(
    pair: Pair, address: str
) -> None:
    """RPC-07"""
    pair.caller.ask_timeout = 10_000_000
    with pytest.raises(RpcConnectionError) as caught:
        await pair.caller.connect(address, EchoGateway)
    assert address in str(caught.value)


async def test_connecting_with_a_gateway_that_is_not_implemented_is_refused(pair: Pair) -> None:
    """RPC-33"""
    endpoint, _ = await connected(pair)
    with pytest.raises(HandshakeError, match="OtherGateway"):
        await pair.caller.connect(endpoint.address, OtherGateway)


@pytest.mark.parametrize("how", ["at once", "later"])
async def test_a_handlers_error_arrives_with_type_message_and_traceback(
    pair: Pair, how: str
) -> None:
    """RPC-09, RPC-10"""
    _, echo = await connected(pair)
    with pytest.raises(ValueError, match=f"failed {how}") as caught:
        await echo.fail(how)
    assert caught.value.args == (f"failed {how}", 42)
    assert "in fail" in (remote_traceback(caught.value) or "")


async def test_an_error_of_the_tree_arrives_with_its_attributes(pair: Pair) -> None:
    _, echo = await connected(pair)
    with pytest.raises(OrderError) as caught:
        await echo.fail("order")
    assert caught.value.number == 7
    assert "in fail" in (caught.value.remote_traceback or "")


async def test_an_error_of_unknown_type_arrives_under_its_name(pair: Pair) -> None:
    _, echo = await connected(pair)
    with pytest.raises(RemoteError, match="UnregisteredError: who am I"):
        await echo.fail("unregistered")


async def test_an_argument_that_cannot_travel_is_refused_by_method_and_name(pair: Pair) -> None:
    """RPC-31"""
    _, echo = await connected(pair)
    with pytest.raises(RpcSerializationError, match=r"EchoGateway\.echo: argument 'value'.*object"):
        await echo.echo(object())
    assert await echo.echo(1) == 1


async def test_a_result_that_cannot_travel_fails_that_call_only(pair: Pair) -> None:
    """RPC-11"""
    _, echo = await connected(pair)
    with pytest.raises(RpcSerializationError, match=r"EchoGateway\.unsendable: the result"):
        await echo.unsendable()
    assert await echo.echo(1) == 1


async def test_messages_above_the_frame_limit_are_refused_with_the_limit(pair: Pair) -> None:
    """RPC-32"""
    _, echo = await connected(pair)
    with pytest.raises(FrameTooLargeError, match="10485760"):
        await echo.echo(bytes(10_485_760))
    with pytest.raises(FrameTooLargeError, match="10485760"):
        await echo.bytes_of_length(10_485_760)
    assert len(await echo.bytes_of_length(10_000_000)) == 10_000_000


async def test_no_answer_in_time_names_gateway_and_method(pair: Pair) -> None:
    """RPC-24"""
    endpoint, echo = await connected(pair)
    with pytest.raises(RpcTimeoutError, match=r"EchoGateway\.too_slow.*0\.05 s"):
        await echo.too_slow()
    endpoint.release.set()


async def test_messages_of_one_sender_are_handled_in_the_order_sent(pair: Pair) -> None:
    _, echo = await connected(pair)
    for number in range(500):
        await echo.note(number)
    assert await echo.notes() == tuple(range(500))
    await asyncio.gather(*(echo.note(number) for number in range(500, 2000)))
    assert await echo.notes() == tuple(range(2000))


async def test_a_hanging_handler_holds_up_nobody(pair: Pair) -> None:
    endpoint, echo = await connected(pair)
    hanging = asyncio.ensure_future(echo.hang())
    assert await echo.echo(1) == 1
    assert not hanging.done()
    endpoint.release.set()
    await hanging


async def test_calls_to_a_stopped_endpoint_fail_at_once(pair: Pair) -> None:
    """RPC-23"""
    endpoint, echo = await connected(pair)
    pair.caller.ask_timeout = 10_000_000
    endpoint.handler_grace = 0.0  # type: ignore[misc]
    hanging = asyncio.ensure_future(echo.hang())
    await endpoint.hanging.wait()
    await endpoint.close()
    with pytest.raises(RecipientUnreachableError, match="hang"):
        await hanging
    with pytest.raises(RecipientUnreachableError, match="host/echo"):
        await echo.echo(1)
    with pytest.raises(RpcConnectionError):
        await pair.caller.connect(endpoint.address, EchoGateway)


async def test_calls_to_a_service_that_is_gone_fail_at_once(pair: Pair) -> None:
    """RPC-23, RPC-14"""
    endpoint, echo = await connected(pair)
    await pair.host.close()
    assert endpoint.terminated.done()
    with pytest.raises(RecipientUnreachableError):
        await echo.echo(1)
    with pytest.raises(RpcConnectionError):
        await pair.caller.connect(endpoint.address, EchoGateway)


async def test_a_new_endpoint_at_the_address_is_not_the_old_proxys(pair: Pair) -> None:
    """RPC-20"""
    old, echo = await connected(pair)
    new: list[EchoEndpoint] = []

    def create(_: object) -> None:
        new.append(EchoEndpoint(pair.host))
        new[0].start()

    old.terminated.add_done_callback(create)
    await old.close()
    assert await (await pair.caller.connect("host/echo", EchoGateway)).echo(1) == 1
    assert new[0].address == old.address
    with pytest.raises(RecipientUnreachableError):
        await echo.echo(1)


async def test_the_right_token_passes_and_any_other_is_refused_at_the_call(pair: Pair) -> None:
    """FEN-02, FEN-04, FEN-09"""
    token, stale = JobMasterId(b"n" * 16), JobMasterId(b"o" * 16)
    leader = Leader(pair.host, "leader", token)
    leader.start()
    good = await pair.caller.connect(leader.address, LeaderGateway, token)
    assert good.fencing_token == token
    assert await good.lead() == str(token)
    assert await leader.get_self_gateway(LeaderGateway).lead() == str(token)
    for wrong in (stale, None):
        gateway = await pair.caller.connect(leader.address, LeaderGateway, wrong)
        with pytest.raises(FencingTokenError) as caught:
            await gateway.lead()
        assert (caught.value.expected, caught.value.received) == (token, wrong)
        assert "LeaderGateway.lead" in str(caught.value)
    assert leader.calls == 2


async def test_a_new_leader_session_refuses_the_old_ones_callers(pair: Pair) -> None:
    """FEN-03, FEN-09"""
    old, new = JobMasterId(b"o" * 16), JobMasterId(b"n" * 16)
    first = Leader(pair.host, "leader", old)
    first.start()
    gateway = await pair.caller.connect(first.address, LeaderGateway, old)
    await first.close()
    second = Leader(pair.host, "leader", new)
    second.start()
    with pytest.raises(RecipientUnreachableError):
        await gateway.lead()
    stale = await pair.caller.connect(second.address, LeaderGateway, old)
    with pytest.raises(FencingTokenError):
        await stale.lead()
    assert second.calls == 0


async def test_a_watch_tells_once_of_a_closed_endpoint(pair: Pair) -> None:
    endpoint, _ = await connected(pair)
    reasons: asyncio.Queue[str] = asyncio.Queue()
    watch = pair.caller.watch(endpoint.address, reasons.put_nowait)
    cancelled = pair.caller.watch(endpoint.address, lambda _: pytest.fail("it was cancelled"))
    other = pair.caller.watch(endpoint.address, reasons.put_nowait)
    await (await pair.caller.connect(endpoint.address, EchoGateway)).echo(1)
    cancelled.cancel()
    await endpoint.close()
    assert await reasons.get() == await reasons.get() == "the endpoint has terminated"
    assert not watch.is_active
    assert not other.is_active
    assert reasons.empty()


async def test_a_watch_of_nothing_tells_so(pair: Pair) -> None:
    reasons: asyncio.Queue[str] = asyncio.Queue()
    pair.caller.watch("nobody/nothing", reasons.put_nowait)
    assert "nobody" in await reasons.get()


async def test_a_watch_of_an_endpoint_ends_with_it(pair: Pair) -> None:
    target, _ = await connected(pair)
    watcher = EchoEndpoint(pair.caller, "watcher")
    watcher.start()
    reasons: asyncio.Queue[str] = asyncio.Queue()
    watcher.watch(target.address, reasons.put_nowait)
    still = EchoEndpoint(pair.caller, "still")
    still.start()
    still.watch(target.address, reasons.put_nowait)
    await (await pair.caller.connect(target.address, EchoGateway)).echo(1)
    await watcher.close()
    await target.close()
    assert await reasons.get() == "the endpoint has terminated"
    assert reasons.empty()
