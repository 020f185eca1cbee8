"""A clock that moves only when it is told to, or when a program waits."""

from __future__ import annotations

import threading


class ManualClock:
    """Seconds since the epoch, from *start* on.  Whoever waits moves it: no real time passes."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self.waits: list[float] = []
        """How long programs waited, one after the other."""

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def set_milliseconds(self, milliseconds: int) -> None:
        """Jump to that time."""
        self._now = milliseconds / 1000

    def wait(self, seconds: float, woken: threading.Event) -> None:
        if not woken.is_set():
            self.waits.append(seconds)
            # A little more, so that rounding to milliseconds cannot leave the deadline ahead.
            self._now += max(seconds, 0.0) + 1e-6
