"""Manages final checkpoints: after the end of its input, a task waits for a checkpoint and then
ends. The checkpoint commits the task's results."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flinkray.core.ids import ExecutionAttemptID

FIRST_DELAY = 0.02
"""Seconds from the first waiting task to the checkpoint, which then covers later tasks as well."""
NEXT_DELAY = 0.5
"""Seconds between checks whether a suitable checkpoint is in progress.
The earlier checkpoint may have failed, or could not begin because other tasks were not running."""


class FinalCheckpoints:
    """Tracks the tasks that wait for a final checkpoint, and decides when such a checkpoint is
    needed. So no task waits for the next periodic checkpoint, or forever."""

    def __init__(self) -> None:
        self._waiting: dict[ExecutionAttemptID, int] = {}
        """Attempt -> id of the latest checkpoint that does not cover the attempt's end."""
        self.number = 0
        """Number of the current timer."""
        self._has_timer = False

    def add(self, attempt_id: ExecutionAttemptID, after: int) -> bool:
        """Note that the attempt waits for a checkpoint with an id above *after*. Returns whether
        the caller must start a timer, with the current :attr:`number`.
        """
        self._waiting[attempt_id] = after
        return self._start_timer()

    def _start_timer(self) -> bool:
        if self._has_timer:
            return False
        self._has_timer = True
        self.number += 1
        return True

    def fired(self, number: int) -> bool:
        """Handle that the timer with this number has fired. Returns whether tasks still wait, so
        that the caller must start the next timer.
        """
        if number != self.number or not self._has_timer:
            return False
        self._has_timer = False
        return bool(self._waiting) and self._start_timer()

    def completed(self, checkpoint_id: int) -> None:
        """Forget the tasks that have waited for this checkpoint, because they can end now."""
        self._waiting = {a: after for a, after in self._waiting.items() if after >= checkpoint_id}

    def ended(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        for attempt_id in attempts:
            self._waiting.pop(attempt_id, None)

    def are_missing(self, pending: Collection[int]) -> bool:
        """Return whether some task waits for a checkpoint that is later than all *pending*
        checkpoints.
        """
        latest = max(pending, default=0)
        return any(after >= latest for after in self._waiting.values())
