"""Decides when periodic checkpoints are due."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration

CATCH_UP_PAUSE = 0.5
"""Seconds between attempts, while checkpoints are missing and none could be triggered."""


class PeriodicTrigger:
    """Decides when the next periodic checkpoint is due; :attr:`number` is the number of the only
    timer that counts. While checkpoints could not be taken (:attr:`are_missing`), the next one is
    due at once, and is tried again every :data:`CATCH_UP_PAUSE` seconds until tasks are triggered,
    because sinks wait for it to commit.
    """

    def __init__(self, configuration: CheckpointConfiguration, random: Callable[[], float]) -> None:
        """Make a trigger that is not started. *random* returns numbers in [0, 1), which let jobs
        that start together take checkpoints at different times.
        """
        self._period = configuration.period
        self._pause = configuration.pause
        self._random = random
        self._last_over: float | None = None
        self.is_running = False
        self.are_missing = False
        """Whether checkpoints are missing because they could not be taken for a while."""
        self.number = 0
        """Number of the current timer."""

    def start(self) -> float | None:
        """Start periodic checkpoints.  Returns the delay of the first timer, in seconds. The delay
        is between the pause and the period (CP-10).  None if checkpoints are not periodic, or were
        started before."""
        if self._period is None or self.is_running:
            return None
        self.is_running = True
        return self._next(self._pause + self._random() * (self._period - self._pause))

    def catch_up(self, now: float) -> float | None:
        """Note that checkpoints could not be taken, so that the next one is due soon. Returns the
        delay of a timer that replaces the current timer; None if periodic checkpoints are stopped.
        """
        if not self.is_running:
            return None
        self.are_missing = True
        return self.put_off(now)

    def triggered(self) -> float | None:
        """Note that tasks were told to take a checkpoint. Returns the delay of a timer that
        replaces the current timer; None if the current timer stays."""
        if not self.are_missing or self._period is None:
            return None
        self.are_missing = False
        return self._next(self._period) if self.is_running else None

    def stop(self) -> None:
        self.is_running = self.are_missing = False
        self.number += 1

    def fired(self, number: int) -> float | None:
        """Handle that a timer has fired.  Returns the delay of the next timer. None if the timer
        was replaced before."""
        if number != self.number or not self.is_running or self._period is None:
            return None
        return self._next(min(self._period, CATCH_UP_PAUSE) if self.are_missing else self._period)

    def put_off(self, now: float) -> float:
        """Replace the current timer by one that fires when the pause is over. Returns the new
        timer's delay in seconds.
        """
        return self._next(self.remaining_pause(now))

    def checkpoint_over(self, now: float) -> None:
        """Note that a checkpoint is complete: the minimum pause before the next one begins
        (CP-09).
        """
        self._last_over = now

    def remaining_pause(self, now: float) -> float:
        """Return the remaining seconds of the pause after the last complete checkpoint; 0 if it is
        over.
        """
        if self._last_over is None:
            return 0.0
        return max(self._last_over + self._pause - now, 0.0)

    def _next(self, delay: float) -> float:
        self.number += 1
        return delay
