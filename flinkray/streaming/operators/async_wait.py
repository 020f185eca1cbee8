"""The operator for asynchronous functions: many records at once, in a thread with an event loop.

Results leave a queue in the order of the records, or in the order in which they are complete. No
result crosses a watermark.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from asyncio import Task, TimerHandle
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from flinkray.core.durations import milliseconds
from flinkray.core.values import IMMUTABLE
from flinkray.state.descriptors import ListStateDescriptor
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.functions.async_functions import AsyncFunctionDescriptor
from flinkray.streaming.operators.collector import Collector
from flinkray.streaming.operators.operator import (
    OperatorContext,
    OperatorStateCapture,
    Output,
    StreamOperator,
)
from flinkray.streaming.records.elements import Block, Origin, Watermark, WatermarkStatus
from flinkray.streaming.records.row import Row

_ON_THEIR_WAY: ListStateDescriptor[Any] = ListStateDescriptor("async-wait-operator")
_NO_LIST = (str, bytes, bytearray, Mapping, Row)
"""Iterable types that count as a single value and not as a list of results."""


class AsyncWaitOperator(StreamOperator):
    """Passes each record to a coroutine and puts out the results that the coroutine returns.
    When *capacity* records are in progress, the task waits, even in the middle of a batch, and puts
    out results. A thread with an event loop calls all methods of the function. Coroutines get
    copies of records, because a retry, a time-out and a restore need the original. Time-outs and
    retries use the loop's clock."""

    def __init__(self, descriptor: AsyncFunctionDescriptor) -> None:
        self._descriptor = descriptor
        self._function = descriptor.async_function
        self._capacity = descriptor.capacity
        self._timeout = milliseconds(descriptor.timeout) / 1000
        self._thread: EventLoopThread | None = None

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self._own = context.own
        # Results are copied when they arrive: nobody else can change the results in the queue.
        self._results = Collector(replace(context, object_reuse=True), output)
        modes = AsyncFunctionDescriptor.OutputMode
        ordered = self._descriptor.output_mode is modes.ORDERED
        self._queue: AsyncQueue = OrderedQueue() if ordered else UnorderedQueue()
        self._settled: deque[AsyncCall] = deque()
        """Settled calls, which the event loop's thread appends and the task's thread takes."""
        self._is_mailed = False
        self._failure: BaseException | None = None

    def open(self) -> None:
        predicate = self._descriptor.async_retry_strategy.get_retry_predicate()
        self._retries_result = predicate.result_predicate()
        self._retries_exception = predicate.exception_predicate()
        self._running = 0
        self._waiting: deque[AsyncCall] = deque()
        self._is_closing = False
        self._thread = EventLoopThread(f"flinkray-async {self.context.task_name}", self._fail)
        self._thread.call(self._function.open, self.runtime_context())
        restored = [
            AsyncCall(value, timestamp, None)
            for value, timestamp in self.operator_state.list_state(_ON_THEIR_WAY).get()
        ]
        self._begin(restored)

    # --- in the task's thread -----------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        values, times, origin = block.values, block.timestamps, block.origin
        begin = 0
        while begin < len(values):
            if not self._has_room():
                self.context.turn.wait_until(self._has_room)
            end = min(len(values), begin + self._capacity - len(self._queue))
            stamps: Sequence[Any] = [None] * (end - begin) if times is None else times[begin:end]
            self._begin(
                [
                    AsyncCall(value, timestamp, origin)
                    for value, timestamp in zip(values[begin:end], stamps, strict=True)
                ]
            )
            begin = end

    def _begin(self, calls: list[AsyncCall]) -> None:
        assert self._thread is not None
        for call in calls:
            self._queue.add(call)
        self._thread.do(self._start, calls)

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
        results = self._results
        before: AsyncCall | None = None
        while (ready := queue.take()) is not None:
            if isinstance(ready, AsyncCall):
                if before is None or not _go_together(before, ready):
                    results.flush()
                    results.begin(ready.origin)
                results.add(ready.results, ready.timestamp)
                before = ready
                continue
            results.flush()
            if isinstance(ready, Watermark):
                self.output.emit_watermark(ready.timestamp)
            else:
                self.output.emit_status(ready.idle)
        results.flush()

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._is_closing = True
            thread.end(self._function.close)

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        self.operator_state.list_state(_ON_THEIR_WAY).update(
            [(call.value, call.timestamp) for call in self._queue.calls()]
        )
        return super().capture(checkpoint_id, since)

    # --- in the event loop's thread -----------------------------------------------------------

    def _start(self, calls: Iterable[AsyncCall]) -> None:
        for call in calls:
            if self._running < self._capacity:
                self._run(call)
            else:  # a restore may bring more records than may run at once
                self._waiting.append(call)

    def _run(self, call: AsyncCall) -> None:
        loop = asyncio.get_running_loop()
        self._running += 1
        if self._timeout > 0:
            call.timer = loop.call_later(self._timeout, self._time_out, call)
        call.task = loop.create_task(self._attempt(call))

    async def _attempt(self, call: AsyncCall) -> None:
        try:
            self._settle(call, await self._invoke(call.value))
        except asyncio.CancelledError as error:
            failure = RuntimeError("async_invoke was cancelled before its time was over")
            failure.__cause__ = error
            self._settle(call, [], failure)
        except BaseException as error:  # noqa: BLE001 - the task's thread raises it again
            self._settle(call, [], error)

    async def _invoke(self, value: Any) -> list[Any]:
        invoke, strategy = self._function.async_invoke, self._descriptor.async_retry_strategy
        on_result, on_exception = self._retries_result, self._retries_exception
        for attempt in count(1):
            try:
                results = await invoke(self._own(value))
            except Exception as error:
                if on_exception is None or not on_exception(error):
                    raise
                if not strategy.can_retry(attempt):
                    raise
            else:
                if results is None or on_result is None or not on_result(results):
                    break
                if not strategy.can_retry(attempt):
                    break
            await asyncio.sleep(strategy.get_backoff_time_millis(attempt) / 1000)
        return self._listed(results, "async_invoke")

    def _time_out(self, call: AsyncCall) -> None:
        task, call.task = call.task, None
        if task is not None:
            task.cancel()
        try:
            results = self._listed(self._function.timeout(self._own(call.value)), "timeout")
        except BaseException as error:  # noqa: BLE001 - the task's thread raises it again
            self._settle(call, [], error)
        else:
            self._settle(call, results)

    def _listed(self, results: Any, method: str) -> list[Any]:
        if isinstance(results, Iterable) and not isinstance(results, _NO_LIST):
            own = self._own
            return [result if type(result) in IMMUTABLE else own(result) for result in results]
        name = f"{type(self._function).__qualname__}.{method}"
        if results is None:
            raise StreamError(
                "The result of AsyncFunction cannot be none, and that of "
                f"{name} is: return a list of results, which may be empty"
            )
        raise StreamError(
            f"The result of AsyncFunction should be of list type, and {name} has returned "
            f"{text_of(results)}: return a list of results, also of one"
        )

    def _settle(
        self, call: AsyncCall, results: list[Any], failure: BaseException | None = None
    ) -> None:
        if call.is_settled or self._is_closing:
            return
        call.is_settled = True
        call.results, call.failure = results, failure
        if call.timer is not None:
            call.timer.cancel()
        call.timer = call.task = None
        self._running -= 1
        if self._waiting:
            self._run(self._waiting.popleft())
        self._settled.append(call)
        self._tell()

    def _tell(self) -> None:
        """Make the task's thread put out results, because one is complete: send mail to the task,
        or only wake the task if earlier mail was not run yet."""
        if self._is_mailed:
            self.context.turn.wake_up()
        else:
            self._is_mailed = True
            self.context.turn.post(self._mail)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._tell()


def _go_together(one: AsyncCall, other: AsyncCall) -> bool:
    same = one.origin is other.origin
    return same and (one.timestamp is None) == (other.timestamp is None)


Mark = Watermark | WatermarkStatus


class AsyncCall:
    """A call of the asynchronous function for one record.
    The event loop's thread sets its outcome once: results or a failure."""

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


log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that coroutines may take to end after they were cancelled."""

_LOOK = 0.1
"""Longest seconds until an interrupt reaches a thread that waits for the event loop."""


class EventLoopThread:
    """Runs an event loop in a daemon thread, which never waits for other threads.
    *on_failure*: called in this thread with an exception that stops the event loop, such as
    ``SystemExit`` in one of the user's tasks."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self.loop = asyncio.new_event_loop()
        self._on_failure = on_failure
        self._is_ending = False
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, work: Callable[..., None], *arguments: Any) -> None:
        """Schedule *work* in the event loop's thread and return at once."""
        self.loop.call_soon_threadsafe(work, *arguments)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call *function* in the event loop's thread and wait for its result.
        A coroutine that *function* returns is awaited. An exception of *function* or of the
        coroutine is raised in the calling thread."""
        outcome: list[Any] = []
        failure: list[BaseException] = []
        done = threading.Event()

        async def run() -> None:
            try:
                result = function(*arguments)
                outcome.append(await result if isinstance(result, Awaitable) else result)
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                failure.append(error)
            finally:
                done.set()

        tasks: list[asyncio.Task[None]] = []  # an event loop does not keep them itself
        self.do(lambda: tasks.append(self.loop.create_task(run())))
        _wait_for(done)
        if failure:
            raise failure[0]
        return outcome[0]

    def end(self, close: Callable[[], Any]) -> None:
        """Cancel all coroutines, wait for them, call *close* in the thread, and end the thread."""
        try:
            self.call(self._cancel_all)
            self.call(close)
            self.call(self.loop.shutdown_asyncgens)
        finally:
            self._is_ending = True
            self.do(self.loop.stop)
        _wait_for(self._ended)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, stubborn = await asyncio.wait(tasks, timeout=PATIENCE)
        for task in stubborn:
            log.warning("a coroutine does not end after it was cancelled, and is left: %r", task)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_ending:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - the task's thread raises it again
                self._on_failure(error)
        self.loop.close()
        self._ended.set()


def _wait_for(event: threading.Event) -> None:
    while not event.wait(_LOOK):
        """Nothing to do: the loop only lets an interrupt (KeyboardInterrupt) through."""
