"""Timers: send data whose time-out has passed, and repeat requests."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count

from flinkray.core.clock import Clock

_LONGEST_WAIT = 3600.0


class Timers:
    """Callbacks ordered by time (the clock's monotonic seconds). :meth:`run_due` calls the due
    callbacks. A thread in :meth:`run` calls each one when it is due."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._waits_until: float | None = None
        self._closed = False

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Schedule a callback. Thread-safe. Callbacks cannot be cancelled: a callback must check
        whether its work is still needed. It must not block."""
        with self._changed:
            heapq.heappush(self._heap, (when, next(self._order), callback))
            if self._waits_until is None or when < self._waits_until:
                self._changed.notify()

    def run_due(self) -> bool:
        ran = False
        while (callback := self._take_due()) is not None:
            callback()
            ran = True
        return ran

    def _take_due(self) -> Callable[[], None] | None:
        with self._changed:
            if self._heap and self._heap[0][0] <= self.clock.monotonic():
                return heapq.heappop(self._heap)[2]
            return None

    def next_pause(self, patience: float) -> float:
        """Return the seconds until the next callback is due.
        For callers that advance a clock by hand. If no callback is scheduled, the call waits up to
        *patience* real seconds for one. Raises TimeoutError: none was scheduled."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._heap), patience):
                raise TimeoutError("nothing was scheduled")
            return max(0.0, self._heap[0][0] - self.clock.monotonic())

    def run(self) -> None:
        """Call each callback when it is due, until :meth:`close`. Requires a real clock."""
        while True:
            self.run_due()
            with self._changed:
                if self._closed:
                    return
                now = self.clock.monotonic()
                due = self._heap[0][0] if self._heap else now + _LONGEST_WAIT
                if due > now:
                    self._waits_until = due
                    self._changed.wait(due - now)
                    self._waits_until = None

    def close(self) -> None:
        """Drop all callbacks and end :meth:`run`."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
