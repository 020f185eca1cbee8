"""Base of operators that call something for their input and do not wait for the answer.

Results leave a queue in the order of the calls, or in the order in which they are complete. No
result crosses a watermark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Task, TimerHandle
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from flinkray.state.descriptors import ListStateDescriptor
from flinkray.streaming.operators.operator import (
    OperatorContext,
    OperatorStateCapture,
    Output,
    StreamOperator,
)
from flinkray.streaming.records.elements import Block, Origin, Watermark, WatermarkStatus

_ON_THEIR_WAY: ListStateDescriptor[Any] = ListStateDescriptor("async-wait-operator")


class CallingOperator(StreamOperator, ABC):
    """Begins a call for each piece of its input, in another thread, and puts out the results of
    calls that are complete. When *capacity* calls are under way, the task waits, even in the middle
    of a batch, and puts out results. The inputs of unanswered calls are in checkpoints; a restored
    task calls again."""

    def __init__(self, capacity: int, *, is_ordered: bool) -> None:
        self._capacity = capacity
        self._is_ordered = is_ordered

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self._queue: AsyncQueue = OrderedQueue() if self._is_ordered else UnorderedQueue()
        self._settled: deque[AsyncCall] = deque()
        """Settled calls, which the calling thread appends and the task's thread takes."""
        self._is_mailed = False
        self._failure: BaseException | None = None

    # --- in the task's thread -----------------------------------------------------------------

    @abstractmethod
    def start(self, calls: list[AsyncCall]) -> None:
        """Begin these calls. Each ends with :meth:`settled`."""

    @abstractmethod
    def emit_results(self, calls: Sequence[AsyncCall]) -> None:
        """Put out the results of these calls, which are complete, in this order."""

    @abstractmethod
    def stored(self, call: AsyncCall) -> Any:
        """Return the call's input as checkpoints keep it."""

    @abstractmethod
    def restored(self, stored: Any) -> AsyncCall:
        """Return the call for an input that :meth:`stored` has returned."""

    def start_restored(self) -> None:
        """Begin the calls that the restored checkpoint has found unanswered."""
        kept = self.operator_state.list_state(_ON_THEIR_WAY).get()
        self.begin([self.restored(stored) for stored in kept])

    def begin(self, calls: list[AsyncCall]) -> None:
        """Begin calls, whatever number is under way."""
        for call in calls:
            self._queue.add(call)
        self.start(calls)

    def wait_for_room(self) -> int:
        """Wait until fewer calls than the capacity are under way. Returns how many may begin."""
        if not self._has_room():
            self.context.turn.wait_until(self._has_room)
        return self._capacity - len(self._queue)

    def _has_room(self) -> bool:
        if len(self._queue) >= self._capacity:
            self._put_out()
        return len(self._queue) < self._capacity

    def process_watermark(self, timestamp: int) -> None:
        self._queue.mark(Watermark(timestamp))
        self._put_out()

    def process_status(self, idle: bool) -> None:
        self._queue.mark(WatermarkStatus(idle))
        self._put_out()

    def finish(self) -> None:
        self.context.turn.wait_until(self._is_empty)

    def _is_empty(self) -> bool:
        self._put_out()
        return not self._queue

    def _mail(self) -> None:
        self._is_mailed = False
        self.context.turn.leave(self._put_out)

    def _put_out(self) -> None:
        """Put out the results that the queue gives out now. Raises the error of a failed call."""
        if self._failure is not None:
            raise self._failure
        settled, queue = self._settled, self._queue
        while settled:
            call = settled.popleft()
            if call.failure is not None:
                failed = iter([call.value])
                self.reading = Block([next(failed)], None, None, call.origin), failed
                raise call.failure
            queue.complete(call)
        ready: list[AsyncCall] = []
        while (following := queue.take()) is not None:
            if isinstance(following, AsyncCall):
                ready.append(following)
                continue
            self.emit_results(ready)
            ready = []
            if isinstance(following, Watermark):
                self.output.emit_watermark(following.timestamp)
            else:
                self.output.emit_status(following.idle)
        self.emit_results(ready)

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        kept = [self.stored(call) for call in self._queue.calls()]
        self.operator_state.list_state(_ON_THEIR_WAY).update(kept)
        return super().capture(checkpoint_id, since)

    # --- in the calling thread ----------------------------------------------------------------

    def settled(
        self, call: AsyncCall, results: list[Any], failure: BaseException | None = None
    ) -> None:
        """End a call with its results, or with the failure that the task's thread is to raise."""
        call.results, call.failure = results, failure
        self._settled.append(call)
        self._tell()

    def fail(self, error: BaseException) -> None:
        """Let the task fail with *error*."""
        self._failure = error
        self._tell()

    def _tell(self) -> None:
        """Make the task's thread put out results, because one is complete: send mail to the task,
        or only wake the task if earlier mail was not run yet."""
        if self._is_mailed:
            self.context.turn.wake_up()
        else:
            self._is_mailed = True
            self.context.turn.post(self._mail)


Mark = Watermark | WatermarkStatus


class AsyncCall:
    """A call of the asynchronous function for one record.
    The event loop's thread sets its outcome once: results or a failure."""

    __slots__ = (
        "failure", "is_complete", "is_settled", "key", "origin", "results", "segment", "task",
        "timer", "timestamp", "value",
    )  # fmt: skip

    def __init__(self, value: Any, timestamp: int | None, origin: Origin | None) -> None:
        self.value = value
        self.timestamp = timestamp
        self.origin = origin
        self.key: Any = None
        """Key of the record, on a keyed stream."""
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
    def add(self, call: AsyncCall) -> None: ...

    @abstractmethod
    def mark(self, mark: Mark) -> None:
        """Append a watermark or a change of the idle status, behind all records added before."""

    @abstractmethod
    def complete(self, call: AsyncCall) -> None:
        """Note that *call* has its results, so that :meth:`take` may return the call."""

    @abstractmethod
    def take(self) -> AsyncCall | Mark | None:
        """Remove and return the next call or mark (watermark or status). None if the next call is
        not complete yet, or the queue is empty."""

    @abstractmethod
    def calls(self) -> Iterator[AsyncCall]:
        """Yield the calls in the queue, in the order in which a restored task repeats them."""


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
    """The records between two marks (watermarks or changes of the idle status), and the mark behind
    them. The mark is None until it arrives."""

    __slots__ = ("complete", "mark", "pending")

    def __init__(self) -> None:
        self.pending: dict[AsyncCall, None] = {}
        self.complete: deque[AsyncCall] = deque()
        self.mark: Mark | None = None


class UnorderedQueue(AsyncQueue):
    """A queue that gives results out in the order in which they are complete.
    No result leaves before a mark (watermark or status) that came before its record, or after a
    mark that came after it."""

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
