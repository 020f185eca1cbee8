"""Time-outs of many futures at the cost of one timer per distinct timeout."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Deadlines:
    """Fails futures that are not done in time.

    Futures with the same timeout expire in the order they were added, so that one timer, for the
    oldest, serves them all.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[
            float, deque[tuple[float, asyncio.Future[Any], Callable[[], Exception]]]
        ] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def add(
        self, timeout: float, future: asyncio.Future[Any], error: Callable[[], Exception]
    ) -> None:
        """After *timeout* seconds, *future* fails with what *error* returns."""
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._queues[timeout] = deque()
        while queue and queue[0][1].done():
            queue.popleft()
        when = self._loop.time() + timeout
        queue.append((when, future, error))
        if timeout not in self._timers:
            self._timers[timeout] = self._loop.call_at(when, self._expire, timeout)

    def close(self) -> None:
        """No future is failed any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queues.clear()

    def _expire(self, timeout: float) -> None:
        queue = self._queues[timeout]
        now = self._loop.time()
        while queue:
            when, future, error = queue[0]
            if not future.done():
                if when > now:
                    self._timers[timeout] = self._loop.call_at(when, self._expire, timeout)
                    return
                future.set_exception(error())
            queue.popleft()
        del self._timers[timeout], self._queues[timeout]
