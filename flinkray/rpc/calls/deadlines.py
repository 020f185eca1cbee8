"""Timeouts of many calls, with one timer for all."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import Protocol

_SMALLEST_SWEEP = 256
_TOLERANCE = 1e-6
"""Seconds by which a loop may call a timer early; virtual time may not get any closer."""


class Expirable(Protocol):
    """An object that is told when its deadline has passed, such as a pending answer."""

    is_over: bool
    """True: this object has ended in time, and its deadline has no effect any more."""

    def expire(self) -> None:
        """End this object: its deadline has passed. Not called if :attr:`is_over` is True."""


class DeadlineHeap(ABC):
    """Entries with deadlines, and one timer for the nearest deadline.

    Most entries end (no longer wait) long before their deadlines. Such entries are not removed one
    by one; a sweep removes them whenever as many entries have been added as the last sweep left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Expirable]] = []
        self._added = 0
        self._sweep_at = _SMALLEST_SWEEP
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float

    def close(self) -> None:
        """Remove all entries and cancel the timer: nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)

    @abstractmethod
    def _timer_over(self) -> None:
        """Expire the entries whose deadline has passed, and set the timer again.
        Called when the timer fires.
        """

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._timer_over)

    def _push(self, when: float, expirable: Expirable) -> None:
        self._added += 1
        heappush(self._heap, (when, self._added, expirable))
        if len(self._heap) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_over]
        heapify(self._heap)
        self._sweep_at = max(_SMALLEST_SWEEP, 2 * len(self._heap))

    def _nearest(self) -> float | None:
        """Return the deadline of the next entry that still waits; None: there is none.

        Entries before it, which wait no more, are removed.
        """
        while self._heap and self._heap[0][2].is_over:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _expire_until(self, when: float) -> None:
        """Expire all entries due at or before *when*, except entries that are added during this
        call."""
        added = self._added
        nearest = self._nearest()
        while nearest is not None and nearest <= when and self._heap[0][1] <= added:
            heappop(self._heap)[2].expire()
            nearest = self._nearest()


class Deadlines(DeadlineHeap):
    """Ends received calls at the moment when their callers stop waiting, measured in the loop's
    time.

    For deadlines after which this process takes a peer for dead use
    :mod:`flinkray.rpc.calls.peer_deadlines`.
    """

    def add(self, when: float, expirable: Expirable) -> None:
        """Expire *expirable* at *when*, in the loop's time, unless it has ended by then."""
        self._push(when, expirable)
        if self._timer is None or when < self._timer_at:
            self._arm(when)

    def _timer_over(self) -> None:
        self._timer = None
        self._expire_until(self._loop.time() + _TOLERANCE)
        when = self._nearest()
        if when is not None and (self._timer is None or when < self._timer_at):
            self._arm(when)
