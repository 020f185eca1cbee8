"""The calling side of a connection: sends requests, receives answers and notices of ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from flinkray.core.error_text import sendable
from flinkray.core.errors import (
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcSerializationError,
    RpcTimeoutError,
)
from flinkray.rpc.calls.metrics import MethodRecorder
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.rpc.calls.tracing import outgoing_trace
from flinkray.rpc.clock import time_of
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.codec import Packed
from flinkray.rpc.wire.envelope import (
    ASK,
    CONTROL_LANE,
    ENDED,
    MAX_CAUSE_BYTES,
    MAX_FRAME_SIZE,
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
    remember,
    unpack_answer,
)
from flinkray.rpc.wire.transport import OpeningTransport, Transport

logger = logging.getLogger(__name__)

_NONE = codec.encode(None)


class PendingAnswer:
    """A request that was sent and waits for its answer."""

    __slots__ = (
        "_connection",
        "_recorder",
        "_sequence",
        "begun",
        "future",
        "is_over",
        "timeout",
        "what",
    )

    def __init__(
        self,
        connection: ClientConnection,
        sequence: int,
        what: str,
        timeout: float | None,
        begun: float,
        future: asyncio.Future[Any],
        recorder: MethodRecorder,
    ) -> None:
        self._connection = connection
        self._recorder = recorder
        self._sequence = sequence
        self.what = what
        """The name of the call in error messages."""
        self.timeout = timeout
        self.begun = begun
        """The time at which the request was sent, in the loop's time."""
        self.future = future
        """The result for the caller.

        Deleted once done, as the deadlines keep this object for longer than its caller.
        """
        self.is_over = False

    def expire(self) -> None:
        self.fail(RpcTimeoutError(f"{self.what}: no answer within {self.timeout:g} s"))

    def give_up(self) -> None:
        """Stop waiting for the answer: a late answer is ignored, and the deadline has no effect."""
        self.is_over = True
        self._connection.forget(self._sequence)

    def answered(self, at: float) -> None:
        self.is_over = True
        seconds = at - self.begun
        self._recorder.seconds += seconds
        self._recorder.buckets[int(seconds * 1e6).bit_length()] += 1

    def succeed(self, value: object) -> None:
        self.future.set_result(value)
        del self.future

    def fail(self, error: Exception) -> None:
        self.give_up()
        if not self.future.done():
            self._recorder.failures += 1
            self.future.set_exception(error)
        del self.future


class Resolution(PendingAnswer):
    """A pending request for the number by which the other process knows an endpoint.

    When the answer arrives, the number is added to ``followed`` (the endpoints whose end will be
    reported) before the caller runs again, because the report of the end may arrive in between.
    """

    __slots__ = ()

    def succeed(self, value: object) -> None:
        match value:
            case (int(number), str()):
                self._connection.followed.add(number)
        super().succeed(value)


class ClientConnection:
    """A connection to one incarnation of a process, that is, one run of it; a lost connection stays
    lost.

    Proxies then use another connection to the same incarnation:
    :mod:`flinkray.rpc.calls.connection_pool`.
    """

    def __init__(
        self,
        process_name: str,
        incarnation: str,
        transport: Transport,
        deadlines: PatientDeadlines,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        self.process_name = process_name
        self.incarnation = incarnation
        """The incarnation of the process at the other end."""
        self.lost_reason: str | None = None
        """Why the connection was lost; None while the connection is not lost."""
        self.peer_died = False
        """Whether the connection was lost because Ray reported the death of the process."""
        self.where: object = None
        """Address of this incarnation, which the service needs to reopen a connection to it.

        None: the service never reopens a connection to this incarnation.
        """
        self.failed_openings = 0
        """How many attempts in a row to reopen a connection to this incarnation have failed."""
        self.replaces_lost: str | None = None
        """Why the replaced connection was lost; None once this connection is open."""
        self.retry_at = 0.0
        """The loop time before which no other attempt to reconnect is made."""
        self.followed: set[int] = {CONTROL_LANE}
        """Numbers of the endpoints that were resolved and whose end was not reported.

        Numbers are never used twice, so a resolved number that is missing here belongs to an ended
        endpoint. Ended endpoints take no room.
        """
        self.ended_with: dict[int, str] = {}
        """The reasons why endpoints failed, by endpoint number; only the newest failures."""
        self.refused_frames = 0
        """How many received frames were refused because they were invalid."""
        self._transport = transport
        self._deadlines = deadlines
        self._max_frame_size = max_frame_size
        self._loop = asyncio.get_running_loop()
        self._time = time_of(self._loop)
        self._sequence = 0
        self._pending: dict[int, PendingAnswer] = {}
        self._listeners: dict[int, dict[object, Callable[[str], None]]] = {}
        self._lost_listeners: list[Callable[[], None]] = []

    @property
    def is_lost(self) -> bool:
        return self.lost_reason is not None

    def end_of(self, target: int) -> str | None:
        """Return why endpoint number *target* cannot be reached any more; None: it can be
        reached."""
        return self.ended_with.get(target, ENDED) if self.has_ended(target) else self.lost_reason

    def has_ended(self, target: int) -> bool:
        """Return whether endpoint number *target* is known to have terminated. Its number must have
        been resolved over this connection."""
        return target not in self.followed

    # --- requests -----------------------------------------------------------------------------

    async def resolve(
        self, endpoint_id: str, gateway: str | None, timeout: float
    ) -> tuple[int, str]:
        """Return the number and the full id of the endpoint with this id.
        The number belongs to this one endpoint object for good.

        Raises:
            RpcConnectionError: there is no such endpoint.
            HandshakeError: the endpoint does not implement *gateway* (a type name).
        """
        what = f"{self.process_name}/{endpoint_id}"
        payload = _NONE if gateway is None else codec.encode(gateway)
        answer = await self._request(RESOLVE, what, payload, timeout, endpoint_id, Resolution)
        match answer:
            case (int(number), str(full_id)):
                return number, full_id
        raise RpcSerializationError(f"{what}: unexpected answer {answer!r}")

    @property
    def requests(self) -> int:
        """The number of requests and tells that were sent over this connection."""
        return self._sequence

    @property
    def is_needed(self) -> bool:
        """Whether something depends on the connection, so that it must not be closed as idle.

        True while a caller waits for an answer, a watch waits for an end, or frames are unsent.
        """
        is_watched = any(self._listeners.values())
        return bool(self._pending) or is_watched or self._transport.has_unsent

    def follow(self, numbers: Iterable[int]) -> None:
        """Ask the process to report the ends of the endpoints *numbers* over this connection."""
        for number in numbers:
            if number in self.followed or self.is_lost:
                continue
            self.followed.add(number)
            what = f"{self.process_name}: endpoint number {number}"
            answer = self.ask(what, number, "", None, _NONE, None, MethodRecorder(), RESOLVE)
            answer.future.add_done_callback(partial(self._followed, number))

    def _followed(self, number: int, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and isinstance(answer.exception(), RpcConnectionError):
            self._endpoint_ended(number, str(answer.exception()))

    async def stop_process(self) -> None:
        """Ask the process to close its endpoints and end; return when it is about to end."""
        await self._request(STOP, self.process_name, _NONE, None)

    async def ping(self, timeout: float) -> bool:
        """Wait for the process's answer to a ping; return whether any endpoint lives in the
        process.

        No endpoint lives in a process that is starting or ending.
        """
        return bool(await self._request(PING, self.process_name, _NONE, timeout))

    async def _request(
        self,
        kind: int,
        what: str,
        payload: bytes,
        timeout: float | None,
        method: str = "",
        answer_type: type[PendingAnswer] = PendingAnswer,
    ) -> Any:
        recorder = MethodRecorder()  # its figures are not used
        answer = self.ask(
            what, CONTROL_LANE, method, None, payload, timeout, recorder, kind, answer_type
        )
        try:
            return await answer.future
        except asyncio.CancelledError:
            answer.give_up()
            raise

    def ask(
        self,
        what: str,
        target: int,
        method: str,
        token: bytes | None,
        payload: Packed,
        timeout: float | None,
        recorder: MethodRecorder,
        kind: int = ASK,
        answer_type: type[PendingAnswer] = PendingAnswer,
    ) -> PendingAnswer:
        """Send a request and return the pending answer.

        A caller that is cancelled while waiting must call :meth:`PendingAnswer.give_up`. *what* is
        the name of the call in error messages.
        """
        sequence = self._send(what, kind, target, method, token, timeout, payload)
        begun = self._time()
        future = self._loop.create_future()
        answer = answer_type(self, sequence, what, timeout, begun, future, recorder)
        self._pending[sequence] = answer
        if timeout is not None:
            self._deadlines.begin(begun, timeout, answer)
        return answer

    def tell(
        self, what: str, target: int, method: str, token: bytes | None, payload: Packed
    ) -> None:
        """Send a call that gets no answer. The caller must then await :meth:`drain` if
        :attr:`is_congested`."""
        self._send(what, TELL, target, method, token, None, payload)

    @property
    def is_congested(self) -> bool:
        """Whether frames are sent faster than the other side takes them."""
        return self._transport.is_congested

    async def drain(self, what: str) -> None:
        """Wait until the connection is no longer congested.

        Raises:
            RecipientUnreachableError: the connection was lost during the wait.
        """
        await self._transport.drain()
        if self.lost_reason is not None:
            raise RecipientUnreachableError(f"{what}: {self._lost_story()}")

    def _send(
        self,
        what: str,
        kind: int,
        target: int,
        method: str,
        token: bytes | None,
        timeout: float | None,
        payload: Packed,
    ) -> int:
        if self.lost_reason is not None or target not in self.followed:
            raise RecipientUnreachableError(f"{what}: {self.end_of(target)}")
        sequence = self._sequence = self._sequence + 1
        trace = outgoing_trace()
        parts = (
            PROTOCOL_VERSION, kind, sequence, target, method, token, timeout, trace, payload
        )  # fmt: skip
        try:
            frame = frame_of(parts, self._max_frame_size)
        except FrameTooLargeError as error:
            raise FrameTooLargeError(f"{what}: {error}") from None
        if isinstance(frame, bytes):
            self._transport.send(frame, target)
        else:
            self._transport.send_parts(frame, target)
        return sequence

    def forget(self, sequence: int) -> None:
        """Stop waiting for the answer to a request. Called by :class:`PendingAnswer`."""
        self._pending.pop(sequence, None)

    # --- answers ------------------------------------------------------------------------------

    def frame_received(self, frame: bytes | memoryview) -> None:
        try:
            _, kind, sequence, payload = unpack_answer(frame)
        except RpcSerializationError as error:
            self.frame_refused(str(error))
            return
        if kind == TERMINATED:
            self._endpoint_ended(sequence, _reason_in(payload))
            return
        answer = self._pending.pop(sequence, None)
        if answer is None:
            return  # its caller does not wait any more
        answer.answered(self._time())
        if answer.future.done():
            return
        try:
            value = codec.decode(payload)
        except RpcSerializationError as error:
            answer.fail(RpcSerializationError(f"{answer.what}: the answer: {error}"))
            return
        if kind == RESULT:
            answer.succeed(value)
        elif isinstance(value, Exception):
            if isinstance(value, RecipientUnreachableError) and str(value).startswith(ENDED):
                value = RecipientUnreachableError(f"{answer.what}: {value}")
            answer.fail(value)
        else:
            self.frame_refused(f"{Kind(kind).name} without an error")
            answer.fail(RpcSerializationError(f"{answer.what}: the answer makes no sense"))

    def frame_refused(self, reason: str) -> None:
        self.refused_frames += 1
        logger.warning("refused a frame from %s: %s", self.process_name, reason)

    def _endpoint_ended(self, number: int, reason: str) -> None:
        if number in self.followed and number != CONTROL_LANE:
            self.followed.discard(number)
            remember(self.ended_with, number, reason)
        for callback in tuple(self._listeners.pop(number, {}).values()):
            callback(reason)

    # --- ends ---------------------------------------------------------------------------------

    def on_end_of(self, target: int, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call *callback* once, with the reason, when the endpoint ends or the connection is lost.

        If *target* can already not be reached, *callback* is called at once. Returns a function
        that withdraws the callback.
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

    async def until_end_of(self, target: int) -> str:
        """Wait until the endpoint has terminated or the connection is lost; return the reason."""
        ended: asyncio.Future[str] = self._loop.create_future()

        def set_ended(reason: str) -> None:
            if not ended.done():
                ended.set_result(reason)

        release = self.on_end_of(target, set_ended)
        try:
            return await ended
        finally:
            release()

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Register *callback* to be called when the connection is lost."""
        self._lost_listeners.append(callback)

    def connection_lost(self, reason: str) -> None:
        if self.lost_reason is not None:
            return
        self.lost_reason = reason
        story = self._lost_story()
        for answer in tuple(self._pending.values()):
            answer.fail(RecipientUnreachableError(f"{answer.what}: {story}"))
        listeners, self._listeners = self._listeners, {}
        for callbacks in listeners.values():
            for callback in tuple(callbacks.values()):
                callback(reason)
        for lost in self._lost_listeners:
            lost()

    def _lost_story(self) -> str:
        if isinstance(self._transport, OpeningTransport):
            return str(self.lost_reason)
        return f"{self.lost_reason}; the call may have been handled all the same"

    def use(self, transport: Transport, frames: Iterable[tuple[bytes, int | None]]) -> None:
        """Send all frames over *transport*, which is now open.

        *frames* are (frame, lane) that were queued until now, and are sent first. A frame keeps its
        order only among the frames of its lane (usually one lane per endpoint).
        """
        if self.is_lost:  # it was closed while the transport was being opened
            transport.close()
            return
        self._transport = transport
        for frame, lane in frames:
            transport.send(frame, lane)
        transport.attach(self)

    def break_off(self, reason: str) -> None:
        """Drop the connection as if this process died.

        Nothing more is sent, and the other side loses the connection too.
        """
        self._transport.break_off(reason)
        self.connection_lost(reason)

    def close(self, reason: str = "this side closed the connection") -> None:
        """Close the connection; *reason* is reported to pending calls and listeners."""
        self._transport.close()
        self.connection_lost(reason)


def _reason_in(notice: Payload) -> str:
    """Return the text in a notice of an endpoint's end; ``ENDED`` if the notice is invalid."""
    try:
        reason = codec.decode(notice)
    except RpcSerializationError:
        return ENDED
    if type(reason) is not str or not reason.startswith(ENDED):
        return ENDED
    return sendable(reason, MAX_CAUSE_BYTES + len(ENDED) + 2)
