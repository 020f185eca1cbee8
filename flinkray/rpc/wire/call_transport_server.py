"""The called side of transports over calls: see :mod:`flinkray.rpc.wire.call_transport`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack

from flinkray.rpc.wire.call_transport import NO_BATCH, NOBODY, WINDOW, CarriedStream
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE

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
        """Take the frames of a request, and return a future of the answer to the request."""
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
        """Answer one call that a :class:`CallingStream` of another process has made."""
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
