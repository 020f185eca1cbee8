"""Timers of one operator, unique by time, key and namespace. They fire in the order of time.

Timers are part of the operator's keyed state; the state backend keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flinkray.state.backend import KeyedStateBackend
from flinkray.state.errors import StateError
from flinkray.state.table import NO_KEY, TimerQueue
from flinkray.streaming.errors import text_of
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from flinkray.streaming.time.time_service import ProcessingTimeService, ScheduledCallback
from flinkray.streaming.time.turn import Portion, Turn

TimerCallback = Callable[[int, Any, Any], None]
"""Called with timestamp, key and namespace. The key context holds the key."""


class InternalTimerService:
    """Event-time and processing-time timers of one operator. *state* keeps the timers. A timer is
    registered for the key in the state's context. When it fires, the context is set to its key."""

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
        self.fire_together: Callable[[int, list[tuple[Any, Any]]], None] | None = None
        """Called with a timestamp and (key, namespace) of several event-time timers, in place of
        one callback for each. Only for callbacks that neither register nor delete timers."""
        self._event = state.timer_queue("event-time")
        self._processing = state.timer_queue("processing-time")
        self._physical: ScheduledCallback | None = None
        self.current_watermark = MIN_TIMESTAMP

    def current_processing_time(self) -> int:
        return self._time_service.now()

    # A timer later than all timestamps never fires; it is not kept.

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        if timestamp <= MAX_TIMESTAMP:
            self._event.add(timestamp, self._context.key, namespace)

    def event_time_timers_in_memory(self, timestamp: int) -> dict[Any, None] | None:
        """Return the timers at *timestamp*, (key, namespace) each, to which callers may add
        directly until the next watermark or capture. None: they cannot."""
        return self._event.timers_in_memory(timestamp) if timestamp <= MAX_TIMESTAMP else None

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
        """Schedule the callback at *timestamp*, unless it is already scheduled for an earlier time.
        Only the earliest processing-time timer has a callback."""
        if self._physical is not None:
            if self._physical.timestamp <= timestamp:
                return
            self._physical.cancel()
        self._physical = self._time_service.schedule(timestamp, self._fire_processing_time)

    def _fire_processing_time(self, now: int) -> None:
        """Fire the timers that are due, at most a portion. If more are due, another call is
        scheduled, before which the task runs mail."""
        self._physical = None
        self._fire(self._processing, now, self._on_processing_time)
        following = self._processing.first()
        if following is not None:
            self._schedule(following)

    def advance_watermark(self, timestamp: int) -> bool:
        """Fire a portion of the event-time timers up to *timestamp*, also those that callbacks
        register. Returns False if more may be left; then this method must be called again."""
        self.current_watermark = timestamp
        if self.fire_together is not None:
            return self._fire_together(self._event, timestamp, self.fire_together)
        return self._fire(self._event, timestamp, self._on_event_time)

    def fire_all_processing_time_timers(self) -> bool:
        """Fire a portion of the processing-time timers, even before their times. Returns False if
        there were none; until then this method must be called again."""
        any_timers = self._processing.first() is not None
        if any_timers:
            self._fire(self._processing, MAX_TIMESTAMP, self._on_processing_time)
            if self._physical is not None:
                self._physical.cancel()
                self._physical = None
        return any_timers

    def _fire(self, queue: TimerQueue, until: int, callback: TimerCallback) -> bool:
        """Fire a portion of a queue's timers up to *until*. Returns False if more may be left.
        Raises StateError: a key was changed while it had timers."""
        context = self._context
        left = most = self._portion.begin()
        while left and (timestamp := queue.first()) is not None and timestamp <= until:
            for place, timer in enumerate(queue.at(timestamp, left)):
                if queue.first() != timestamp:  # a callback has registered an earlier timer
                    break
                if queue.claim(timestamp, timer):
                    left -= 1
                    key, namespace = timer
                    context.key = key
                    self.firing = timestamp, key, namespace
                    callback(timestamp, key, namespace)
                elif place == 0:  # callbacks may have deleted later ones
                    raise _lost(timestamp, *timer)
        context.key = NO_KEY
        self.firing = None
        self._portion.end(most - left)
        return left > 0

    def _fire_together(
        self, queue: TimerQueue, until: int, fire: Callable[[int, list[tuple[Any, Any]]], None]
    ) -> bool:
        """Fire a portion of a queue's timers up to *until*, as :meth:`_fire` does."""
        left = most = self._portion.begin()
        while left and (timestamp := queue.first()) is not None and timestamp <= until:
            timers = queue.at(timestamp, left)
            for lost in queue.claim_all(timestamp, timers):
                raise _lost(timestamp, *lost)
            left -= len(timers)
            fire(timestamp, timers)
        self._context.key = NO_KEY
        self._portion.end(most - left)
        return left > 0

    def number_of_event_time_timers(self, namespace: Any = ...) -> int:
        """Return the number of event-time timers; ``...`` counts timers of all namespaces."""
        return _count(self._event, namespace)

    def number_of_processing_time_timers(self, namespace: Any = ...) -> int:
        """Return the number of processing-time timers; ``...`` counts timers of all namespaces."""
        return _count(self._processing, namespace)

    def resume(self) -> None:
        """After a restore: schedule a call for the earliest restored processing-time timer."""
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
