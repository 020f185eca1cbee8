"""The operator for asynchronous functions: many records at once, in a thread with an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from flinkray.core.durations import milliseconds
from flinkray.core.values import IMMUTABLE
from flinkray.state.key_group_assignment import KeyHash
from flinkray.state.table import NO_KEY
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.functions.async_functions import AsyncFunctionDescriptor
from flinkray.streaming.operators.calls import AsyncCall, CallingOperator
from flinkray.streaming.operators.collector import Collector
from flinkray.streaming.operators.event_loop_thread import EventLoopThread
from flinkray.streaming.operators.operator import OperatorContext, Output
from flinkray.streaming.records.elements import Barrier, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.time.time_service import ProcessingTimeService, ScheduledCallback

_NO_LIST = (str, bytes, bytearray, Mapping, Row)
"""Iterable types that count as a single value and not as a list of results."""


class AsyncWaitOperator(CallingOperator):
    """Passes each record to a coroutine and puts out the results that the coroutine returns. A
    thread with an event loop calls all methods of the function. Coroutines get copies of records,
    because a retry, a time-out and a restore need the original. Time-outs and retries use the
    loop's clock."""

    def __init__(self, descriptor: AsyncFunctionDescriptor) -> None:
        modes = AsyncFunctionDescriptor.OutputMode
        super().__init__(descriptor.capacity, is_ordered=descriptor.output_mode is modes.ORDERED)
        self._descriptor = descriptor
        self._function = descriptor.async_function
        self._timeout = milliseconds(descriptor.timeout) / 1000
        self._thread: EventLoopThread | None = None

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self._own = context.own
        # Results are copied when they arrive: nobody else can change the results in the queue.
        self._results = Collector(replace(context, object_reuse=True), output)

    def open(self) -> None:
        predicate = self._descriptor.async_retry_strategy.get_retry_predicate()
        self._retries_result = predicate.result_predicate()
        self._retries_exception = predicate.exception_predicate()
        self._running = 0
        self._waiting: deque[AsyncCall] = deque()
        self._is_closing = False
        self._thread = EventLoopThread(f"flinkray-async {self.context.task_name}", self.fail)
        self._thread.call(self._function.open, self.runtime_context())
        self.start_restored()

    # --- in the task's thread -----------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        values, times, origin = block.values, block.timestamps, block.origin
        begin = 0
        while begin < len(values):
            end = min(len(values), begin + self.wait_for_room())
            stamps: Sequence[Any] = [None] * (end - begin) if times is None else times[begin:end]
            self.begin(
                [
                    AsyncCall(value, timestamp, origin)
                    for value, timestamp in zip(values[begin:end], stamps, strict=True)
                ]
            )
            begin = end

    def start(self, calls: list[AsyncCall]) -> None:
        assert self._thread is not None
        self._thread.do(self._start, calls)

    def stored(self, call: AsyncCall) -> Any:
        return call.value, call.timestamp

    def restored(self, stored: Any) -> AsyncCall:
        value, timestamp = stored
        return AsyncCall(value, timestamp, None)

    def emit_results(self, calls: Sequence[AsyncCall]) -> None:
        results = self._results
        before: AsyncCall | None = None
        for call in calls:
            if before is None or not _go_together(before, call):
                results.flush()
                results.begin(call.origin)
            results.add(call.results, call.timestamp)
            before = call
        results.flush()

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._is_closing = True
            thread.end(self._function.close)

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
            self._settle(call, await self._invoke(call))
        except asyncio.CancelledError as error:
            failure = RuntimeError("async_invoke was cancelled before its time was over")
            failure.__cause__ = error
            self._settle(call, [], failure)
        except BaseException as error:  # noqa: BLE001 - the task's thread raises it again
            self._settle(call, [], error)

    async def _invoke(self, call: AsyncCall) -> list[Any]:
        invoke, strategy = self._function.async_invoke, self._descriptor.async_retry_strategy
        on_result, on_exception = self._retries_result, self._retries_exception
        for attempt in count(1):
            try:
                results = await self.steps(call, invoke(self._own(call.value)))
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
            results = self._listed(self.timed_out(call), "timeout")
        except BaseException as error:  # noqa: BLE001 - the task's thread raises it again
            self._settle(call, [], error)
        else:
            self._settle(call, results)

    def steps(self, call: AsyncCall, coroutine: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        """Return what is awaited for the results of a call: its coroutine."""
        return coroutine

    def timed_out(self, call: AsyncCall) -> Any:
        """Return what the function returns for a record whose time is over."""
        return self._function.timeout(self._own(call.value))

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
        if call.timer is not None:
            call.timer.cancel()
        call.timer = call.task = None
        self._running -= 1
        if self._waiting:
            self._run(self._waiting.popleft())
        self.settled(call, results, failure)


def _go_together(one: AsyncCall, other: AsyncCall) -> bool:
    same = one.origin is other.origin
    return same and (one.timestamp is None) == (other.timestamp is None)


class KeyedAsyncWaitOperator(AsyncWaitOperator):
    """An :class:`AsyncWaitOperator` on a keyed stream, whose function gets rows of key and value
    and may have state. If it has, the records of a key are processed one after the other, and a
    checkpoint waits until no record is in progress: otherwise a restored task would repeat changes
    of state. The steps of a coroutine between two awaits have the key of its record."""

    def __init__(self, descriptor: AsyncFunctionDescriptor, keys: Keys) -> None:
        super().__init__(descriptor)
        self._keys = keys

    @property
    def selectors(self) -> Sequence[Any]:
        return self._keys.functions

    def key_hash(self) -> KeyHash:
        return self._keys.hash_of

    def setup(self, context: OperatorContext, output: Output) -> None:
        self._lock = threading.Lock()
        """Held by the thread that uses keyed state: that of the event loop, or the task's, which
        removes expired state."""
        time_service = _LockedTimeService(context.time_service, self._lock)
        super().setup(replace(context, time_service=time_service), output)
        assert self.keyed_state is not None
        self._key_context = self.keyed_state.context

    def open(self) -> None:
        self._behind: dict[Any, deque[AsyncCall]] = {}
        """Key in progress -> records of the key that wait for their turn."""
        self._has_state = False
        super().open()
        assert self.keyed_state is not None
        self._has_state = bool(self.keyed_state.names())

    # --- in the task's thread -----------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        keys = self._keys.of_block(block)
        rows = [Row(key, value) for key, value in zip(keys, block.values, strict=True)]
        super().process_block(block.with_values(rows))

    def start(self, calls: list[AsyncCall]) -> None:
        for call in calls:
            call.key, _ = call.value
        super().start(calls)

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        if self._has_state:
            self.context.turn.wait_until(self._is_empty)

    # --- in the event loop's thread -----------------------------------------------------------

    def _start(self, calls: Iterable[AsyncCall]) -> None:
        if not self._has_state:
            super()._start(calls)
            return
        for call in calls:
            if call.key in self._behind:
                self._behind[call.key].append(call)
            else:
                self._behind[call.key] = deque()
                super()._start([call])

    def _settle(
        self, call: AsyncCall, results: list[Any], failure: BaseException | None = None
    ) -> None:
        is_over = call.is_settled or self._is_closing
        super()._settle(call, results, failure)
        if self._has_state and not is_over:
            behind = self._behind[call.key]
            if behind:
                super()._start([behind.popleft()])
            else:
                del self._behind[call.key]

    def steps(self, call: AsyncCall, coroutine: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        return _WithKey(coroutine, self._key_of(call)) if self._has_state else coroutine

    def timed_out(self, call: AsyncCall) -> Any:
        with self._key_of(call)():
            return super().timed_out(call)

    def _key_of(self, call: AsyncCall) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def key() -> Iterator[None]:
            with self._lock:
                self._key_context.key = call.key
                try:
                    yield
                finally:
                    self._key_context.key = NO_KEY

        return key


class _WithKey(Awaitable[Any]):
    """Awaits a coroutine, each of whose steps runs within *step*."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        step: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._coroutine = coroutine
        self._step = step

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        error: BaseException | None = None
        try:
            while True:
                with self._step():
                    try:
                        awaited = coroutine.throw(error) if error else coroutine.send(None)
                    except StopIteration as end:
                        return end.value
                error = None
                try:
                    yield awaited
                except (Exception, asyncio.CancelledError) as thrown:  # noqa: BLE001 - its own
                    error = thrown
        finally:
            coroutine.close()


class _LockedTimeService(ProcessingTimeService):
    """The time service of a task, whose callbacks run while *lock* is held."""

    def __init__(self, time_service: ProcessingTimeService, lock: threading.Lock) -> None:
        self._time_service = time_service
        self._lock = lock

    def now(self) -> int:
        return self._time_service.now()

    def schedule(
        self, timestamp: int, callback: Callable[[int], None], also_after_end: bool = False
    ) -> ScheduledCallback:
        def locked(timestamp: int) -> None:
            with self._lock:
                callback(timestamp)

        return self._time_service.schedule(timestamp, locked, also_after_end)
