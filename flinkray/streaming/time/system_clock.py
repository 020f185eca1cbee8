"""The machine's clock, for streams."""

from __future__ import annotations

import threading
import time


class SystemClock:
    """Real time."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float, woken: threading.Event) -> None:
        woken.wait(seconds)
