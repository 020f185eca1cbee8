"""How often the start of workers may fail."""

from __future__ import annotations

from collections import deque

INTERVAL = 60.0
"""Seconds over which failures are counted: the rate is given per minute, as Flink's."""


class StartWorkerFailureRate:
    """Once more starts than allowed have failed within a minute, none is tried for a while.

    For what is wrong with one bundle or one group the back-off of each is enough; this one is for
    what is wrong with all of them (no disk space, a bad image), which would otherwise be tried as
    often as there are workers.
    """

    def __init__(self, max_failures_per_minute: float, retry_interval: float) -> None:
        """*retry_interval* in seconds."""
        self._max_failures = max_failures_per_minute
        self._retry_interval = retry_interval
        self._failures: deque[float] = deque()
        self._allowed_from = 0.0

    def failed(self, now: float) -> None:
        """A worker could not be started, or ended before it registered."""
        while self._failures and self._failures[0] <= now - INTERVAL:
            self._failures.popleft()
        self._failures.append(now)
        if len(self._failures) > self._max_failures:
            self._allowed_from = now + self._retry_interval

    def delay(self, now: float) -> float:
        """Seconds until the next start is allowed; 0: now."""
        return max(0.0, self._allowed_from - now)
