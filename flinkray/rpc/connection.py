"""The calling side of a connection: requests go out, answers and notices of ends come in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any

from flinkray.core.errors import (
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.rpc import codec
from flinkray.rpc.deadlines import Deadlines
from flinkray.rpc.envelope import ENDED, MAX_FRAME_SIZE, Envelope, Kind, pack, unpack
from flinkray.rpc.transport import OpeningTransport, Transport

logger = logging.getLogger(__name__)

trace_context: ContextVar[dict[str, str] | None] = ContextVar("trace_context", default=None)
"""Carried from a caller to its handlers and on to what they call."""

_NONE = codec.encode(None)


class ClientConnection:
    """A connection to one incarnation of one process; once lost, it stays lost.

    Proxies go on with its successor: :mod:`flinkray.rpc.connection_pool`.
    """

    def __init__(
        self,
        process_name: str,
        incarnation: str,
        sender: str,
        transport: Transport,
        deadlines: Deadlines,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        self.process_name = process_name
        self.incarnation = incarnation
        """Of the process at the other end."""
        self.lost_reason: str | None = None
        """Why the connection is gone; None while it is there."""
        self.peer_died = False
        """Whether the connection is gone because Ray has reported the process's death."""
        self.where: object = None
        """What the service needs to reach the same incarnation again; None: it never tries."""
        self.failed_openings = 0
        """So many attempts in a row to open a connection to this incarnation again failed."""
        self.retry_at = 0.0
        """Loop time before which there is no other attempt."""
        self.followed: set[int] = set()
        """Numbers of the endpoints whose end the other side is to report."""
        self.refused_frames = 0
        """Frames that made no sense."""
        self._sender = sender
        self._transport = transport
        self._deadlines = deadlines
        self._max_frame_size = max_frame_size
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._pending: dict[int, tuple[asyncio.Future[Any], str]] = {}
        self._ended: dict[int, str] = {}
        self._listeners: dict[int, dict[object, Callable[[str], None]]] = {}
        self._lost_listeners: list[Callable[[], None]] = []

    @property
    def is_lost(self) -> bool:
        return self.lost_reason is not None

    def end_of(self, target: int) -> str | None:
        """Why endpoint number *target* can not be reached any more; None while it can."""
        return self.lost_reason or self._ended.get(target)

    def has_ended(self, target: int) -> bool:
        """Whether endpoint number *target* is known to have terminated."""
        return target in self._ended

    # --- requests -----------------------------------------------------------------------------

    async def resolve(
        self, endpoint_id: str, gateway: str | None, timeout: float
    ) -> tuple[int, str]:
        """The number of the endpoint, which names this one object for good, and its full id.

        Raises:
            RpcConnectionError: there is no such endpoint.
            HandshakeError: it does not implement the gateway (a type name).
        """
        what = f"{self.process_name}/{endpoint_id}"
        payload = _NONE if gateway is None else codec.encode(gateway)
        answer = await self._request(Kind.RESOLVE, what, payload, timeout, method=endpoint_id)
        match answer:
            case (int(number), str(full_id)):
                if number not in self._ended:
                    self.followed.add(number)
                return number, full_id
        raise RpcSerializationError(f"{what}: unexpected answer {answer!r}")

    def follow(self, numbers: Iterable[int]) -> None:
        """Have the ends of endpoints reported that another connection had resolved."""
        for number in numbers:
            if number in self.followed or number in self._ended or self.is_lost:
                continue
            self.followed.add(number)
            what = f"{self.process_name}: endpoint number {number}"
            sequence = self._send(Kind.RESOLVE, what, _NONE, None, number, "", None)
            answer: asyncio.Future[Any] = self._loop.create_future()
            self._pending[sequence] = (answer, what)
            answer.add_done_callback(partial(self._followed, number))

    def _followed(self, number: int, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and isinstance(answer.exception(), RpcConnectionError):
            self._endpoint_ended(number, ENDED)

    async def stop_process(self) -> None:
        """Have the process close its endpoints and end; returns when it is about to end."""
        await self._request(Kind.STOP, self.process_name, _NONE, None)

    async def ping(self, timeout: float) -> bool:
        """Return when the process has answered: whether an endpoint lives there.

        None does while the process starts or ends.
        """
        return bool(await self._request(Kind.PING, self.process_name, _NONE, timeout))

    async def ask(
        self,
        what: str,
        target: int,
        method: str,
        token: bytes | None,
        payload: bytes,
        timeout: float | None,
    ) -> Any:
        """Call and wait for the answer; *what* is how errors name the call."""
        return await self._request(Kind.ASK, what, payload, timeout, target, method, token)

    async def tell(
        self, what: str, target: int, method: str, token: bytes | None, payload: bytes
    ) -> None:
        """Call without an answer; returns when the message is on its way."""
        self._send(Kind.TELL, what, payload, None, target, method, token)
        if self._transport.is_congested:
            await self._transport.drain()
            if self.lost_reason is not None:
                raise RecipientUnreachableError(f"{what}: {self._lost_story()}")

    async def _request(
        self,
        kind: Kind,
        what: str,
        payload: bytes,
        timeout: float | None,
        target: int = 0,
        method: str = "",
        token: bytes | None = None,
    ) -> Any:
        sequence = self._send(kind, what, payload, timeout, target, method, token)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[sequence] = (future, what)
        if timeout is not None:
            self._deadlines.add(
                timeout,
                future,
                lambda: RpcTimeoutError(f"{what}: no answer within {timeout:g} s"),
            )
        try:
            if self._transport.is_congested:
                drained = self._loop.create_task(self._transport.drain())
                await asyncio.wait({drained, future}, return_when=asyncio.FIRST_COMPLETED)
                drained.cancel()
            return await future
        finally:
            self._pending.pop(sequence, None)
            if not future.done():
                future.cancel()

    def _send(
        self,
        kind: Kind,
        what: str,
        payload: bytes,
        timeout: float | None,
        target: int,
        method: str,
        token: bytes | None,
    ) -> int:
        reason = self.lost_reason or self._ended.get(target)
        if reason is not None:
            raise RecipientUnreachableError(f"{what}: {reason}")
        sequence = self._sequence = self._sequence + 1
        envelope = Envelope(
            kind, self._sender, sequence, payload, target, method, token, timeout,
            trace_context.get(),
        )  # fmt: skip
        try:
            frame = pack(envelope, self._max_frame_size)
        except FrameTooLargeError as error:
            raise FrameTooLargeError(f"{what}: {error}") from None
        self._transport.send(frame)
        return sequence

    # --- answers ------------------------------------------------------------------------------

    def frame_received(self, frame: bytes) -> None:
        try:
            envelope = unpack(frame)
        except RpcSerializationError as error:
            self._refuse(str(error))
            return
        if envelope.kind is Kind.TERMINATED:
            self._terminated(envelope)
            return
        pending = self._pending.pop(envelope.sequence, None)
        if pending is None:
            return  # its caller does not wait any more
        future, what = pending
        if future.done():
            return
        try:
            value = codec.decode(envelope.payload)
        except RpcSerializationError as error:
            future.set_exception(RpcSerializationError(f"{what}: the answer: {error}"))
            return
        if envelope.kind is Kind.RESULT:
            future.set_result(value)
        elif envelope.kind is Kind.ERROR and isinstance(value, Exception):
            if isinstance(value, RecipientUnreachableError) and value.args == (ENDED,):
                value = RecipientUnreachableError(f"{what}: {ENDED}")
            future.set_exception(value)
        else:
            self._refuse(f"unexpected {envelope.kind.name}")
            future.set_exception(RpcSerializationError(f"{what}: the answer makes no sense"))

    def _refuse(self, reason: str) -> None:
        self.refused_frames += 1
        logger.warning("refused a frame from %s: %s", self.process_name, reason)

    def _terminated(self, envelope: Envelope) -> None:
        try:
            reason = str(codec.decode(envelope.payload))
        except RpcSerializationError as error:
            self._refuse(str(error))
            return
        self._endpoint_ended(envelope.target, reason)

    def _endpoint_ended(self, number: int, reason: str) -> None:
        self.followed.discard(number)
        self._ended[number] = reason
        for callback in tuple(self._listeners.pop(number, {}).values()):
            callback(reason)

    # --- ends ---------------------------------------------------------------------------------

    def on_end_of(self, target: int, callback: Callable[[str], None]) -> Callable[[], None]:
        """Be told once when the endpoint has terminated or the connection is lost.

        Returns what takes the wish back.
        """
        reason = self.end_of(target)
        if reason is not None:
            callback(reason)
            return lambda: None
        key = object()
        self._listeners.setdefault(target, {})[key] = callback

        def release() -> None:
            self._listeners.get(target, {}).pop(key, None)

        return release

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Be told when the connection is lost."""
        self._lost_listeners.append(callback)

    def connection_lost(self, reason: str) -> None:
        if self.lost_reason is not None:
            return
        self.lost_reason = reason
        story = self._lost_story()
        pending, self._pending = self._pending, {}
        for future, what in pending.values():
            if not future.done():
                future.set_exception(RecipientUnreachableError(f"{what}: {story}"))
        listeners, self._listeners = self._listeners, {}
        for callbacks in listeners.values():
            for callback in tuple(callbacks.values()):
                callback(reason)
        for lost in self._lost_listeners:
            lost()

    def _lost_story(self) -> str:
        """For calls that were sent when the connection was lost."""
        if isinstance(self._transport, OpeningTransport):
            return str(self.lost_reason)
        return f"{self.lost_reason}; the call may have been handled all the same"

    def use(self, transport: Transport, frames: Iterable[tuple[bytes, int | None]]) -> None:
        """The transport is open at last: what was sent until now, with its lanes, goes there."""
        if self.is_lost:  # given up meanwhile
            transport.close()
            return
        self._transport = transport
        for frame, lane in frames:
            transport.send(frame, lane)
        transport.attach(self)

    def break_off(self, reason: str) -> None:
        """As when this process dies: nothing more is sent, the other side loses the connection."""
        self._transport.break_off(reason)
        self.connection_lost(reason)

    def close(self) -> None:
        """Give the connection up."""
        self._transport.close()
        self.connection_lost("this side closed the connection")
