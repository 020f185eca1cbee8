"""Logs refusals of peers: a few lines per period, and the number of further refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable

MAX_LINES = 5
"""The most log lines in each period; further refusals are only counted."""

PERIOD = 10.0
"""The length of a period in seconds."""

_LONGEST = 300
"""The most characters of a reason, as a stranger's data may be part of the reason."""


class RefusalLog:
    """Limits the log lines about refused peers, as any peer can cause many refusals."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        """Create a log without lines. *clock* returns monotonic seconds."""
        self._logger = logger
        self._clock = clock
        self._period_ends = clock()
        self._lines = 0
        self._suppressed = 0

    def refused(self, what: str, reason: str) -> None:
        """Log that *what* was refused, and why; a long *reason* is cut."""
        now = self._clock()
        if now >= self._period_ends:
            self.tell_rest()
            self._period_ends = now + PERIOD
            self._lines = 0
        if self._lines == MAX_LINES:
            self._suppressed += 1
            return
        self._lines += 1
        if len(reason) > _LONGEST:
            reason = f"{reason[:_LONGEST]} …"
        self._logger.warning("%s: %s", what, reason)

    def tell_rest(self) -> None:
        """Log how many refusals of the past period were only counted, if any."""
        suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            self._logger.warning("%d more refusals are not told one by one", suppressed)
