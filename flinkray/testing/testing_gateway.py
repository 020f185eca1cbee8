"""Defines test doubles of gateways, which give the answers that a test has set, and record the
calls.

After Flink's ``Testing…Gateway`` builders, but one class for all gateways::

    double = (
        TestingGateway(BankGateway)
        .on(BankGateway.balance)
        .returning(10, 20)  # 10 first, then 20 for ever
        .on(BankGateway.pay)
        .calling(lambda amount: amount <= 20)
        .on(BankGateway.close)
        .raising(PermissionError("not yours"))
    )

``double.gateway`` is a ``BankGateway`` in this process, to be handed to what is tested.
``double.start(rpc_service, "bank")`` makes it an endpoint that others connect to.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, NamedTuple, TypeVar, cast

from typing_extensions import Self

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import FencingToken
from flinkray.rpc import FencedRpcEndpoint, FencedRpcGateway, RpcEndpoint, RpcGateway, RpcService
from flinkray.rpc.gateway import GatewayMethod, gateway_methods

G = TypeVar("G", bound=RpcGateway)
R = TypeVar("R")

Method = Callable[..., Coroutine[Any, Any, R]]
"""A method of a gateway class: ``BankGateway.pay``."""


class UnexpectedCallError(FlinkRayError):
    """Raised if a test double is called for which the test has set no answer."""


class Call(NamedTuple):
    """One call of a gateway's method."""

    method: str
    arguments: tuple[Any, ...]
    """The arguments in the order of the method's parameters, defaults included."""


class MethodDouble(Generic[G, R]):
    """Sets what one method of a test double answers; its methods return the test double."""

    def __init__(
        self, set_answer: Callable[[Callable[..., R | Awaitable[R]]], TestingGateway[G]]
    ) -> None:
        self._set_answer = set_answer

    def returning(self, result: R, *further: R) -> TestingGateway[G]:
        """Answer the first call with *result* and later calls with *further* in turn. The last
        value is the answer to all further calls."""
        results = [result, *further]
        return self._set_answer(lambda *_, **__: results.pop(0) if results[1:] else results[0])

    def calling(self, function: Callable[..., R | Awaitable[R]]) -> TestingGateway[G]:
        """Answer each call with the result of *function* (plain or async) for the arguments of the
        call."""
        return self._set_answer(function)

    def raising(self, error: Exception) -> TestingGateway[G]:
        """Fail each call with *error*."""

        def fail(*_: object, **__: object) -> R:
            raise error

        return self._set_answer(fail)


class TestingGateway(Generic[G]):
    """A test double of a gateway class. Until the test sets an answer, an ask fails with
    UnexpectedCallError and a tell (``@oneway``) is accepted; :meth:`lenient` changes this. Answers
    may be changed at any time."""

    __test__ = False  # for pytest

    def __init__(self, gateway: type[G], fencing_token: FencingToken | None = None) -> None:
        """Make a test double of the class *gateway*, without answers. *fencing_token*: the token of
        a fenced gateway, without which :meth:`start` fails."""
        self.gateway_class = gateway
        self.fencing_token = fencing_token
        self.calls: list[Call] = []
        """All calls so far, in order."""
        self._methods = gateway_methods(gateway)
        self._answers: dict[str, Callable[..., Any]] = {}
        self._is_lenient = False
        self._changed = asyncio.Event()
        self._endpoint: RpcEndpoint | None = None
        members = {
            "address": property(lambda _: self.address),
            "fencing_token": property(lambda _: self.fencing_token),
            **self._implementation(),
        }
        self.gateway: G = type(f"Testing{gateway.__name__}", (gateway,), members)()
        """An object of the gateway class; its calls do not go through an RPC service."""

    # --- what it answers --------------------------------------------------------------------------

    def on(self, method: Method[R]) -> MethodDouble[G, R]:
        """Return an object that sets the double's answer to *method*, a method of the gateway.

        Raises:
            TypeError: the gateway has no such method.
        """
        name = getattr(method, "__name__", repr(method))
        if name not in self._methods:
            raise TypeError(f"{self.gateway_class.__name__} has no method {name}")

        def set_answer(answer: Callable[..., R | Awaitable[R]]) -> TestingGateway[G]:
            self._answers[name] = answer
            return self

        return MethodDouble(set_answer)

    def lenient(self) -> Self:
        """Answer None to all calls without another answer; return the double."""
        self._is_lenient = True
        return self

    # --- what it was asked ------------------------------------------------------------------------

    def calls_of(self, method: Method[Any]) -> list[tuple[Any, ...]]:
        """Return the arguments of all calls of a method so far."""
        return [call.arguments for call in self.calls if call.method == method.__name__]

    async def wait_for(self, method: Method[Any], count: int = 1) -> tuple[Any, ...]:
        """Wait until a method was called *count* times, and return the arguments of the last of
        these calls."""
        while len(calls := self.calls_of(method)) < count:
            self._changed.clear()
            await self._changed.wait()
        return calls[count - 1]

    # --- as an endpoint ---------------------------------------------------------------------------

    def start(self, rpc_service: RpcService, endpoint_id: str) -> Self:
        """Start the double as an endpoint of *rpc_service* with that id; return the double.

        Raises:
            TypeError: the gateway is fenced, and the double has no token.
        """
        self.create_endpoint(rpc_service, endpoint_id).start()
        return self

    def create_endpoint(self, rpc_service: RpcService, endpoint_id: str) -> RpcEndpoint:
        """Create the double's endpoint without starting it, for a factory whose caller starts
        it."""
        base: type[RpcEndpoint] = RpcEndpoint
        arguments: tuple[Any, ...] = (rpc_service, endpoint_id)
        if issubclass(self.gateway_class, FencedRpcGateway):
            if self.fencing_token is None:
                raise TypeError(f"{self.gateway_class.__name__} is fenced: give its double a token")
            base, arguments = FencedRpcEndpoint, (*arguments, self.fencing_token)
        name = f"Testing{self.gateway_class.__name__}Endpoint"
        cls = type(name, (base, self.gateway_class), self._implementation())
        self._endpoint = cast("RpcEndpoint", cls(*arguments))
        return self._endpoint

    @property
    def endpoint(self) -> RpcEndpoint:
        """The endpoint of the double. Raises RuntimeError before :meth:`start`."""
        if self._endpoint is None:
            raise RuntimeError(f"the double of {self.gateway_class.__name__} was not started")
        return self._endpoint

    @property
    def address(self) -> str:
        """The address of the double's endpoint. Before :meth:`start`: an address at which no
        endpoint answers."""
        if self._endpoint is None:
            return f"nowhere/{self.gateway_class.__name__}"
        return self._endpoint.address

    # --- how --------------------------------------------------------------------------------------

    def _implementation(self) -> dict[str, Any]:
        return {name: self._implement(method) for name, method in self._methods.items()}

    def _implement(self, method: GatewayMethod) -> Callable[..., Any]:
        async def implementation(endpoint: object, *args: Any, **kwargs: Any) -> Any:
            bound = method.signature.bind(endpoint, *args, **kwargs)
            bound.apply_defaults()
            self.calls.append(Call(method.name, tuple(bound.arguments.values())[1:]))
            self._changed.set()
            answer = self._answers.get(method.name)
            if answer is None:
                if self._is_lenient or method.is_oneway:
                    return None
                raise UnexpectedCallError(
                    f"{method.full_name} was called with {self.calls[-1].arguments!r}, and the "
                    f"test has not said what to answer: .on({method.full_name}).returning(…)"
                )
            result = answer(*bound.args[1:], **bound.kwargs)
            return await result if inspect.isawaitable(result) else result

        implementation.__name__ = method.name
        return implementation
