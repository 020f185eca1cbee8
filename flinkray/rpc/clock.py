"""The clocks of the real world.  No other shipped module asks the system for the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class SystemClock:
    """The machine's clock: wall-clock time and monotonic time, in seconds."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def time_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the cheapest function that is equivalent to ``loop.time``, for use in every call."""
    if getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time:
        return time.monotonic
    return loop.time


class LoopClock:
    """The clock of an event loop; virtual if the loop's time is virtual."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float = 0.0) -> None:
        """Create a clock. *epoch* is the wall-clock time, in seconds, at the loop's time zero."""
        self._loop = loop
        self._epoch = epoch

    def time(self) -> float:
        return self._epoch + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()
