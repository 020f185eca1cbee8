"""Defines a clock that moves only when a test advances it, or when a program waits on it."""

from __future__ import annotations

import threading


class ManualClock:
    """A :class:`flinkray.core.clock.Clock` under the control of a test; no real time passes.

    When a program waits on the clock, the clock jumps to the end of the wait.
    """

    def __init__(self, epoch: float = 0.0) -> None:
        """Make a clock whose ``monotonic`` is 0. *epoch*: its wall-clock time at the beginning, in
        seconds."""
        self._now = 0.0
        self._epoch = epoch
        self.waits: list[float] = []
        """How many seconds programs have waited, one entry per wait."""

    def time(self) -> float:
        """Return the wall-clock time in seconds."""
        return self._epoch + self._now

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by this many seconds.

        Raises:
            ValueError: *seconds* is below 0.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back, and so not on by {seconds:g} s")
        self._now += seconds

    def set_wall_clock(self, time: float) -> None:
        """Correct the wall clock to *time* in seconds; the monotonic clock stays as it is."""
        self._epoch = time - self._now

    def set_milliseconds(self, milliseconds: int) -> None:
        """Move the clock forward or back, so that its wall-clock time is *milliseconds*.
        ``monotonic`` moves by the same time."""
        self._now = milliseconds / 1000 - self._epoch

    def wait(self, seconds: float, woken: threading.Event) -> None:
        """Move the clock by *seconds* at once; do nothing if *woken* is set."""
        if not woken.is_set():
            self.waits.append(seconds)
            # A little more, so that rounding to milliseconds cannot leave the deadline ahead.
            self._now += max(seconds, 0.0) + 1e-6
