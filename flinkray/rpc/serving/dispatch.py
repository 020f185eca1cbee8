"""The called side of a connection: requests come in, become handlers, and are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import CoroutineType
from typing import Any, NoReturn, Protocol

from flinkray.core.errors import (
    EndpointNotStartedError,
    FrameTooLargeError,
    HandlerCancelledError,
    HandshakeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.rpc.calls.call_context import current_call
from flinkray.rpc.calls.deadlines import Deadlines
from flinkray.rpc.calls.metrics import MethodRecorder, RpcRecorder
from flinkray.rpc.calls.tracing import enter_trace
from flinkray.rpc.clock import time_of
from flinkray.rpc.endpoint import implemented_gateways
from flinkray.rpc.gateway import GatewayMethod
from flinkray.rpc.mailbox import EndpointState, HostedEndpoint
from flinkray.rpc.serving.duplicates import AtMostOnce
from flinkray.rpc.serving.fencing import check_token, token_of
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.codec import Packed
from flinkray.rpc.wire.envelope import (
    ASK,
    CONTROL_LANE,
    ENDED,
    ERROR,
    PING,
    PROTOCOL_VERSION,
    RESOLVE,
    RESULT,
    STOP,
    TELL,
    TERMINATED,
    Kind,
    Payload,
    frame_of,
    unpack_request,
)
from flinkray.rpc.wire.transport import Transport

logger = logging.getLogger(__name__)

MAX_PENDING_CALLS = 10_000
"""Default of :attr:`RpcService.max_pending_calls`."""
MAX_PENDING_BYTES = 67_108_864
"""Default of :attr:`RpcService.max_pending_bytes`."""


class _Lane(AtMostOnce):
    """The state of one connection's requests to one endpoint, or to the process itself (number 0):
    which requests have come, and how the endpoint is called."""

    __slots__ = ("endpoint", "mailbox", "methods", "post", "token")

    def __init__(self, endpoint: HostedEndpoint | None, recorder: RpcRecorder) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.token: bytes | None = None
        """The token that calls must carry, encoded. None: calls need no token."""
        if endpoint is not None:
            self.mailbox = endpoint.mailbox
            self.post = endpoint.mailbox.handlers.post
            self.methods = {
                name: (method, recorder.handled(method.full_name))
                for name, method in implemented_gateways(type(endpoint)).methods.items()
            }
            self.token = token_of(endpoint)

    def count_refusal(self, name: str) -> None:
        known = self.methods.get(name) if self.endpoint is not None else None
        if known is not None:
            known[1].calls += 1
            known[1].failures += 1


class Host(Protocol):
    """The methods and settings of a service that its :class:`ServerConnection` objects use."""

    loop: asyncio.AbstractEventLoop
    process_name: str
    recorder: RpcRecorder
    deadlines_of_calls: Deadlines
    max_frame_size: int
    max_pending_calls: int
    max_pending_bytes: int

    def endpoints(self) -> Sequence[HostedEndpoint]: ...
    def find_endpoint(self, endpoint_id: str) -> tuple[int, HostedEndpoint | None]: ...
    def endpoint_by_number(self, number: int) -> HostedEndpoint | None: ...
    def end_of(self, number: int) -> str: ...
    def refuse_frame(self, peer: str, reason: str) -> None: ...
    def peer_lost(self, peer: ServerConnection) -> None: ...
    def stop_requested(self, answer: Callable[[], None]) -> None: ...


class ServerConnection:
    """The called side of a connection from one peer: turns its requests into handlers."""

    def __init__(
        self,
        service: Host,
        transport: Transport,
        peer: str,
    ) -> None:
        self._service = service
        self._transport = transport
        self._peer = peer
        self._max_frame_size = service.max_frame_size
        self._max_pending_calls = service.max_pending_calls
        self._max_pending_bytes = service.max_pending_bytes
        self._pending_calls = 0
        self._pending_bytes = 0
        self._is_paused = False
        self._time = time_of(service.loop)
        self._lanes = {CONTROL_LANE: _Lane(None, service.recorder)}
        self._resolved: set[int] = set()

    def frame_received(self, frame: bytes | memoryview) -> None:
        try:
            _, kind, sequence, target, name, token, timeout, trace, payload = unpack_request(frame)
        except RpcSerializationError as error:
            self.frame_refused(str(error))
            return
        lane = self._lanes.get(target) or self._new_lane(target)
        if not lane.takes(sequence):
            self.frame_refused(f"{Kind(kind).name} number {sequence} came twice or out of order")
            return
        if kind != ASK and kind != TELL:
            self._control(kind, sequence, target, name, payload)
            return
        answered = sequence if kind == ASK else 0
        try:
            endpoint = lane.endpoint
            if endpoint is None:
                raise RecipientUnreachableError(self._service.end_of(target))
            if not lane.mailbox.accepts_calls:
                _refuse_state(endpoint, name)
            known = lane.methods.get(name)
            if known is None:
                _refuse_method(endpoint, name)
            method, recorder = known
            if lane.token is not None:
                check_token(endpoint, method, lane.token, token)
            try:
                arguments = codec.decode(payload)
            except RpcSerializationError as error:
                _refuse_arguments(endpoint, method, error)
            if type(arguments) is not tuple or len(arguments) != len(method.parameters):
                _refuse_arguments(endpoint, method, None)
        except RpcError as error:
            lane.count_refusal(name)
            self._refuse(name, answered, error)
            return
        recorder.calls += 1
        size = len(frame)
        self._pending_calls += 1
        self._pending_bytes += size
        if (
            self._pending_calls > self._max_pending_calls
            or self._pending_bytes > self._max_pending_bytes
        ):
            self._is_paused = True
            self._transport.pause_reading()
        lane.post(
            HandlerCall(
                self, endpoint, method, recorder, answered, arguments, size, self._time(), timeout,
                trace,
            )
        )  # fmt: skip

    def frame_refused(self, reason: str) -> None:
        self._service.refuse_frame(self._peer, reason)

    def connection_lost(self, reason: str) -> None:
        self._service.peer_lost(self)

    def close(self) -> None:
        self._transport.close()

    def break_off(self, reason: str) -> None:
        """End the connection without notice, as if this process had died."""
        self._transport.break_off(reason)

    def _new_lane(self, target: int) -> _Lane:
        endpoint = self._service.endpoint_by_number(target)
        lane = _Lane(endpoint, self._service.recorder)
        if endpoint is not None:
            self._lanes[target] = lane
        return lane

    # --- requests to the process --------------------------------------------------------------

    def _control(self, kind: int, sequence: int, target: int, name: str, payload: Payload) -> None:
        try:
            if kind == RESOLVE:
                self._resolve(sequence, target, name, payload)
            elif kind == STOP:
                self._service.stop_requested(lambda: self._reply(RESULT, sequence, None))
            elif kind == PING:
                self._reply(RESULT, sequence, bool(self._service.endpoints()))
        except RpcError as error:
            self._refuse(name, sequence, error)

    def _resolve(self, sequence: int, target: int, endpoint_id: str, payload: Payload) -> None:
        if target != CONTROL_LANE:  # the number is known from a connection that broke
            number, endpoint = target, self._service.endpoint_by_number(target)
        else:
            number, endpoint = self._service.find_endpoint(endpoint_id)
        address = f"{self._service.process_name}/{endpoint_id}"
        if endpoint is None:
            if target != CONTROL_LANE:
                raise RpcConnectionError(self._service.end_of(number))
            raise RpcConnectionError(f"no endpoint at {address}")
        gateway = codec.decode(payload)
        gateways = implemented_gateways(type(endpoint)).gateways
        if gateway is not None and (type(gateway) is not str or gateway not in gateways):
            raise HandshakeError(
                f"{address} is a {type(endpoint).__name__} and does not implement {gateway}"
            )
        self._resolved.add(number)
        self._reply(RESULT, sequence, (number, endpoint.endpoint_id))

    def endpoint_terminated(self, number: int, reason: str) -> None:
        """Report the end of an endpoint to the peer, if the peer has resolved the endpoint."""
        self._lanes.pop(number, None)
        if number in self._resolved:
            self._resolved.discard(number)
            self._reply(TERMINATED, number, None if reason == ENDED else reason)

    # --- calls under way ----------------------------------------------------------------------

    def expire_at(self, deadline: float, call: HandlerCall) -> None:
        """End *call* at *deadline*, in the loop's time, unless it has ended by then. Called by
        :class:`HandlerCall`."""
        self._service.deadlines_of_calls.add(deadline, call)

    def _done(self, call: HandlerCall) -> None:
        seconds = self._time() - call.begun
        call.recorder.seconds += seconds
        call.recorder.buckets[int(seconds * 1e6).bit_length()] += 1
        self._pending_calls -= 1
        self._pending_bytes -= call.size
        if (
            self._is_paused
            and self._pending_calls <= self._max_pending_calls // 2
            and self._pending_bytes <= self._max_pending_bytes // 2
        ):
            self._is_paused = False
            self._transport.resume_reading()

    def succeeded(self, call: HandlerCall, result: object) -> None:
        """Send the result of a call whose handler has returned. Called by the call."""
        self._done(call)
        if call.sequence == 0:
            return
        try:
            self._reply(RESULT, call.sequence, result)
        except FrameTooLargeError as error:
            call.recorder.failures += 1
            too_large = FrameTooLargeError(f"{call.what}: the result: {error}")
            self._refuse(call.method.name, call.sequence, too_large)
        except RpcSerializationError as error:
            call.recorder.failures += 1
            unsendable = RpcSerializationError(f"{call.what}: the result: {error}")
            unsendable.__cause__ = error
            self._refuse(call.method.name, call.sequence, unsendable)

    def failed(self, call: HandlerCall, error: BaseException) -> None:
        """Send the error of a call whose handler has failed, or could not begin. Called by the
        call."""
        call.recorder.failures += 1
        self._done(call)
        self._refuse(call.method.name, call.sequence, error)

    # --- answers ------------------------------------------------------------------------------

    def _refuse(self, method: str, sequence: int, error: BaseException) -> None:
        if sequence == 0:
            level = (
                logging.DEBUG if isinstance(error, RecipientUnreachableError) else logging.WARNING
            )
            logger.log(level, "%s from %s failed: %r", method, self._peer, error, exc_info=error)
            return
        try:
            self._send(ERROR, sequence, codec.encode_error(error))
        except FrameTooLargeError:
            self._send(ERROR, sequence, codec.encode_error_in_short(error))

    def _reply(self, kind: int, sequence: int, value: object) -> None:
        self._send(kind, sequence, codec.encode_in_parts(value))

    def _send(self, kind: int, sequence: int, payload: Packed) -> None:
        frame = frame_of((PROTOCOL_VERSION, kind, sequence, payload), self._max_frame_size)
        if isinstance(frame, bytes):
            self._transport.send(frame)
        else:
            self._transport.send_parts(frame)


def _refuse_state(endpoint: HostedEndpoint, method: str) -> NoReturn:
    if endpoint.mailbox.state is EndpointState.CREATED:
        raise EndpointNotStartedError(
            f"{endpoint.address}: {method}: the endpoint is not started yet"
        )
    raise RecipientUnreachableError(endpoint.mailbox.end_reason)


def _refuse_method(endpoint: HostedEndpoint, method: str) -> NoReturn:
    raise RpcError(f"{endpoint.address}: {type(endpoint).__name__} has no method {method}")


def _refuse_arguments(
    endpoint: HostedEndpoint, method: GatewayMethod, cause: RpcSerializationError | None
) -> NoReturn:
    what = f"{endpoint.address}: {method.full_name}"
    if cause is None:
        raise RpcSerializationError(f"{what}: wrong number of arguments")
    raise RpcSerializationError(f"{what}: the arguments: {cause}") from cause


class Answering(Protocol):
    """The interface of a connection by which its calls send their answers."""

    def expire_at(self, deadline: float, call: HandlerCall) -> None: ...
    def succeeded(self, call: HandlerCall, result: object) -> None: ...
    def failed(self, call: HandlerCall, error: BaseException) -> None: ...


class HandlerCall:
    """A call that arrived over a connection, with its handler.
    The queue of the endpoint runs it as a :class:`~flinkray.rpc.mailbox.Handling`.
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
        """Cancel the handler, because nobody waits for its answer any more. If it has not begun,
        the call fails with RpcTimeoutError. A handler that runs to completion is not cancelled."""
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
