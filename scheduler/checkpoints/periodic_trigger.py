"""When the next periodic checkpoint is due."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration


class PeriodicTrigger:
    """A timer, one after the other.  A timer is known by a number; of an earlier number it is
    late."""

    def __init__(self, configuration: CheckpointConfiguration, random: Callable[[], float]) -> None:
        """*random*: numbers in [0, 1), so that jobs that start together do not trigger together."""
        self._period = configuration.period
        self._pause = configuration.pause
        self._random = random
        self._last_over: float | None = None
        self.is_running = False
        self.number = 0
        """Of the timer that is waited for."""

    def start(self) -> float | None:
        """The delay of the first timer, between the pause and the period (CP-10); None: there is
        none."""
        if self._period is None or self.is_running:
            return None
        self.is_running = True
        return self._next(self._pause + self._random() * (self._period - self._pause))

    def stop(self) -> None:
        self.is_running = False
        self.number += 1

    def fired(self, number: int) -> float | None:
        """The delay of the timer after this one; None: it was late."""
        if number != self.number or not self.is_running or self._period is None:
            return None
        return self._next(self._period)

    def put_off(self, now: float) -> float:
        """The delay of a timer in place of the next one: until the pause is over."""
        return self._next(self.remaining_pause(now))

    def checkpoint_over(self, now: float) -> None:
        """One is complete: the pause begins (CP-09)."""
        self._last_over = now

    def remaining_pause(self, now: float) -> float:
        """Seconds; 0: it is over."""
        if self._last_over is None:
            return 0.0
        return max(self._last_over + self._pause - now, 0.0)

    def _next(self, delay: float) -> float:
        self.number += 1
        return delay
