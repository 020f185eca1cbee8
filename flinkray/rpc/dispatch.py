"""The called side of a connection: requests come in and become handlers of endpoints."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from flinkray.core.errors import (
    EndpointNotStartedError,
    FencingTokenError,
    FrameTooLargeError,
    HandshakeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcError,
    RpcSerializationError,
)
from flinkray.core.ids import FencingToken
from flinkray.core.message import type_name
from flinkray.rpc import codec
from flinkray.rpc.connection import trace_context
from flinkray.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from flinkray.rpc.envelope import ENDED, MAX_FRAME_SIZE, REQUESTS, Envelope, Kind, pack, unpack
from flinkray.rpc.gateway import GatewayMethod, RpcGateway, gateway_methods
from flinkray.rpc.mailbox import EndpointState
from flinkray.rpc.transport import Transport

if TYPE_CHECKING:
    from flinkray.rpc.base_service import BaseRpcService

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exports:
    """What an endpoint class shows to the outside."""

    gateways: frozenset[str]
    """Type names."""
    methods: dict[str, tuple[GatewayMethod, tuple[str, ...]]]
    """By name: the method and its keyword-only parameters, which come last."""


@cache
def exports_of(endpoint_class: type[RpcEndpoint]) -> Exports:
    """The gateways that the class implements and their methods.

    Raises:
        TypeError: see :func:`gateway_methods`.
    """
    gateways = [
        base
        for base in endpoint_class.__mro__
        if issubclass(base, RpcGateway) and not issubclass(base, RpcEndpoint)
    ]
    methods = {}
    for gateway in reversed(gateways):
        for name, method in gateway_methods(gateway).items():
            parameters = method.signature.parameters.values()
            if any(
                parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
                for parameter in parameters
            ):
                raise TypeError(f"{method.full_name}: gateway methods take no * or ** arguments")
            keywords = tuple(
                parameter.name
                for parameter in parameters
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY
            )
            methods[name] = (method, keywords)
    return Exports(frozenset(map(type_name, gateways)), methods)


class ServerConnection:
    """A connection from one peer to this process."""

    def __init__(
        self,
        service: BaseRpcService,
        transport: Transport,
        peer: str,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        self._service = service
        self._transport = transport
        self._peer = peer
        self._max_frame_size = max_frame_size
        self._last_sequence = 0
        self._resolved: set[int] = set()

    def frame_received(self, frame: bytes) -> None:
        try:
            envelope = unpack(frame)
        except RpcSerializationError as error:
            self._service.refuse_frame(self._peer, str(error))
            return
        if envelope.kind not in REQUESTS or envelope.sequence <= self._last_sequence:
            self._service.refuse_frame(
                self._peer, f"{envelope.kind.name} number {envelope.sequence} out of order"
            )
            return
        self._last_sequence = envelope.sequence
        try:
            if envelope.kind is Kind.RESOLVE:
                self._resolve(envelope)
            elif envelope.kind is Kind.STOP:
                self._service.stop_requested(
                    lambda: self._reply(envelope, Kind.RESULT, codec.encode(None))
                )
            elif envelope.kind is Kind.PING:
                lives = bool(self._service.endpoints())
                self._reply(envelope, Kind.RESULT, codec.encode(lives))
            else:
                self._call(envelope)
        except RpcError as error:
            self._refuse(envelope, error)

    def connection_lost(self, reason: str) -> None:
        self._service.peer_lost(self)

    def close(self) -> None:
        self._transport.close()

    def break_off(self, reason: str) -> None:
        """As when this process dies."""
        self._transport.break_off(reason)

    def endpoint_terminated(self, number: int, reason: str) -> None:
        """Tell the peer, if it has ever asked for this endpoint."""
        if number in self._resolved:
            self._resolved.discard(number)
            self._transport.send(
                pack(
                    Envelope(
                        Kind.TERMINATED, self._service.identity, 0, codec.encode(reason), number
                    )
                )
            )

    def _resolve(self, envelope: Envelope) -> None:
        if envelope.target:  # known from a connection that broke
            number, endpoint = envelope.target, self._service.endpoint_by_number(envelope.target)
        else:
            number, endpoint = self._service.find_endpoint(envelope.method)
        address = f"{self._service.process_name}/{envelope.method}"
        if endpoint is None:
            raise RpcConnectionError(f"no endpoint at {address}")
        gateway = codec.decode(envelope.payload)
        if gateway is not None and gateway not in exports_of(type(endpoint)).gateways:
            raise HandshakeError(
                f"{address} is a {type(endpoint).__name__} and does not implement {gateway}"
            )
        self._resolved.add(number)
        self._reply(envelope, Kind.RESULT, codec.encode((number, endpoint.endpoint_id)))

    def _call(self, envelope: Envelope) -> None:
        endpoint = self._service.endpoint_by_number(envelope.target)
        if endpoint is None:
            raise RecipientUnreachableError(ENDED)
        address = endpoint.address
        mailbox = endpoint.mailbox
        if mailbox.refuses_calls:
            raise RecipientUnreachableError(ENDED)
        if mailbox.state is EndpointState.CREATED:
            raise EndpointNotStartedError(
                f"{address}: {envelope.method}: the endpoint is not started yet"
            )
        known = exports_of(type(endpoint)).methods.get(envelope.method)
        if known is None:
            raise RpcError(f"{address}: {type(endpoint).__name__} has no method {envelope.method}")
        method, keywords = known
        if isinstance(endpoint, FencedRpcEndpoint):
            _check_token(endpoint, method, envelope.token)
        try:
            arguments = codec.decode(envelope.payload)
        except RpcSerializationError as error:
            raise RpcSerializationError(
                f"{address}: {method.full_name}: the arguments: {error}"
            ) from error
        if type(arguments) is not tuple or len(arguments) != len(method.signature.parameters) - 1:
            raise RpcSerializationError(f"{address}: {method.full_name}: wrong number of arguments")
        mailbox.run_handler(self._handle(endpoint, method, keywords, arguments, envelope))

    async def _handle(
        self,
        endpoint: RpcEndpoint,
        method: GatewayMethod,
        keywords: tuple[str, ...],
        arguments: tuple[Any, ...],
        envelope: Envelope,
    ) -> None:
        replied = False
        try:
            if endpoint.mailbox.refuses_calls:
                return
            trace_context.set(envelope.trace)
            handler = getattr(endpoint, method.name)
            if keywords:
                split = len(arguments) - len(keywords)
                named = dict(zip(keywords, arguments[split:], strict=True))
                result = await handler(*arguments[:split], **named)
            else:
                result = await handler(*arguments)
            replied = True
            if envelope.kind is Kind.ASK:
                self._answer(envelope, f"{endpoint.address}: {method.full_name}", result)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            replied = True
            self._refuse(envelope, error)
        finally:
            if not replied:  # not begun or cancelled, because the endpoint has terminated
                self._refuse(envelope, RecipientUnreachableError(ENDED))

    def _answer(self, envelope: Envelope, what: str, result: object) -> None:
        try:
            self._reply(envelope, Kind.RESULT, codec.encode(result))
        except FrameTooLargeError as error:
            raise FrameTooLargeError(f"{what}: the result: {error}") from error
        except RpcSerializationError as error:
            raise RpcSerializationError(f"{what}: the result: {error}") from error

    def _refuse(self, envelope: Envelope, error: Exception) -> None:
        if envelope.kind is Kind.TELL:
            level = (
                logging.DEBUG if isinstance(error, RecipientUnreachableError) else logging.WARNING
            )
            logger.log(
                level, "%s from %s failed: %r", envelope.method, self._peer, error, exc_info=error
            )
            return
        try:
            self._reply(envelope, Kind.ERROR, codec.encode_error(error))
        except FrameTooLargeError as too_large:
            self._reply(envelope, Kind.ERROR, codec.encode_error(too_large))

    def _reply(self, envelope: Envelope, kind: Kind, payload: bytes) -> None:
        answer = Envelope(kind, self._service.identity, envelope.sequence, payload)
        self._transport.send(pack(answer, self._max_frame_size))


def _check_token(
    endpoint: FencedRpcEndpoint[Any], method: GatewayMethod, received: bytes | None
) -> None:
    expected: FencingToken = endpoint.fencing_token
    if received == codec.encode(expected):
        return
    token: object = None
    if received is not None:
        token = codec.decode(received)
    raise FencingTokenError(
        endpoint.address,
        method.full_name,
        expected,
        token if isinstance(token, FencingToken) else None,
    )
