"""Proxies: gateways whose methods are calls to an endpoint elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar, cast

from flinkray.core.errors import (
    RecipientUnreachableError,
    RpcError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.core.ids import FencingToken
from flinkray.rpc.calls.call_context import current_call
from flinkray.rpc.calls.connection import ClientConnection, PendingAnswer
from flinkray.rpc.calls.metrics import MethodRecorder, RpcRecorder
from flinkray.rpc.gateway import GatewayMethod, RpcGateway, gateway_methods
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.codec import Packed

G = TypeVar("G", bound=RpcGateway)

_BINDING = "_flinkray_binding"

_timeout_override: ContextVar[float | None] = ContextVar("ask_timeout", default=None)


@contextmanager
def asks_within(seconds: float) -> Iterator[None]:
    """Context manager: asks made inside, and in tasks started inside, time out after *seconds*.

    This overrides the timeouts of the gateway methods.
    """
    token = _timeout_override.set(seconds)
    try:
        yield
    finally:
        _timeout_override.reset(token)


class Binding:
    """The endpoint object that a proxy calls, and the current connection to reach it."""

    __slots__ = (
        "_calls",
        "_recorder",
        "address",
        "ask_timeout",
        "connection",
        "number",
        "successor_of",
        "token",
        "token_bytes",
    )

    def __init__(
        self,
        connection: ClientConnection,
        number: int,
        address: str,
        token: FencingToken | None,
        ask_timeout: float,
        successor_of: Callable[[ClientConnection], ClientConnection],
        recorder: RpcRecorder,
    ) -> None:
        """Create the binding of a proxy. *successor_of* returns the connection that replaces a lost
        one."""
        self.connection = connection
        self.successor_of = successor_of
        self.number = number
        self.address = address
        self.token = token
        self.token_bytes = None if token is None else codec.encode(token)
        self.ask_timeout = ask_timeout
        self._recorder = recorder
        self._calls: dict[GatewayMethod, tuple[str, MethodRecorder]] = {}
        """For each method: the name of the call in error messages, and its recorder."""

    def _new_call(self, method: GatewayMethod) -> tuple[str, MethodRecorder]:
        call = f"{self.address}: {method.full_name}", self._recorder.called(method.full_name)
        self._calls[method] = call
        return call

    def ask(self, method: GatewayMethod, arguments: tuple[Any, ...]) -> PendingAnswer:
        """Send an ask and return the pending answer; a lost connection is replaced first."""
        what, recorder = self._calls.get(method) or self._new_call(method)
        recorder.calls += 1
        try:
            payload = _encode(what, method, arguments)
            connection = self.connection
            if connection.lost_reason is not None:
                connection = self.connect_again(what)
            timeout = _timeout_override.get()
            if timeout is None:
                timeout = self.ask_timeout if method.timeout is None else method.timeout[0]
            handled = current_call.get()
            if handled is not None and handled.ask_deadline is not None:
                timeout = _what_is_left(what, handled.ask_deadline, timeout)
            return connection.ask(
                what, self.number, method.name, self.token_bytes, payload, timeout, recorder
            )
        except RpcError:
            recorder.failures += 1
            raise

    async def tell(self, method: GatewayMethod, arguments: tuple[Any, ...]) -> None:
        """Send a tell; a lost connection is replaced first.
        Returns when the message is on its way.
        """
        what, recorder = self._calls.get(method) or self._new_call(method)
        recorder.calls += 1
        try:
            payload = _encode(what, method, arguments)
            connection = self.connection
            if connection.lost_reason is not None:
                connection = self.connect_again(what)
            connection.tell(what, self.number, method.name, self.token_bytes, payload)
            if connection.is_congested:
                await connection.drain(what)
        except RpcError:
            recorder.failures += 1
            raise

    def connect_again(self, what: str) -> ClientConnection:
        """Replace the lost connection by its successor and return the successor.

        Raises:
            RecipientUnreachableError: the endpoint has terminated, the process is dead, or the
                process could not be reached a moment ago.
        """
        if not self.connection.has_ended(self.number):
            try:
                self.connection = self.successor_of(self.connection)
            except RecipientUnreachableError as error:
                raise RecipientUnreachableError(f"{what}: {error}") from None
        return self.connection


def _what_is_left(what: str, deadline: float, timeout: float | None) -> float:
    left = deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise RpcTimeoutError(f"{what}: not sent, the time of the call that asks for it is over")
    return left if timeout is None else min(left, timeout)


def _encode(what: str, method: GatewayMethod, arguments: tuple[Any, ...]) -> Packed:
    try:
        return codec.encode_in_parts(arguments)
    except RpcSerializationError as error:
        raise _blame(what, method.parameters, arguments) from error


def _blame(what: str, names: tuple[str, ...], arguments: tuple[Any, ...]) -> RpcSerializationError:
    for name, argument in zip(names, arguments, strict=True):
        try:
            codec.encode(argument)
        except RpcSerializationError as error:
            return RpcSerializationError(f"{what}: argument {name!r}: {error}")
    return RpcSerializationError(f"{what}: the arguments cannot be sent together")


def make_proxy(gateway: type[G], binding: Binding) -> G:
    """Return an object of type *gateway* whose methods call the endpoint of *binding*."""
    proxy = _proxy_class(gateway)()
    setattr(proxy, _BINDING, binding)
    return cast("G", proxy)


def binding_of(gateway: RpcGateway) -> Binding:
    """Return the binding of a proxy. Raises TypeError: *gateway* is not a proxy."""
    binding = getattr(gateway, _BINDING, None)
    if not isinstance(binding, Binding):
        raise TypeError(f"{gateway!r} is no proxy: it was not connected to")
    return binding


@cache
def _proxy_class(gateway: type[RpcGateway]) -> type[RpcGateway]:
    def address(self: Any) -> str:
        return cast("str", self._flinkray_binding.address)

    def fencing_token(self: Any) -> FencingToken | None:
        return cast("FencingToken | None", self._flinkray_binding.token)

    def show(self: Any) -> str:
        return f"<{gateway.__name__} of {self._flinkray_binding.address}>"

    members: dict[str, Any] = {
        "address": property(address),
        "fencing_token": property(fencing_token),
        "__repr__": show,
    }
    members.update((name, _stub(method)) for name, method in gateway_methods(gateway).items())
    return type(f"{gateway.__name__}Proxy", (gateway,), members)


def _stub(method: GatewayMethod) -> Callable[..., Any]:
    signature = method.signature
    # calls with this number of positional arguments need no binding to names
    count = len(method.parameters) if not method.keywords else -1

    def positional(proxy: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        try:
            bound = signature.bind(proxy, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{method.full_name}: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())[1:]

    async def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != count:
            args = positional(self, args, kwargs)
        answer = self._flinkray_binding.ask(method, args)
        try:
            return await answer.future
        except asyncio.CancelledError:
            answer.give_up()
            raise

    async def tell(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs or len(args) != count:
            args = positional(self, args, kwargs)
        await self._flinkray_binding.tell(method, args)

    stub = tell if method.is_oneway else ask
    stub.__name__ = method.name
    stub.__qualname__ = method.full_name
    return stub
