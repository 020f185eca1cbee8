"""Clocks on which a thread can wait."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from flinkray.core.clock import Clock


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
