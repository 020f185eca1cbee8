"""Processing time: the clock of a task, waiting on a clock, and callbacks at moments."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

from flinkray.core.clock import Clock
from flinkray.streaming.time.turn import TARGET

MOST_AT_ONCE = 256
"""Most callbacks that run before others have their turn, even if the callbacks are quick."""


class ScheduledCallback:
    """A callback that was scheduled. It can be cancelled."""

    __slots__ = ("also_after_end", "callback", "cancelled", "timestamp")

    def __init__(
        self, timestamp: int, callback: Callable[[int], None], also_after_end: bool = False
    ) -> None:
        self.timestamp = timestamp
        self.callback = callback
        self.cancelled = False
        self.also_after_end = also_after_end

    def cancel(self) -> None:
        self.cancelled = True


class ProcessingTimeService:
    """Runs callbacks in the order of their times, which are times of the clock in milliseconds
    since the epoch. A callback runs only when the task calls :meth:`fire_due`, between two
    elements, so it never interrupts user code."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[int, int, ScheduledCallback]] = []
        self._order = count()
        self._input_has_ended = False
        self._quiesced = False

    def now(self) -> int:
        return int(self.clock.time() * 1000)

    def schedule(
        self, timestamp: int, callback: Callable[[int], None], also_after_end: bool = False
    ) -> ScheduledCallback:
        """Schedule *callback*, which is called with *timestamp* (milliseconds since the epoch) when
        that time has come. Returns an object that can cancel it. *also_after_end*: the callback may
        also run after the end of the input."""
        scheduled = ScheduledCallback(timestamp, callback, also_after_end)
        if not self._quiesced and (also_after_end or not self._input_has_ended):
            heapq.heappush(self._heap, (timestamp, next(self._order), scheduled))
        return scheduled

    def next_deadline(self) -> int | None:
        """Return when the next callback is due; None if there is no callback."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def number_of_timers(self) -> int:
        return sum(not entry[2].cancelled for entry in self._heap)

    def fire_due(self) -> bool:
        """Run the callbacks whose time has come, and those that they schedule if their time has
        come, too. Returns whether any has run. Stops after about ten milliseconds, so that the task
        gets to other work."""
        if not self._heap:
            return False
        now, begun = self.now(), self.clock.monotonic()
        fired = 0
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            scheduled = heapq.heappop(self._heap)[2]
            scheduled.callback(scheduled.timestamp)
            fired += 1
            if fired == MOST_AT_ONCE or self.clock.monotonic() - begun > TARGET:
                break
        return fired > 0

    def input_ended(self) -> None:
        """Cancel the callbacks that must not run after the end of the input, which has come."""
        self._input_has_ended = True
        for _, _, scheduled in self._heap:
            if not scheduled.also_after_end:
                scheduled.cancel()

    def quiesce(self) -> None:
        """Drop all callbacks and ignore new ones, because the task ends."""
        self._quiesced = True
        self._heap.clear()


class WaitingClock(Clock, Protocol):
    """A clock on which a thread can wait until a time or until it is woken."""

    def wait(self, seconds: float, woken: threading.Event) -> None:
        """Return after *seconds* of this clock, or earlier when *woken* is set."""


class WaitingSystemClock:
    """The system clock, on which a thread waits in real time."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float, woken: threading.Event) -> None:
        woken.wait(seconds)
