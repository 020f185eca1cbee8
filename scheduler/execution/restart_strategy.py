"""Decides whether and when a job restarts after a failure, by its restart strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.job_options import ENDLESS
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)


class RestartBackoffTimeStrategy(ABC):
    """Decides whether and when to restart after a failure. ``notify_failure`` counts a failure; the
    other methods answer about the last counted failure and change nothing (FO-08). Times are
    monotonic seconds."""

    is_endless = False
    """Whether the strategy allows any number of restarts."""

    @abstractmethod
    def notify_failure(self, now: float) -> bool:
        """Count a failure, and return True. If a restart is pending already, the failure belongs to
        the earlier one: return False and count nothing."""

    @abstractmethod
    def can_restart(self) -> bool:
        """Return whether a restart is allowed after the last failure."""

    @abstractmethod
    def backoff_time(self, now: float) -> float:
        """Return the seconds to wait before the restart."""


class _NoRestart(RestartBackoffTimeStrategy):
    def notify_failure(self, now: float) -> bool:
        return True

    def can_restart(self) -> bool:
        return False

    def backoff_time(self, now: float) -> float:
        return 0.0


class _FixedDelay(RestartBackoffTimeStrategy):
    def __init__(self, settings: FixedDelayRestart) -> None:
        self._settings = settings
        self._failures = 0
        self.is_endless = settings.attempts >= ENDLESS

    def notify_failure(self, now: float) -> bool:
        self._failures += 1
        return True

    def can_restart(self) -> bool:
        return self._failures <= self._settings.attempts

    def backoff_time(self, now: float) -> float:
        return self._settings.delay


class _FailureRate(RestartBackoffTimeStrategy):
    def __init__(self, settings: FailureRateRestart) -> None:
        self._settings = settings
        self._failures: deque[float] = deque(maxlen=settings.max_failures_per_interval + 1)

    def notify_failure(self, now: float) -> bool:
        self._failures.append(now)
        return True

    def can_restart(self) -> bool:
        if len(self._failures) <= self._settings.max_failures_per_interval:
            return True
        return self._failures[-1] - self._failures[0] > self._settings.interval

    def backoff_time(self, now: float) -> float:
        return self._settings.delay


class _ExponentialDelay(RestartBackoffTimeStrategy):
    """Restarts after growing delays in whole milliseconds, as Flink's strategy of the same name."""

    def __init__(self, settings: ExponentialDelayRestart, random: Callable[[], float]) -> None:
        self._settings = settings
        self.is_endless = settings.attempts is None
        self._random = random
        self._failures = 0
        self._restart_at: float | None = None
        """Monotonic seconds when the restart after the last failure is or was due; None before."""

    def notify_failure(self, now: float) -> bool:
        if self._restart_at is not None:
            quiet_ms = round((now - self._restart_at) * 1000)
            if quiet_ms <= 0:
                return False
            if quiet_ms >= round(self._settings.reset_backoff_threshold * 1000):
                self._failures = 0
        self._failures += 1
        self._restart_at = now + self._next_backoff_ms() / 1000
        return True

    def can_restart(self) -> bool:
        return self._settings.attempts is None or self._failures <= self._settings.attempts

    def backoff_time(self, now: float) -> float:
        if self._restart_at is None:
            raise IllegalTransitionError("there is no back-off before the first failure")
        return max(0.0, self._restart_at - now)

    def _next_backoff_ms(self) -> int:
        settings = self._settings
        limit = settings.max_backoff * 1000
        base = settings.initial_backoff * 1000
        for _ in range(self._failures - 1):
            # Far above the limit the base no longer matters; growing further would overflow.
            base = min(base * settings.backoff_multiplier, limit * 1e6)
        offset = int(base * settings.jitter_factor)
        jitter = int(self._random() * (2 * offset + 1)) - offset
        return int(min(base + jitter, limit))


def new_restart_strategy(
    settings: RestartStrategy, random: Callable[[], float] = lambda: 0.5
) -> RestartBackoffTimeStrategy:
    """Create the restart strategy for these settings.  *random* returns numbers in [0, 1), for
    jitter."""
    if isinstance(settings, NoRestart):
        return _NoRestart()
    if isinstance(settings, FixedDelayRestart):
        return _FixedDelay(settings)
    if isinstance(settings, FailureRateRestart):
        return _FailureRate(settings)
    return _ExponentialDelay(settings, random)
