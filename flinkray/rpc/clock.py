"""Clocks of the real world.  Nothing else that ships asks the system for the time."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class LoopClock:
    """The clock of an event loop, which is virtual when the loop's is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float = 0.0) -> None:
        """*epoch* is the wall-clock time, in seconds, at the loop's time zero."""
        self._loop = loop
        self._epoch = epoch

    def time(self) -> float:
        return self._epoch + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()
