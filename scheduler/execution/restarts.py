"""Decides whether and when a job restarts after a failure (restart strategies, repeated errors),
and tracks regions that wait for a restart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.job_options import (
    ENDLESS,
    RESTART_ATTEMPTS_WITH_SAME_ERROR,
    RESTART_PATIENCE_WITH_FILES,
)
from flinkray.core.recurring_errors import ProgramError
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


_MOST_KINDS = 256
"""Largest number of errors that are remembered; the errors seen longest ago are forgotten."""


class RepetitionLimits(NamedTuple):
    """Limits after which a vertex that fails with the same error again is not attempted any
    more."""

    attempts: int = RESTART_ATTEMPTS_WITH_SAME_ERROR.default
    """Number of attempts with the same error; 0 means no limit."""
    patience_with_files: float = RESTART_PATIENCE_WITH_FILES.default
    """For a temporary kind of error: minimum seconds between the first and the last attempt."""


DEFAULT_LIMITS = RepetitionLimits()


@dataclass
class _Seen:
    times: int
    since: float
    at: float
    record: str
    checkpoints: int


class RepeatedErrors:
    """Counts the attempts of each vertex that end with the same error. Other errors in between
    change nothing.  A completed checkpoint resets the count, unless the program fails on the same
    record again.  If several subtasks of one attempt end with the error, they count once."""

    def __init__(self, limits: RepetitionLimits) -> None:
        self._limits = limits
        self._seen: dict[tuple[str, str], _Seen] = {}
        """(vertex, error kind) -> count; the error seen last is last in the order."""

    def notify_failure(
        self, error: ProgramError, vertex: str, begun: float | None, checkpoints: int, now: float
    ) -> bool:
        """Count an attempt of a vertex that ended with this error.
        Returns True if the vertex must not be attempted again.

        Args:
            begun: monotonic seconds when the attempt was deployed; None if unknown.
            checkpoints: number of checkpoints that the job has completed.
        """
        key = vertex, error.kind
        seen = self._seen.get(key)
        if seen is not None and begun is not None and begun <= seen.at:
            return False
        is_same_record = seen is not None and bool(error.record) and error.record == seen.record
        times, since = 1, now
        if seen is not None and (checkpoints == seen.checkpoints or is_same_record):
            times, since = seen.times + 1, seen.since
        self._forget(key, checkpoints)
        self._seen[key] = _Seen(times, since, now, error.record, checkpoints)
        if error.may_pass and now - since < self._limits.patience_with_files:
            return False
        return 0 < self._limits.attempts <= times

    def attempts(self, error: ProgramError, vertex: str) -> int:
        """Return how many attempts of the vertex were counted for the error. Raises KeyError if the
        error was not counted for the vertex."""
        return self._seen[vertex, error.kind].times

    def _forget(self, key: tuple[str, str], checkpoints: int) -> None:
        """Remove the error *key*. Also remove the errors that no longer count: those that name no
        record and were seen before the last checkpoint, and the oldest ones if there are too many.
        """
        self._seen.pop(key, None)
        for other, seen in list(self._seen.items()):
            if seen.checkpoints < checkpoints and not seen.record:
                del self._seen[other]
        while len(self._seen) >= _MOST_KINDS:
            del self._seen[next(iter(self._seen))]


class PendingRestart:
    """A restart, not carried out yet, of regions that failed together, by one or several
    failures."""

    __slots__ = ("delay_is_over", "generation", "is_global", "regions", "unended")

    def __init__(self, generation: int, is_global: bool) -> None:
        self.generation = generation
        self.is_global = is_global
        self.regions: dict[int, None] = {}
        self.unended = 0
        """Number of regions in which something still runs."""
        self.delay_is_over = False

    @property
    def is_due(self) -> bool:
        return self.delay_is_over and not self.unended


class PendingRestarts:
    """All restarts that are decided and not carried out yet. A region waits for at most one
    restart: that of its last failure. A later failure takes over regions from an earlier restart,
    which then no longer restarts them (EX-15)."""

    def __init__(self) -> None:
        self._by_generation: dict[int, PendingRestart] = {}
        self._of_region: dict[int, PendingRestart] = {}

    def __bool__(self) -> bool:
        return bool(self._by_generation)

    def __contains__(self, region: int) -> bool:
        return region in self._of_region

    def add(
        self, generation: int, regions: Iterable[int], unended: set[int], *, is_global: bool
    ) -> tuple[PendingRestart, list[PendingRestart]]:
        """Add a restart of *regions*, which takes over regions from earlier restarts. Returns (the
        restart, earlier restarts that are due now).  *unended*: regions in which a task still runs.

        An earlier restart becomes due if it waited only for regions that the new restart has taken
        over.
        """
        restart = PendingRestart(generation, is_global)
        earlier: dict[int, PendingRestart] = {}
        for index in regions:
            before = self._of_region.get(index)
            if before is not None:
                del before.regions[index]
                before.unended -= index in unended
                restart.is_global |= before.is_global
                earlier[before.generation] = before
            self._of_region[index] = restart
            restart.regions[index] = None
            restart.unended += index in unended
        self._by_generation[generation] = restart
        for before in earlier.values():
            if not before.regions:
                del self._by_generation[before.generation]
        due = [before for before in earlier.values() if before.regions and before.is_due]
        return restart, due

    def delay_is_over(self, generation: int) -> PendingRestart | None:
        """Mark the delay of a restart as over, and return the restart; None if it no longer
        exists."""
        restart = self._by_generation.get(generation)
        if restart is not None:
            restart.delay_is_over = True
        return restart

    def due(self) -> list[PendingRestart]:
        """Return the restarts whose delay is over and whose regions have no running tasks."""
        return [restart for restart in self._by_generation.values() if restart.is_due]

    def find(self, generation: int) -> PendingRestart | None:
        """Return the restart with this number (generation); None if it no longer exists."""
        return self._by_generation.get(generation)

    def region_ended(self, index: int) -> PendingRestart | None:
        """Make the restart that waits for the region wait no longer for it, because all tasks of
        the region have ended. Returns the restart; None if there is none."""
        restart = self._of_region.get(index)
        if restart is not None:
            restart.unended -= 1
        return restart

    def take(self, restart: PendingRestart) -> list[int]:
        """Remove a restart, because it is carried out now.  Returns the indices of its regions."""
        del self._by_generation[restart.generation]
        indices = sorted(restart.regions)
        restart.regions.clear()
        for index in indices:
            del self._of_region[index]
        return indices

    def clear(self) -> None:
        """Forget all pending restarts."""
        self._by_generation.clear()
        self._of_region.clear()
