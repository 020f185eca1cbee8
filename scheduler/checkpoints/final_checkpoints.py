"""Tasks that end with a checkpoint: their input has ended, and what they have is committed with
it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flinkray.core.ids import ExecutionAttemptID

FIRST_DELAY = 0.02
"""Seconds after the first of them has told: those that end with it are covered as well."""
NEXT_DELAY = 0.5
"""Seconds until it is looked again whether one is under way: it may have failed, or not have been
begun because other tasks were not running yet."""


class FinalCheckpoints:
    """Who waits for one, so that nobody waits for the next periodic one, or for ever."""

    def __init__(self) -> None:
        self._waiting: dict[ExecutionAttemptID, int] = {}
        """Attempt -> the latest checkpoint that does not cover its end."""
        self.number = 0
        """Of the timer that is waited for."""
        self._has_timer = False

    def add(self, attempt_id: ExecutionAttemptID, after: int) -> bool:
        """It waits for one later than *after*.  Whether a timer is to be started, of the number."""
        self._waiting[attempt_id] = after
        return self._start_timer()

    def _start_timer(self) -> bool:
        if self._has_timer:
            return False
        self._has_timer = True
        self.number += 1
        return True

    def fired(self, number: int) -> bool:
        """The timer of that number.  Whether somebody waits, and another timer is to be started."""
        if number != self.number or not self._has_timer:
            return False
        self._has_timer = False
        return bool(self._waiting) and self._start_timer()

    def completed(self, checkpoint_id: int) -> None:
        """Whoever is covered by it waits no longer."""
        self._waiting = {a: after for a, after in self._waiting.items() if after >= checkpoint_id}

    def ended(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        for attempt_id in attempts:
            self._waiting.pop(attempt_id, None)

    def are_missing(self, pending: Collection[int]) -> bool:
        """Whether somebody waits whom none of these checkpoints, which are under way, covers."""
        latest = max(pending, default=0)
        return any(after >= latest for after in self._waiting.values())
