"""One call on the called side, from its arrival to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from types import CoroutineType
from typing import Any, Protocol

from flinkray.core.errors import (
    HandlerCancelledError,
    RecipientUnreachableError,
    RpcTimeoutError,
)
from flinkray.rpc.calls.call_context import current_call
from flinkray.rpc.calls.metrics import MethodRecorder
from flinkray.rpc.calls.tracing import enter_trace
from flinkray.rpc.gateway import GatewayMethod
from flinkray.rpc.mailbox import HostedEndpoint


class Answering(Protocol):
    """The interface of a connection by which its calls send their answers."""

    def expire_at(self, deadline: float, call: HandlerCall) -> None: ...
    def succeeded(self, call: HandlerCall, result: object) -> None: ...
    def failed(self, call: HandlerCall, error: BaseException) -> None: ...


class HandlerCall:
    """A call that arrived over a connection, with its handler.
    The queue of the endpoint runs it as a :class:`~flinkray.rpc.handler_queue.Handling`.
    """

    __slots__ = (
        "_arguments",
        "_connection",
        "_has_expired",
        "_task",
        "_trace",
        "ask_deadline",
        "begun",
        "coroutine",
        "deadline",
        "endpoint",
        "is_over",
        "method",
        "recorder",
        "sequence",
        "size",
        "timeout",
    )

    coroutine: Coroutine[Any, Any, Any]

    def __init__(
        self,
        connection: Answering,
        endpoint: HostedEndpoint,
        method: GatewayMethod,
        recorder: MethodRecorder,
        sequence: int,
        arguments: tuple[Any, ...],
        size: int,
        begun: float,
        timeout: float | None,
        trace: dict[str, str] | None,
    ) -> None:
        self._connection = connection
        self.endpoint = endpoint
        self.method = method
        self.recorder = recorder
        self.sequence = sequence
        """The number of the request; 0 for a tell, which gets no answer."""
        self._arguments = arguments
        self.size = size
        """The size of the request in bytes."""
        self.begun = begun
        """The time at which the request arrived, in the loop's time."""
        self.timeout = timeout
        deadline = self.deadline = None if timeout is None else begun + timeout
        self.ask_deadline = None if method.runs_to_completion else deadline
        self._trace = trace
        self.is_over = False
        self._task: asyncio.Task[None] | None = None
        self._has_expired = False

    @property
    def what(self) -> str:
        """The name of the call in error messages."""
        return f"{self.endpoint.address}: {self.method.full_name}"

    # --- the handler --------------------------------------------------------------------------

    def begin(self) -> Any:
        if self.deadline is not None:
            current_call.set(self)
        if self._trace is not None:
            enter_trace(self._trace)
        method, arguments = self.method, self._arguments
        self._arguments = ()
        handler = getattr(self.endpoint, method.name)
        if method.keywords:
            split = len(arguments) - len(method.keywords)
            named = dict(zip(method.keywords, arguments[split:], strict=True))
            made = handler(*arguments[:split], **named)
        else:
            made = handler(*arguments)
        coroutine = self.coroutine = made if type(made) is CoroutineType else _await(made)
        return coroutine.send(None)

    def is_held(self) -> None:
        if self.deadline is not None:
            self._connection.expire_at(self.deadline, self)

    def waits(self, task: asyncio.Task[None]) -> None:
        self._task = task
        if self.ask_deadline is not None:
            self._connection.expire_at(self.ask_deadline, self)

    def expire(self) -> None:
        """Cancel the handler because nobody waits for its answer any more.

        If the handler has not begun, the call fails with RpcTimeoutError. A handler that runs to
        completion is not cancelled.
        """
        if self._task is None:
            self.failed(self._timeout_error())
        elif self.ask_deadline is not None and not self._has_expired:
            self._has_expired = True
            self._task.cancel()

    def _timeout_error(self) -> RpcTimeoutError:
        return RpcTimeoutError(f"{self.what}: given up, not done within {self.timeout:g} s")

    # --- its end ------------------------------------------------------------------------------

    def succeeded(self, result: object) -> None:
        # what the handler has started and left running has no deadline from now on
        self.is_over = True
        self.deadline = self.ask_deadline = None
        self._connection.succeeded(self, result)

    def failed(self, error: BaseException) -> None:
        self.is_over = True
        self.deadline = self.ask_deadline = None
        self._connection.failed(self, error)

    def cancelled(self) -> bool:
        if self._has_expired:
            self.failed(self._timeout_error())
            return True
        if self.endpoint.mailbox.accepts_calls:
            what = f"{self.what}: the handler was cancelled, or something that it awaited"
            self.failed(HandlerCancelledError(what))
        else:
            self.abandoned()
        return False

    def abandoned(self) -> None:
        self.failed(RecipientUnreachableError(self.endpoint.mailbox.end_reason))


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
