"""Time-outs of many calls at the cost of one timer."""

from __future__ import annotations

import asyncio
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


class Deadlines:
    """Expires what is not over in time.

    Most calls are over long before their deadline: those are not taken out one by one, but swept
    out whenever as many have been added as were left by the sweep before.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Expirable]] = []
        self._added = 0
        self._sweep_at = _SMALLEST_SWEEP
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float

    def add(self, when: float, expirable: Expirable) -> None:
        """Expire it at *when*, in the loop's time, if it is not over by then."""
        heap = self._heap
        self._added += 1
        heappush(heap, (when, self._added, expirable))
        if len(heap) >= self._sweep_at:
            self._sweep()
        if self._timer is None or when < self._timer_at:
            self._arm(when)

    def close(self) -> None:
        """Nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._expire)

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_over]
        heapify(self._heap)
        self._sweep_at = max(_SMALLEST_SWEEP, 2 * len(self._heap))

    def _expire(self) -> None:
        self._timer = None
        heap = self._heap
        now = self._loop.time()
        while heap:
            when, _, expirable = heap[0]
            if not expirable.is_over:
                if when - now > _TOLERANCE:
                    self._arm(when)
                    return
                heappop(heap)
                expirable.expire()
                heap = self._heap
            else:
                heappop(heap)
