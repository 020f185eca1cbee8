"""Watchers and callers learn why an endpoint has ended or a handler has failed."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable

import pytest

from flinkray.core.error_text import MOST_BYTES
from flinkray.core.errors import (
    HandlerCancelledError,
    RecipientUnreachableError,
    RemoteError,
)
from flinkray.rpc import RpcEndpoint, RpcGateway, RpcService, ask_timeout, oneway
from flinkray.rpc.serving.base_service import BaseRpcService
from flinkray.rpc.wire.codec import remote_traceback
from flinkray.rpc.wire.envelope import MAX_CAUSE_BYTES
from tests.rpc.endpoints import EchoGateway, echo_spec
from tests.rpc.on_services import Services, on_every_service, on_local_service


class BadEnd(BaseException):
    """Derives from BaseException, as a handler's error should not."""


class MuteError(Exception):
    """Cannot say what has happened."""

    def __str__(self) -> str:
        raise ValueError("no words")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: RuntimeError("out of order"),
    "surrogate": lambda: ValueError("half of a pair: \ud800"),
    "long": lambda: ValueError("\ud800" + "ü" * 8_000_000),
    "mute": lambda: MuteError(1),
    "base": lambda: BadEnd("worse than others"),
    "group": lambda: ValueError(ValueError("within \udfff"), object()),
}


class FragileGateway(RpcGateway):
    """Fails as it is told."""

    @abstractmethod
    async def fail(self, how: str) -> None: ...

    @abstractmethod
    async def fail_later(self, how: str) -> None: ...

    @abstractmethod
    @oneway
    async def end(self, how: str) -> None: ...

    @abstractmethod
    @ask_timeout(None)
    async def wait(self) -> None: ...

    @abstractmethod
    @ask_timeout(None)
    async def await_what_is_cancelled(self) -> None: ...


class Fragile(RpcEndpoint, FragileGateway):
    """Ends with an error, or its handlers do."""

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, service.new_endpoint_id("fragile"))
        self.inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting = asyncio.Event()

    async def fail(self, how: str) -> None:
        raise ERRORS[how]()

    async def fail_later(self, how: str) -> None:
        await asyncio.sleep(0.01)
        raise ERRORS[how]()

    async def end(self, how: str) -> None:
        self.on_fatal_error(ERRORS[how]())

    async def wait(self) -> None:
        self.waiting.set()
        await asyncio.Event().wait()

    async def await_what_is_cancelled(self) -> None:
        self.waiting.set()
        await self.inner


async def connected(services: Services) -> tuple[Fragile, FragileGateway]:
    endpoint = Fragile(services.host)
    endpoint.handler_grace = 0.01  # type: ignore[misc]
    endpoint.start()
    return endpoint, await services.caller.connect(endpoint.address, FragileGateway)


async def error_of(call: asyncio.Future[None]) -> BaseException:
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(outcome, BaseException)
    return outcome


@on_local_service
async def test_error_that_ended_an_endpoint_reaches_its_watchers_and_callers(
    services: Services,
) -> None:
    endpoint, fragile = await connected(services)
    reasons: asyncio.Queue[str] = asyncio.Queue()
    services.caller.watch(endpoint.address, reasons.put_nowait)
    services.caller.watch(fragile, reasons.put_nowait)
    waiting = asyncio.ensure_future(fragile.wait())
    await endpoint.waiting.wait()
    await fragile.end("plain")
    cause = "the endpoint has terminated: RuntimeError: out of order"
    assert [await reasons.get(), await reasons.get()] == [cause, cause]
    errors = [
        await error_of(waiting),  # was being handled
        await error_of(asyncio.ensure_future(fragile.wait())),  # begins too late
        await error_of(asyncio.ensure_future(fragile.end("plain"))),
    ]
    for error in errors:
        assert isinstance(error, RecipientUnreachableError)
        assert str(error).startswith(f"{endpoint.address}: FragileGateway.")
        assert str(error).endswith(cause)


@on_every_service
async def test_error_that_ended_a_process_reaches_its_watchers(services: Services) -> None:
    """The process ends with its main endpoint, whether it is restarted or not."""
    for name, restarts in (("once", 0), ("again", 1)):
        address = await services.caller.spawn(echo_spec(name, max_restarts=restarts))
        echo = await services.caller.connect(address, EchoGateway)
        reasons: asyncio.Queue[str] = asyncio.Queue()
        services.caller.watch(echo, reasons.put_nowait)
        assert await echo.echo(1) == 1
        await echo.break_yourself()
        reason = await reasons.get()
        assert reason == "the endpoint has terminated: RuntimeError: broken on purpose"
        await services.caller.kill(name)


@on_local_service
async def test_end_reason_of_an_endpoint_is_reported_whatever_its_text_and_cut_if_long(
    services: Services,
) -> None:
    for how, text in (
        ("surrogate", r"ValueError: half of a pair: \ud800"),
        ("long", r"ValueError: \ud800üüü"),
        ("mute", "MuteError: (its __str__ raised ValueError)"),
        ("base", "BadEnd: worse than others"),
    ):
        _, fragile = await connected(services)
        reasons: asyncio.Queue[str] = asyncio.Queue()
        services.caller.watch(fragile, reasons.put_nowait)
        await fragile.end(how)
        reason = await reasons.get()
        assert reason.startswith(f"the endpoint has terminated: {text}")
        assert len(reason.encode()) <= MAX_CAUSE_BYTES + 100
        late = await error_of(asyncio.ensure_future(fragile.wait()))
        assert isinstance(late, RecipientUnreachableError)
        assert text in str(late)


@on_local_service
async def test_reasons_of_past_ends_of_endpoints_are_kept_for_the_newest_only(
    services: Services,
) -> None:
    assert isinstance(services.host, BaseRpcService)
    assert isinstance(services.caller, BaseRpcService)
    kept: list[FragileGateway] = []
    for _ in range(200):
        endpoint, fragile = await connected(services)
        kept.append(fragile)
        endpoint.on_fatal_error(ERRORS["plain"]())
        await services.let_time_pass(0.1)
    (connection,) = services.caller.connections()
    assert len(services.host.ended_with) == len(connection.ended_with) <= 64
    oldest = await error_of(asyncio.ensure_future(kept[0].wait()))
    newest = await error_of(asyncio.ensure_future(kept[-1].wait()))
    assert str(oldest).endswith("the endpoint has terminated")
    assert str(newest).endswith("out of order")


@on_local_service
async def test_cancellation_inside_a_handler_is_not_reported_as_end_of_its_endpoint(
    services: Services,
) -> None:
    endpoint, fragile = await connected(services)
    call = asyncio.ensure_future(fragile.await_what_is_cancelled())
    await endpoint.waiting.wait()
    endpoint.inner.cancel()
    error = await error_of(call)
    assert type(error) is HandlerCancelledError
    assert f"{endpoint.address}: FragileGateway.await_what_is_cancelled" in str(error)
    # at once, too: before its first wait
    error = await error_of(asyncio.ensure_future(fragile.await_what_is_cancelled()))
    assert type(error) is HandlerCancelledError
    assert "terminated" not in str(error)
    with pytest.raises(RuntimeError, match="out of order"):
        await fragile.fail("plain")


@on_local_service
@pytest.mark.parametrize("method", ["fail", "fail_later"])
async def test_any_exception_of_a_handler_reaches_its_caller_with_its_type_name(
    services: Services, method: str
) -> None:
    _, fragile = await connected(services)
    call = getattr(fragile, method)
    surrogate = await error_of(asyncio.ensure_future(call("surrogate")))
    assert type(surrogate) is ValueError
    assert str(surrogate) == r"half of a pair: \ud800"
    assert "in fail" in str(remote_traceback(surrogate))
    long = await error_of(asyncio.ensure_future(call("long")))
    assert isinstance(long, RemoteError)
    assert long.error_type == "ValueError"
    assert len(long.text.encode()) <= MOST_BYTES
    mute = await error_of(asyncio.ensure_future(call("mute")))
    assert isinstance(mute, RemoteError)
    assert mute.error_type == "MuteError"
    base = await error_of(asyncio.ensure_future(call("base")))
    assert isinstance(base, RemoteError)
    assert str(base) == "BadEnd: worse than others"
    group = await error_of(asyncio.ensure_future(call("group")))
    assert isinstance(group, RemoteError)
    assert group.error_type == "ValueError"
    with pytest.raises(RuntimeError, match="out of order"):  # it lives
        await call("plain")
