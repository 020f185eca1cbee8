"""Calls between two processes."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from typing import Any, cast

import pytest

from flinkray.core.errors import (
    EndpointNotStartedError,
    FencingTokenError,
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc import (
    RpcGateway,
)
from flinkray.rpc.calls.proxy import binding_of
from flinkray.rpc.wire.codec import remote_traceback
from tests.rpc.endpoints import (
    EchoEndpoint,
    EchoGateway,
    Leader,
    LeaderGateway,
    Moody,
    OtherGateway,
    Point,
)
from tests.rpc.on_services import Services, on_every_service, on_local_service


async def connected(services: Services) -> tuple[EchoEndpoint, EchoGateway]:
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    return endpoint, await services.caller.connect(endpoint.address, EchoGateway)


@on_every_service
async def test_call_returns_what_its_handler_returned(services: Services) -> None:
    """RPC-08"""
    endpoint, echo = await connected(services)
    assert echo.address == endpoint.address == "host/echo"
    job = JobID(bytes(16))
    value = (None, True, 3, -1.5, "ü", b"\0", Point(1, 2.0), {"a": (job,)})
    assert await echo.echo(value) == value
    assert await echo.echo("x", times=2) == ("x", "x")


@on_local_service
async def test_self_gateway_calls_its_endpoint_if_the_endpoint_implements_it(
    services: Services,
) -> None:
    """RPC-01, RPC-02, RPC-04"""
    endpoint, _ = await connected(services)
    gateway = endpoint.get_self_gateway(EchoGateway)
    assert await gateway.echo(1337) == 1337
    assert await gateway.running() is True
    with pytest.raises(TypeError, match="EchoEndpoint does not implement OtherGateway"):
        endpoint.get_self_gateway(OtherGateway)


@on_local_service
async def test_call_before_the_endpoint_starts_fails_and_a_later_call_works(
    services: Services,
) -> None:
    """RPC-06"""
    endpoint = EchoEndpoint(services.host)
    echo = await services.caller.connect(endpoint.address, EchoGateway)
    with pytest.raises(EndpointNotStartedError, match="host/echo"):
        await echo.echo(1)
    endpoint.start()
    assert await echo.echo(2) == 2


@on_every_service
@pytest.mark.parametrize("address", ["nobody/echo", "host/nothing", "no-address"])
async def test_connecting_to_an_unknown_address_fails_at_once_and_names_it(
    services: Services, address: str
) -> None:
    """RPC-07"""
    services.caller.ask_timeout = 10_000_000
    with pytest.raises(RpcConnectionError) as caught:
        await services.caller.connect(address, EchoGateway)
    assert address in str(caught.value)


@on_local_service
@pytest.mark.parametrize("how", ["at once", "later"])
async def test_a_handlers_error_arrives_with_type_message_and_traceback(
    services: Services, how: str
) -> None:
    """RPC-09, RPC-10"""
    _, echo = await connected(services)
    with pytest.raises(ValueError, match=f"failed {how}") as caught:
        await echo.fail(how)
    assert caught.value.args == (f"failed {how}", 42)
    assert "in fail" in (remote_traceback(caught.value) or "")


@on_local_service
async def test_answer_that_cannot_be_decoded_fails_only_its_call(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPC-11"""
    _, echo = await connected(services)
    monkeypatch.setattr(Moody, "in_the_mood", True)
    with pytest.raises(RpcSerializationError, match=r"EchoGateway\.moody: the answer.*the mood"):
        await echo.moody()
    assert await echo.echo(1) == 1


@on_every_service
async def test_message_above_the_frame_limit_is_refused_with_the_limit(
    services: Services,
) -> None:
    """RPC-32"""
    _, echo = await connected(services)
    with pytest.raises(FrameTooLargeError, match="10485760"):
        await echo.echo(bytes(10_485_760))
    with pytest.raises(FrameTooLargeError, match="10485760"):
        await echo.bytes_of_length(10_485_760)
    assert len(await echo.bytes_of_length(10_000_000)) == 10_000_000


@on_local_service
async def test_ask_timeout_names_gateway_method_and_call_site(services: Services) -> None:
    """RPC-24"""
    endpoint, echo = await connected(services)
    with pytest.raises(RpcTimeoutError, match=r"EchoGateway\.too_slow.*0\.05 s") as caught:
        await echo.too_slow()
    endpoint.release.set()
    call_site = inspect.currentframe()
    assert call_site is not None
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert call_site in frames


@on_every_service
async def test_messages_of_one_sender_are_handled_in_the_order_they_were_sent(
    services: Services,
) -> None:
    _, echo = await connected(services)
    for number in range(500):
        await echo.note(number)
    assert await echo.notes() == tuple(range(500))
    await asyncio.gather(*(echo.note(number) for number in range(500, 2000)))
    assert await echo.notes() == tuple(range(2000))


@on_local_service
async def test_calls_to_a_stopped_endpoint_fail_at_once(services: Services) -> None:
    """RPC-23"""
    endpoint, echo = await connected(services)
    services.caller.ask_timeout = services.host.ask_timeout = 10_000_000
    itself = endpoint.get_self_gateway(EchoGateway)
    endpoint.handler_grace = 0.0  # type: ignore[misc]
    hanging = asyncio.ensure_future(echo.hang())
    await endpoint.hanging.wait()
    await endpoint.close()
    with pytest.raises(RecipientUnreachableError, match="hang"):
        await hanging
    for gateway in (echo, itself):
        with pytest.raises(RecipientUnreachableError, match="host/echo"):
            await gateway.echo(1)
    with pytest.raises(RpcConnectionError):
        await services.caller.connect(endpoint.address, EchoGateway)


@on_every_service
async def test_calls_to_a_service_that_is_gone_fail_at_once(services: Services) -> None:
    """RPC-23, RPC-14"""
    endpoint, echo = await connected(services)
    await services.host.close()
    assert endpoint.terminated.done()
    with pytest.raises(RecipientUnreachableError):
        await echo.echo(1)
    with pytest.raises(RpcConnectionError):
        await services.caller.connect(endpoint.address, EchoGateway)


@on_local_service
async def test_proxy_of_an_ended_endpoint_does_not_reach_a_new_endpoint_at_its_address(
    services: Services,
) -> None:
    """RPC-20"""
    old, echo = await connected(services)
    new: list[EchoEndpoint] = []

    def create(_: object) -> None:
        new.append(EchoEndpoint(services.host))
        new[0].start()

    old.terminated.add_done_callback(create)
    await old.close()
    assert await (await services.caller.connect("host/echo", EchoGateway)).echo(1) == 1
    assert new[0].address == old.address
    with pytest.raises(RecipientUnreachableError):
        await echo.echo(1)


@on_local_service
async def test_call_with_the_right_token_passes_and_any_other_token_is_refused(
    services: Services,
) -> None:
    """FEN-02, FEN-04, FEN-09"""
    token, stale = JobMasterId(b"n" * 16), JobMasterId(b"o" * 16)
    leader = Leader(services.host, token)
    leader.start()
    good = await services.caller.connect(leader.address, LeaderGateway, token)
    assert good.fencing_token == token
    assert await good.lead() == str(token)
    assert await leader.get_self_gateway(LeaderGateway).lead() == str(token)
    for wrong in (stale, None):
        gateway = await services.caller.connect(leader.address, LeaderGateway, wrong)
        with pytest.raises(FencingTokenError) as caught:
            await gateway.lead()
        assert (caught.value.expected, caught.value.received) == (token, wrong)
        assert "LeaderGateway.lead" in str(caught.value)
    assert leader.deeds == [token] * 2
    with pytest.raises(AttributeError):
        leader.fencing_token = stale  # type: ignore[misc]


@on_local_service
async def test_calls_with_the_old_token_do_not_reach_a_new_leader_session(
    services: Services,
) -> None:
    """FEN-03, FEN-09: the hand-over at one address of one process."""
    old, new = JobMasterId(b"o" * 16), JobMasterId(b"n" * 16)
    deeds: list[JobMasterId] = []
    first = Leader(services.host, old, deeds)
    first.handler_grace = 0.0  # type: ignore[misc]
    first.start()
    gateway = await services.caller.connect(first.address, LeaderGateway, old)
    itself = first.get_self_gateway(LeaderGateway)
    await gateway.lead()
    # work of all kinds that is queued or under way when the session ends
    handled = asyncio.ensure_future(gateway.lead_later())
    await first.waiting.wait()
    called = first.call_async(first.lead_later, None)
    background = first.create_task(first.lead_later())
    first.schedule_run_async(0.01, first.act)
    in_flight = asyncio.ensure_future(gateway.lead())
    await first.close()
    first.run_async(first.act)
    so_far = len(deeds)

    second = Leader(services.host, new, deeds)
    second.start()
    assert second.address == first.address
    first.may_lead.set()
    later = asyncio.Event()
    second.schedule_run_async(0.02, later.set)
    await later.wait()
    assert isinstance(await _outcome(handled), RecipientUnreachableError)
    # it was handled by the old session in its last moment, or by none
    assert isinstance(await _outcome(in_flight), RecipientUnreachableError | str)
    assert called.cancelled()
    assert background.cancelled()
    for stale in (gateway, itself):
        with pytest.raises(RecipientUnreachableError):
            await stale.lead()
    stale = await services.caller.connect(second.address, LeaderGateway, old)
    with pytest.raises(FencingTokenError):
        await stale.lead()
    fresh = await services.caller.connect(second.address, LeaderGateway, new)
    assert await fresh.lead() == str(new)
    assert deeds[so_far:] == [new]
    assert set(deeds[:so_far]) == {old}


async def _outcome(future: asyncio.Future[Any]) -> object:
    outcome: object
    (outcome,) = await asyncio.gather(future, return_exceptions=True)
    return outcome


@on_local_service
async def test_wildcard_address_finds_the_running_endpoint(services: Services) -> None:
    """RPC-21"""
    first, second = (
        EchoEndpoint(services.host, services.host.new_endpoint_id("echo")) for _ in range(2)
    )
    assert (first.endpoint_id, second.endpoint_id) == ("echo_1", "echo_2")
    for endpoint in (first, second):
        endpoint.start()
    await second.note(2)
    for endpoint, notes in ((second, (2,)), (first, ())):
        echo = await services.caller.connect("host/echo_*", EchoGateway)
        assert await echo.notes() == notes
        assert echo.address == endpoint.address
        await endpoint.close()
    with pytest.raises(RpcConnectionError, match=r"host/echo_\*"):
        await services.caller.connect("host/echo_*", EchoGateway)
    for endpoint_id in ("echo_*", "a/b", ""):
        with pytest.raises(ValueError, match="not an endpoint id"):
            EchoEndpoint(services.host, endpoint_id)


@on_local_service
async def test_watch_reports_the_end_of_a_closed_endpoint_once(services: Services) -> None:
    endpoint, _ = await connected(services)
    reasons: asyncio.Queue[str] = asyncio.Queue()
    watch = services.caller.watch(endpoint.address, reasons.put_nowait)
    cancelled = services.caller.watch(endpoint.address, lambda _: pytest.fail("it was cancelled"))
    other = services.caller.watch(endpoint.address, reasons.put_nowait)
    await (await services.caller.connect(endpoint.address, EchoGateway)).echo(1)
    cancelled.cancel()
    await endpoint.close()
    assert await reasons.get() == await reasons.get() == "the endpoint has terminated"
    assert not watch.is_active
    assert not other.is_active
    assert reasons.empty()


def test_gateway_that_was_not_returned_by_connect_has_no_binding() -> None:
    with pytest.raises(TypeError, match="it was not connected to"):
        binding_of(cast(RpcGateway, object()))
