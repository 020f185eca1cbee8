"""Endpoints that do nothing but remember what they were asked, and answer as they were told."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from flinkray.core.ids import FencingToken
from flinkray.rpc import FencedRpcEndpoint, FencedRpcGateway, RpcEndpoint, RpcGateway, RpcService
from flinkray.rpc.gateway import gateway_methods


class Call(NamedTuple):
    """One call of a gateway's method."""

    method: str
    arguments: tuple[Any, ...]


class RecordingEndpoint(RpcEndpoint):
    """Implements a whole gateway; made and started by :func:`recording_endpoint`."""

    calls: list[Call]
    """All calls so far, in their order."""

    def prepare(self) -> None:
        self.calls = []
        self._answers: dict[str, Any] = {}
        self._changed = asyncio.Event()

    def answer(self, method: str, answer: object) -> None:
        """What *method* returns from now on: a value, an exception to raise, or a function of the
        call's arguments (plain or async).  Without an answer it is None."""
        self._answers[method] = answer

    def calls_of(self, method: str) -> list[tuple[Any, ...]]:
        """The arguments of all calls of a method."""
        return [call.arguments for call in self.calls if call.method == method]

    async def wait_for(self, method: str, count: int = 1) -> tuple[Any, ...]:
        """The arguments of the *count*-th call of a method, when it is there."""
        while len(self.calls_of(method)) < count:
            self._changed.clear()
            await self._changed.wait()
        return tuple(self.calls_of(method)[count - 1])

    async def record(self, method: str, arguments: tuple[Any, ...]) -> object:
        self.calls.append(Call(method, arguments))
        self._changed.set()
        answer = self._answers.get(method)
        if callable(answer):
            answer = answer(*arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


def recording_endpoint(
    rpc_service: RpcService,
    endpoint_id: str,
    gateway: type[RpcGateway],
    fencing_token: FencingToken | None = None,
) -> RecordingEndpoint:
    """A started endpoint that implements *gateway*; fenced gateways need a token."""
    is_fenced = issubclass(gateway, FencedRpcGateway)
    base = FencedRpcEndpoint if is_fenced else RpcEndpoint
    methods = {name: _recording_method(name) for name in gateway_methods(gateway)}
    cls: Any = type(f"Recording{gateway.__name__}", (RecordingEndpoint, base, gateway), methods)
    arguments = (rpc_service, endpoint_id) + ((fencing_token,) if is_fenced else ())
    endpoint: RecordingEndpoint = cls(*arguments)
    endpoint.prepare()
    endpoint.start()
    return endpoint


def _recording_method(name: str) -> Callable[..., Any]:
    async def method(self: RecordingEndpoint, *arguments: object) -> object:
        return await self.record(name, arguments)

    method.__name__ = name
    return method
