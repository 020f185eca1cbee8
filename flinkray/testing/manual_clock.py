"""A clock that moves only when it is told to, or when a program waits."""

from __future__ import annotations

import threading


class ManualClock:
    """A :class:`flinkray.core.clock.Clock`.  Whoever waits moves it: no real time passes."""

    def __init__(self, epoch: float = 0.0) -> None:
        """*epoch*: the wall clock at the beginning, where the monotonic clock is at zero."""
        self._now = 0.0
        self._epoch = epoch
        self.waits: list[float] = []
        """How long programs waited, one after the other."""

    def time(self) -> float:
        """The wall clock, in seconds."""
        return self._epoch + self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass.

        Raises:
            ValueError: they are fewer than 0.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back, and so not on by {seconds:g} s")
        self._now += seconds

    def set_wall_clock(self, time: float) -> None:
        """Somebody corrects the clock: the monotonic one stays as it is."""
        self._epoch = time - self._now

    def set_milliseconds(self, milliseconds: int) -> None:
        """Jump to that time of the wall clock."""
        self._now = milliseconds / 1000 - self._epoch

    def wait(self, seconds: float, woken: threading.Event) -> None:
        """Let the time pass at once that a program waits, unless it has been woken."""
        if not woken.is_set():
            self.waits.append(seconds)
            # A little more, so that rounding to milliseconds cannot leave the deadline ahead.
            self._now += max(seconds, 0.0) + 1e-6
