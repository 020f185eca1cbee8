"""Decides whether a vertex that fails with the same error again is attempted once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from flinkray.core.job_options import RESTART_ATTEMPTS_WITH_SAME_ERROR, RESTART_PATIENCE_WITH_FILES
from flinkray.core.recurring_errors import ProgramError

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
