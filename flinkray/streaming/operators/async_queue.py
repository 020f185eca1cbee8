"""Queues of the records that wait for an asynchronous function, and of the marks between them.

Results leave a queue in the order of the records, or in the order in which they are complete. No
result crosses a watermark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Task, TimerHandle
from collections import deque
from collections.abc import Iterator
from typing import Any

from flinkray.streaming.records.elements import Origin, Watermark, WatermarkStatus

Mark = Watermark | WatermarkStatus


class AsyncCall:
    """A call of the asynchronous function for one record.
    The event loop's thread settles the call once, with results or with a failure."""

    __slots__ = (
        "failure", "is_complete", "is_settled", "origin", "results", "segment", "task", "timer",
        "timestamp", "value",
    )  # fmt: skip

    def __init__(self, value: Any, timestamp: int | None, origin: Origin | None) -> None:
        self.value = value
        self.timestamp = timestamp
        self.origin = origin
        self.results: list[Any] = []
        self.failure: BaseException | None = None
        self.is_settled = False
        """Whether the call has results or a failure. Set by the event loop's thread."""
        self.is_complete = False
        """Whether the queue knows of the results. Set by :class:`OrderedQueue`."""
        self.segment: _Segment | None = None
        self.task: Task[None] | None = None
        self.timer: TimerHandle | None = None


class AsyncQueue(ABC):
    """Base class of both queues of an asynchronous operator.
    The length is the number of records that were not taken out yet."""

    def __init__(self) -> None:
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @abstractmethod
    def add(self, call: AsyncCall) -> None:
        """Append *call*, the call of the function for a record."""

    @abstractmethod
    def mark(self, mark: Mark) -> None:
        """Append a watermark or a status, behind all records that were added before."""

    @abstractmethod
    def complete(self, call: AsyncCall) -> None:
        """Note that a call has its results, so that :meth:`take` may return the call."""

    @abstractmethod
    def take(self) -> AsyncCall | Mark | None:
        """Remove and return the next record or mark. None if the next one is not complete yet."""

    @abstractmethod
    def calls(self) -> Iterator[AsyncCall]:
        """Yield the calls in the queue, in an order in which a restore may repeat them."""


class OrderedQueue(AsyncQueue):
    """A queue that gives results out in the order of the records."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[AsyncCall | Mark] = deque()

    def add(self, call: AsyncCall) -> None:
        self._waiting.append(call)
        self._length += 1

    def mark(self, mark: Mark) -> None:
        waiting = self._waiting
        if waiting and isinstance(mark, Watermark) and isinstance(waiting[-1], Watermark):
            waiting[-1] = mark  # nothing is between the two
        else:
            waiting.append(mark)

    def complete(self, call: AsyncCall) -> None:
        call.is_complete = True

    def take(self) -> AsyncCall | Mark | None:
        if not self._waiting:
            return None
        first = self._waiting[0]
        if isinstance(first, AsyncCall):
            if not first.is_complete:
                return None
            self._length -= 1
        return self._waiting.popleft()

    def calls(self) -> Iterator[AsyncCall]:
        return (waiting for waiting in self._waiting if isinstance(waiting, AsyncCall))


class _Segment:
    """The records between two marks, and the mark behind them. The mark is None until it comes."""

    __slots__ = ("complete", "mark", "pending")

    def __init__(self) -> None:
        self.pending: dict[AsyncCall, None] = {}
        self.complete: deque[AsyncCall] = deque()
        self.mark: Mark | None = None


class UnorderedQueue(AsyncQueue):
    """A queue that gives results out in the order in which they are complete.
    No result leaves before an earlier mark, or after a later one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._segments = deque([_Segment()])

    def add(self, call: AsyncCall) -> None:
        call.segment = self._segments[-1]
        call.segment.pending[call] = None
        self._length += 1

    def mark(self, mark: Mark) -> None:
        segments = self._segments
        last = segments[-1]
        if len(segments) > 1 and not last.pending and not last.complete:
            before = segments[-2]
            if isinstance(mark, Watermark) and isinstance(before.mark, Watermark):
                before.mark = mark  # nothing is between the two
                return
        last.mark = mark
        segments.append(_Segment())

    def complete(self, call: AsyncCall) -> None:
        assert call.segment is not None
        del call.segment.pending[call]
        call.segment.complete.append(call)

    def take(self) -> AsyncCall | Mark | None:
        first = self._segments[0]
        if first.complete:
            self._length -= 1
            return first.complete.popleft()
        if first.pending or first.mark is None:
            return None
        self._segments.popleft()
        return first.mark

    def calls(self) -> Iterator[AsyncCall]:
        for segment in self._segments:
            yield from segment.complete
            yield from segment.pending
