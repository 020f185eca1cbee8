"""Timers of one operator: unique per time, key and namespace, fired in the order of time.

Timers of one moment are kept in one dictionary and fire in the order of their registration, so
that a heap operation is paid per moment and not per timer.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from flinkray.state.heap_handles import NO_KEY, KeyContext
from flinkray.state.key_values import as_key
from flinkray.state.keys import KeyGroupAssigner, KeyGroupRange
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from flinkray.streaming.time.time_service import ProcessingTimeService, ScheduledCallback

TimerCallback = Callable[[int, Any, Any], None]
"""Called with timestamp, key and namespace, the key context being set."""


class TimerQueue:
    """Timers by time."""

    __slots__ = ("_buckets", "_heap")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[tuple[Any, Any], None]] = {}
        self._heap: list[int] = []

    def add(self, timestamp: int, key: Any, namespace: Any) -> bool:
        """Whether it was not there before."""
        bucket = self._buckets.get(timestamp)
        if bucket is None:
            self._buckets[timestamp] = {(key, namespace): None}
            heapq.heappush(self._heap, timestamp)
            return True
        if (key, namespace) in bucket:
            return False
        bucket[key, namespace] = None
        return True

    def discard(self, timestamp: int, key: Any, namespace: Any) -> None:
        bucket = self._buckets.get(timestamp)
        if bucket is not None:
            bucket.pop((key, namespace), None)

    def first(self) -> int | None:
        """The earliest time that has a timer."""
        while self._heap and not self._buckets[self._heap[0]]:
            del self._buckets[heapq.heappop(self._heap)]
        return self._heap[0] if self._heap else None

    def pop(self, timestamp: int) -> list[tuple[Any, Any]]:
        """The timers of that time.  They stay until :meth:`claim` takes each: one that fires may
        delete the next."""
        return list(self._buckets.get(timestamp, ()))

    def claim(self, timestamp: int, timer: tuple[Any, Any]) -> bool:
        """Take a timer out; False where it is not there any more."""
        bucket = self._buckets.get(timestamp)
        if bucket is None or timer not in bucket:
            return False
        del bucket[timer]
        return True

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def items(self) -> Iterable[tuple[int, Any, Any]]:
        for timestamp, bucket in self._buckets.items():
            for key, namespace in bucket:
                yield timestamp, key, namespace


class InternalTimerService:
    """Event- and processing-time timers of one operator.

    Args:
        context: where the key of a registration is read, and set while a timer fires.
        on_event_time, on_processing_time: called for each timer that fires.
    """

    def __init__(
        self,
        time_service: ProcessingTimeService,
        context: KeyContext,
        on_event_time: TimerCallback,
        on_processing_time: TimerCallback,
    ) -> None:
        self._time_service = time_service
        self._context = context
        self._on_event_time = on_event_time
        self._on_processing_time = on_processing_time
        self._event = TimerQueue()
        self._processing = TimerQueue()
        self._physical: ScheduledCallback | None = None
        self.current_watermark = MIN_TIMESTAMP

    def current_processing_time(self) -> int:
        return self._time_service.now()

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        self._event.add(timestamp, self._context.key, namespace)

    def delete_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        self._event.discard(timestamp, self._context.key, namespace)

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        if self._processing.add(timestamp, self._context.key, namespace):
            self._schedule(timestamp)

    def delete_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        self._processing.discard(timestamp, self._context.key, namespace)

    def _schedule(self, timestamp: int) -> None:
        """Only the earliest timer has a physical one."""
        if self._physical is not None:
            if self._physical.timestamp <= timestamp:
                return
            self._physical.cancel()
        self._physical = self._time_service.schedule(timestamp, self._fire_processing_time)

    def _fire_processing_time(self, now: int) -> None:
        self._physical = None
        self._fire(self._processing, now, self._on_processing_time)
        following = self._processing.first()
        if following is not None:
            self._schedule(following)

    def advance_watermark(self, timestamp: int) -> None:
        """Fire all event-time timers up to *timestamp*, those that are registered meanwhile
        included."""
        self.current_watermark = timestamp
        self._fire(self._event, timestamp, self._on_event_time)

    def fire_all_processing_time_timers(self) -> bool:
        """Whatever the time is; whether there were any."""
        any_timers = self._processing.first() is not None
        if any_timers:
            self._fire(self._processing, MAX_TIMESTAMP, self._on_processing_time)
            if self._physical is not None:
                self._physical.cancel()
                self._physical = None
        return any_timers

    def _fire(self, queue: TimerQueue, until: int, callback: TimerCallback) -> None:
        context = self._context
        while (timestamp := queue.first()) is not None and timestamp <= until:
            for timer in queue.pop(timestamp):
                if queue.claim(timestamp, timer):
                    key, namespace = timer
                    context.key = key
                    callback(timestamp, key, namespace)
        context.key = NO_KEY

    def number_of_event_time_timers(self, namespace: Any = ...) -> int:
        """All, or those of one namespace."""
        return _count(self._event, namespace)

    def number_of_processing_time_timers(self, namespace: Any = ...) -> int:
        """All, or those of one namespace."""
        return _count(self._processing, namespace)

    def snapshot(self, max_parallelism: int) -> dict[int, bytes]:
        """Key group -> pickled timers."""
        assign = KeyGroupAssigner(max_parallelism)
        groups: dict[int, tuple[list[Any], list[Any]]] = {}
        for kind, queue in enumerate((self._event, self._processing)):
            for timer in queue.items():
                groups.setdefault(assign(timer[1]), ([], []))[kind].append(timer)
        return {group: pickle.dumps(timers, 5) for group, timers in groups.items()}

    def restore(self, groups: dict[int, bytes], key_groups: KeyGroupRange) -> None:
        """Take over the timers of this subtask's key groups."""
        for group, payload in groups.items():
            if group not in key_groups:
                continue
            event, processing = pickle.loads(payload)
            for timestamp, key, namespace in event:
                self._event.add(timestamp, as_key(key), namespace)
            for timestamp, key, namespace in processing:
                if self._processing.add(timestamp, as_key(key), namespace):
                    self._schedule(timestamp)


def _count(queue: TimerQueue, namespace: Any) -> int:
    if namespace is ...:
        return len(queue)
    return sum(timer[2] == namespace for timer in queue.items())
