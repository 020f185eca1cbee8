"""Clocks that a thread can wait for."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from flinkray.core.clock import Clock


class WaitingClock(Clock, Protocol):
    """A clock that knows how to wait."""

    def wait(self, seconds: float, woken: threading.Event) -> None:
        """Return after so many of its seconds, or earlier once *woken* is set."""


class WaitingSystemClock:
    """The machine's clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float, woken: threading.Event) -> None:
        woken.wait(seconds)
