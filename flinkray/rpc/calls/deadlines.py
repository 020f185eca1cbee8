"""Time-outs of many calls at the cost of one timer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import Protocol

_SMALLEST_SWEEP = 256
_TOLERANCE = 1e-6
"""Seconds; a loop may call that much early, and virtual time may not get any nearer."""


class Expirable(Protocol):
    """Something that has to be over in time."""

    is_over: bool
    """True: it came to its end, and its deadline means nothing any more."""

    def expire(self) -> None:
        """The deadline has passed and it is not over."""


class DeadlineHeap(ABC):
    """What is not over yet, by deadline, and the timer that looks at it.

    Most of it is over long before its deadline: that is not taken out one by one, but swept out
    whenever as many have been added as were left by the sweep before.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Expirable]] = []
        self._added = 0
        self._sweep_at = _SMALLEST_SWEEP
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float

    def close(self) -> None:
        """Nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)

    @abstractmethod
    def _timer_over(self) -> None:
        """It is time to look at the heap."""

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
        """When the next one expires; what is over before it is taken out."""
        while self._heap and self._heap[0][2].is_over:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _expire_until(self, when: float) -> None:
        """What is added by what expires has to wait for another look."""
        added = self._added
        nearest = self._nearest()
        while nearest is not None and nearest <= when and self._heap[0][1] <= added:
            heappop(self._heap)[2].expire()
            nearest = self._nearest()


class Deadlines(DeadlineHeap):
    """Expires what is not over in time, by the clock of others: of calls whose callers wait for so
    long, whatever befalls this process meanwhile.

    Those after which this process gives others up: :mod:`flinkray.rpc.calls.patience`.
    """

    def add(self, when: float, expirable: Expirable) -> None:
        """Expire it at *when*, in the loop's time, if it is not over by then."""
        self._push(when, expirable)
        if self._timer is None or when < self._timer_at:
            self._arm(when)

    def _timer_over(self) -> None:
        self._timer = None
        self._expire_until(self._loop.time() + _TOLERANCE)
        when = self._nearest()
        if when is not None and (self._timer is None or when < self._timer_at):
            self._arm(when)
