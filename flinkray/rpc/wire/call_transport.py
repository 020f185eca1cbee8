"""A transport over another system's calls, for when no connection can be opened.

The calling side sends its frames in numbered *requests*; each request gets one answer, with frames
of the called side. The called side keeps a request open until it has frames to send, and the
calling side always has one request open. So an ask takes one request (its answer travels on the
request that was open before), and the end of an endpoint is reported at once.

Calls may start out of order and twice, as Ray's calls do: the numbers put requests and answers in
order, and a repeated request gets its earlier answer again. When a call fails, the connection ends.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc.time_limit import retrieve
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE
from flinkray.rpc.wire.frames import MAX_HANDSHAKE_FRAME
from flinkray.rpc.wire.transport import WRITE_HIGH_WATER, FrameReceiver, Transport

WINDOW = 8
"""How many requests the calling side has open at once."""

NO_BATCH = 0
"""A batch number that means: the answer has no frames."""

NOBODY = -1
"""A batch number that means: the called side does not know the connection."""


class CarriedStream(Transport):
    """Common base of both sides of a transport over calls. Until :meth:`attach`, the handshake
    reads received frames one by one with :meth:`receive`."""

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE) -> None:
        super().__init__(asyncio.get_running_loop())
        self._max_frame_size = max_frame_size
        self._receiver: FrameReceiver | None = None
        self._inbox: deque[bytes] = deque()
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._outbox: deque[bytes] = deque()
        self._outbox_size = 0
        self._is_flushing = False
        self._lost: str | None = None

    async def receive(self) -> bytes:
        """Return the next frame of the handshake; RpcConnectionError if the connection ended."""
        while not self._inbox:
            if self._lost is not None:
                raise RpcConnectionError(self._lost)
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._inbox.popleft()

    def attach(self, receiver: FrameReceiver) -> None:
        self._receiver = receiver
        self._read()
        if self._lost is not None and self._receiver is not None:
            self._receiver = None
            receiver.connection_lost(self._lost)

    def send(self, frame: bytes, lane: int | None = None) -> None:
        if self._lost is not None:
            return
        self._outbox.append(frame)
        self._outbox_size += len(frame)
        if self._outbox_size > WRITE_HIGH_WATER:
            self._hold_senders()
        self._flush_soon()

    @property
    def has_unsent(self) -> bool:
        return bool(self._outbox)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._read()
        self._flush_soon()

    def abort(self, reason: str) -> None:
        """End the connection at once, and report *reason* to this side's receiver."""
        self._end(reason)

    def break_off(self, reason: str) -> None:
        self._receiver = None
        self._end(reason)

    # --- for the two sides --------------------------------------------------------------------

    @abstractmethod
    def _flush(self) -> None:
        """Send the queued frames, as far as a call or an open request can carry them now."""

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self._flush()

    def _take_batch(self) -> list[bytes]:
        """Remove and return the frames for the next call: as many small frames as fit, or one large
        frame.
        """
        batch: list[bytes] = []
        size = 0
        while self._outbox and (not batch or size + len(self._outbox[0]) <= WRITE_HIGH_WATER):
            frame = self._outbox.popleft()
            size += len(frame)
            batch.append(frame)
        self._outbox_size -= size
        if self._congested is not None and self._outbox_size <= WRITE_HIGH_WATER // 2:
            self._let_senders_go()
        return batch

    def _frames_came(self, frames: tuple[bytes, ...] | list[bytes]) -> None:
        limit = MAX_HANDSHAKE_FRAME if self._receiver is None else self._max_frame_size
        for frame in frames:
            if type(frame) is not bytes or len(frame) > limit:
                self.abort(f"what came is no frame of at most {limit} bytes")
                return
            self._inbox.append(frame)
        self._read()

    def _read(self) -> None:
        if self._receiver is None:
            self._wake()
        while self._inbox and not self._is_paused and self._receiver is not None:
            self._receiver.frame_received(self._inbox.popleft())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._outbox.clear()
        self._let_senders_go()
        self._wake()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.connection_lost(reason)


class CallingStream(CarriedStream):
    """The side of a transport over calls that makes the calls."""

    def __init__(
        self,
        connection_id: bytes,
        call: Callable[[bytes], asyncio.Future[bytes]],
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        """Create the calling side, which has not called yet.

        *call* sends a request to the other side and returns a future of the answer. The other side
        is a :class:`~flinkray.rpc.wire.call_transport.Carrier`. *call* raises nothing, but
        its future may fail.
        """
        super().__init__(max_frame_size)
        self._connection_id = connection_id
        self._call = call
        self._number = 0
        self._open: dict[int, asyncio.Future[bytes]] = {}
        self._next_batch = 1
        self._early: dict[int, tuple[tuple[bytes, ...], str | None]] = {}
        self._is_begun = False
        """Whether the other side knows this connection; until then only one call may be open."""

    def close(self) -> None:
        if self._lost is None:
            self._request(list(self._outbox), is_last=True)
            self._is_begun = False
            self._end("the connection was closed")

    def _end(self, reason: str) -> None:
        if self._lost is None and self._is_begun:
            self._request([], is_last=True)
        super()._end(reason)

    def _flush(self) -> None:
        if self._lost is not None:
            return
        window = WINDOW if self._is_begun else 1
        while self._outbox and len(self._open) < window:
            self._request(self._take_batch())
        if not self._open and self._is_begun:
            self._request([])

    def _request(self, frames: list[bytes], *, is_last: bool = False) -> None:
        self._number += 1
        oldest = next(iter(self._open), self._number)
        request = msgpack.packb((self._connection_id, self._number, oldest, is_last, frames))
        future = self._call(request)
        if is_last:
            future.add_done_callback(retrieve)
            return
        self._open[self._number] = future
        number = self._number
        future.add_done_callback(lambda answer: self._answered(number, answer))

    def _answered(self, number: int, future: asyncio.Future[bytes]) -> None:
        del self._open[number]
        error = None if future.cancelled() else future.exception()
        if self._lost is not None:
            return
        if future.cancelled() or error is not None:
            self._is_begun = False  # the other side is gone: send no last request
            self.abort(f"the call that carried the connection failed: {_told(error)}")
            return
        self._is_begun = True
        batch, frames, end = msgpack.unpackb(future.result(), use_list=False)
        if batch == NOBODY:
            self._is_begun = False
            self.abort(end)
            return
        if batch != NO_BATCH:
            self._early[batch] = (frames, end)
        while self._next_batch in self._early and self._lost is None:
            frames, end = self._early.pop(self._next_batch)
            self._next_batch += 1
            self._frames_came(frames)
            if end is not None:
                self._is_begun = False
                self.abort(end)
        self._flush_soon()


def _told(error: BaseException | None) -> str:
    """Return a text of an error's type and first line, as Ray's errors have pages of text."""
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"


MAX_OPEN = 4
"""How many requests stay unanswered while there are no frames for the other side."""

MAX_AHEAD = 8 * WINDOW
"""How many numbers ahead a request may be; the calling side never has so many open."""

ROUND = 20.0
"""Seconds after which an open request is answered in any case."""

SILENCE = 30.0
"""Seconds without any request after which the connection counts as lost."""

_CLOSED = "the connection was closed by the other side"
_EMPTY = (NO_BATCH, (), None)
_NOTHING: bytes = msgpack.packb(_EMPTY)


class AnsweringStream(CarriedStream):
    """The side of a transport over calls that answers the calls."""

    def __init__(
        self, on_forgotten: Callable[[], None], max_frame_size: int = MAX_FRAME_SIZE
    ) -> None:
        """Create the called side of a new connection.

        *on_forgotten* is called some time after the end, when no more requests are expected.
        """
        super().__init__(max_frame_size)
        self._on_forgotten = on_forgotten
        self._next_request = 1
        self._early: dict[int, tuple[bool, tuple[bytes, ...]]] = {}
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._answers: dict[int, bytes] = {}
        """The answers that the other side may not have received yet, by request number."""
        self._batch = 0
        self._last_heard = self._loop.time()
        self._is_end_told = False
        self._next_round = self._loop.time() + ROUND
        self._loop.call_at(self._next_round, self._round)

    def answer(self, request: tuple[Any, ...]) -> asyncio.Future[bytes]:
        """Take the frames of a request, and return a future of the answer, which carries frames
        back."""
        _, number, oldest, is_last, frames = request
        self._last_heard = self._loop.time()
        for known in [known for known in self._answers if known < oldest]:
            del self._answers[known]
        waiting = self._waiting.get(number)
        if waiting is not None:  # the call came twice
            return waiting
        future: asyncio.Future[bytes] = self._loop.create_future()
        if number < self._next_request or number in self._early:
            future.set_result(self._answers.get(number, _NOTHING))
            return future
        self._waiting[number] = future
        if number < self._next_request + MAX_AHEAD:
            self._early[number] = (is_last, frames)
        else:
            self._end(f"request {number} came, and {self._next_request} has not")
        while self._next_request in self._early and self._lost is None:
            is_last, frames = self._early.pop(self._next_request)
            self._next_request += 1
            self._frames_came(frames)
            if is_last:
                self._end(_CLOSED)
        if self._outbox or self._lost is not None or len(self._waiting) > MAX_OPEN:
            self._flush_soon()
        return future

    def close(self) -> None:
        last = tuple(self._outbox)
        self._end(_CLOSED)
        self._outbox.extend(last)
        self._flush()

    def _end(self, reason: str) -> None:
        if self._lost is None:
            super()._end(reason)
            self._flush_soon()

    def _flush(self) -> None:
        while self._outbox and self._waiting:
            self._answer_next(self._take_batch())
        if self._lost is not None:
            if self._waiting and not self._is_end_told:
                self._is_end_told = True
                self._answer_next([], self._lost)
            while self._is_end_told and self._waiting:
                self._answer(self._oldest(), _EMPTY)
        while len(self._waiting) > MAX_OPEN and not self._is_paused:
            self._answer(self._oldest(), _EMPTY)

    def _answer_next(self, frames: list[bytes], end: str | None = None) -> None:
        self._batch += 1
        self._answer(self._oldest(), (self._batch, frames, end))

    def _oldest(self) -> int:
        return min(self._waiting)

    def _answer(self, number: int, answer: tuple[Any, ...]) -> None:
        self._answers[number] = data = msgpack.packb(answer)
        waiting = self._waiting.pop(number)
        if not waiting.done():
            waiting.set_result(data)

    def _round(self) -> None:
        now = self._loop.time()
        self._last_heard += (
            now - self._next_round
        )  # time in which this process stood still is no silence of the peer
        if self._is_paused:  # the other side may have reached its limit of open requests
            self._last_heard = now
        elif now - self._last_heard > SILENCE:
            self._end(f"nothing came for {SILENCE:g} s")
            self._on_forgotten()
            return
        self._next_round = now + ROUND
        self._loop.call_at(self._next_round, self._round)
        if self._waiting and not self._is_paused:
            self._answer(self._oldest(), _EMPTY)


class Carrier:
    """Answers the calls that arrive at this process for its transports over calls.
    Each call is passed to the :class:`AnsweringStream` of its connection.
    """

    def __init__(
        self, welcome: Callable[[AnsweringStream], None], frame_limit: Callable[[], int]
    ) -> None:
        """Create a carrier without connections.

        *welcome* takes each new stream. *frame_limit* returns the largest size of a frame in bytes,
        for a new stream.
        """
        self._welcome = welcome
        self._frame_limit = frame_limit
        self._streams: dict[bytes, AnsweringStream] = {}

    async def carry(self, request: bytes) -> bytes:
        """Handle one call that a :class:`CallingStream` of another process has made; return the
        answer."""
        try:
            parts = msgpack.unpackb(request, use_list=False)
            connection_id, number, _, is_last, _ = parts
        except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
            return _refusal("not a request of a carried connection")
        if [type(part) for part in parts] != [bytes, int, int, bool, tuple]:
            return _refusal("not a request of a carried connection")
        stream = self._streams.get(connection_id)
        if stream is None:
            if number != 1 or is_last:
                return _refusal(_CLOSED)
            stream = AnsweringStream(lambda: self._forget(connection_id), self._frame_limit())
            self._streams[connection_id] = stream
            self._welcome(stream)
        return await stream.answer(parts)

    def _forget(self, connection_id: bytes) -> None:
        self._streams.pop(connection_id, None)


def _refusal(reason: str) -> bytes:
    return bytes(msgpack.packb((NOBODY, (), reason)))
