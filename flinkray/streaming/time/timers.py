"""Timers of one operator: unique per time, key and namespace, fired in the order of time.

They are part of the operator's keyed state, whose backend keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flinkray.state.backend import KeyedStateBackend
from flinkray.state.errors import StateError
from flinkray.state.key_context import NO_KEY
from flinkray.state.timer_queue import TimerQueue
from flinkray.streaming.errors import text_of
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from flinkray.streaming.time.time_service import ProcessingTimeService, ScheduledCallback
from flinkray.streaming.time.turn import Portion, Turn

TimerCallback = Callable[[int, Any, Any], None]
"""Called with timestamp, key and namespace, the key context being set."""


class InternalTimerService:
    """Event- and processing-time timers of one operator.

    Args:
        state: keeps the timers; its context says the key of a registration, and is told the key of
            a timer that fires.
        on_event_time, on_processing_time: called for each timer that fires.
        turn: the task's.
    """

    def __init__(
        self,
        time_service: ProcessingTimeService,
        state: KeyedStateBackend,
        on_event_time: TimerCallback,
        on_processing_time: TimerCallback,
        turn: Turn | None = None,
    ) -> None:
        self._time_service = time_service
        self._portion = Portion(time_service.clock, turn)
        self.firing: tuple[int, Any, Any] | None = None
        """Timestamp, key and namespace of the timer that fires now."""
        self._context = state.context
        self._on_event_time = on_event_time
        self._on_processing_time = on_processing_time
        self._event = state.timer_queue("event-time")
        self._processing = state.timer_queue("processing-time")
        self._physical: ScheduledCallback | None = None
        self.current_watermark = MIN_TIMESTAMP

    def current_processing_time(self) -> int:
        return self._time_service.now()

    # A timer that is later than all timestamps never fires, and is not kept.

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        if timestamp <= MAX_TIMESTAMP:
            self._event.add(timestamp, self._context.key, namespace)

    def delete_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        if timestamp <= MAX_TIMESTAMP:
            self._event.discard(timestamp, self._context.key, namespace)

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        if timestamp <= MAX_TIMESTAMP and self._processing.add(
            timestamp, self._context.key, namespace
        ):
            self._schedule(timestamp)

    def delete_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        if timestamp <= MAX_TIMESTAMP:
            self._processing.discard(timestamp, self._context.key, namespace)

    def _schedule(self, timestamp: int) -> None:
        """Only the earliest timer has a physical one."""
        if self._physical is not None:
            if self._physical.timestamp <= timestamp:
                return
            self._physical.cancel()
        self._physical = self._time_service.schedule(timestamp, self._fire_processing_time)

    def _fire_processing_time(self, now: int) -> None:
        """A portion of those that are due; the others have their turn after mail had its own."""
        self._physical = None
        self._fire(self._processing, now, self._on_processing_time)
        following = self._processing.first()
        if following is not None:
            self._schedule(following)

    def advance_watermark(self, timestamp: int) -> bool:
        """Fire a portion of the event-time timers up to *timestamp*, those that are registered
        meanwhile included.  Whether there are none left: else it is to be called again."""
        self.current_watermark = timestamp
        return self._fire(self._event, timestamp, self._on_event_time)

    def fire_all_processing_time_timers(self) -> bool:
        """Whatever the time is; whether there were any."""
        any_timers = self._processing.first() is not None
        if any_timers:
            self._fire(self._processing, MAX_TIMESTAMP, self._on_processing_time)
            if self._physical is not None:
                self._physical.cancel()
                self._physical = None
        return any_timers

    def _fire(self, queue: TimerQueue, until: int, callback: TimerCallback) -> bool:
        """One portion; whether there are none left.

        Raises:
            StateError: a key was changed while it had timers.
        """
        context = self._context
        left = most = self._portion.begin()
        while left and (timestamp := queue.first()) is not None and timestamp <= until:
            for place, timer in enumerate(queue.at(timestamp, left)):
                if queue.first() != timestamp:  # the one before has registered an earlier one
                    break
                if queue.claim(timestamp, timer):
                    left -= 1
                    key, namespace = timer
                    context.key = key
                    self.firing = timestamp, key, namespace
                    callback(timestamp, key, namespace)
                elif place == 0:  # others may have been deleted by those before them
                    raise _lost(timestamp, *timer)
        context.key = NO_KEY
        self.firing = None
        self._portion.end(most - left)
        return left > 0

    def number_of_event_time_timers(self, namespace: Any = ...) -> int:
        """All, or those of one namespace."""
        return _count(self._event, namespace)

    def number_of_processing_time_timers(self, namespace: Any = ...) -> int:
        """All, or those of one namespace."""
        return _count(self._processing, namespace)

    def resume(self) -> None:
        """After the state was restored."""
        first = self._processing.first()
        if first is not None:
            self._schedule(first)


def _lost(timestamp: int, key: Any, namespace: Any) -> StateError:
    of_window = "" if namespace is None else f" and {namespace!r}"
    return StateError(
        f"the timer for {timestamp} of key {text_of(key)}{of_window} is not found by its key: the "
        "key has changed since the timer was registered; its hash and what it equals must stay"
    )


def _count(queue: TimerQueue, namespace: Any) -> int:
    if namespace is ...:
        return len(queue)
    return sum(timer[2] == namespace for timer in queue.items())
