"""Processes that grow without need, as Ray keeps something of each actor they have dealt with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flinkray.core.clock import Clock
from flinkray.rpc.spec import Renewal

_STATUS = Path("/proc/self/status")
_OF_ITS_OWN = "RssAnon:"


def memory_of_its_own() -> int | None:
    """Resident bytes of this process that are neither files' nor shared; None: not on Linux."""
    try:
        lines = _STATUS.read_text().splitlines()
    except FileNotFoundError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith(_OF_ITS_OWN)), None
    )


class GrowthWatch:
    """Says when a process has to make way for a fresh one; it has just started."""

    def __init__(self, renewal: Renewal, clock: Clock, memory: Callable[[], int | None]) -> None:
        self._renewal = renewal
        self._clock = clock
        self._memory = memory
        self._start = clock.monotonic()
        self._at_start = memory()

    def grown(self) -> int:
        """Bytes; 0: it goes on."""
        now = self._memory()
        if now is None or self._at_start is None:
            return 0
        grown = now - self._at_start
        is_old = self._clock.monotonic() - self._start >= self._renewal.age
        return grown if is_old and grown > self._renewal.growth else 0
