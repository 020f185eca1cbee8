"""What is refused of peers, in the log: a few lines, and how many more there would have been."""

from __future__ import annotations

import logging
from collections.abc import Callable

MAX_LINES = 5
"""In each period; what is beyond is counted."""

PERIOD = 10.0
"""Seconds."""

_LONGEST = 300
"""Characters of a reason, which may be made of what a stranger has sent."""


class RefusalLog:
    """Whoever can connect may give reasons for such lines, as often as it likes."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        """*clock*: seconds that pass."""
        self._logger = logger
        self._clock = clock
        self._period_ends = clock()
        self._lines = 0
        self._suppressed = 0

    def refused(self, what: str, reason: str) -> None:
        """*what* was refused, and by whom; *reason* is cut where it is long."""
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
        """How many were not told one by one, if there are any."""
        suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            self._logger.warning("%d more refusals are not told one by one", suppressed)
