"""A clock that a test sets."""

from __future__ import annotations


class ManualClock:
    """Stands still until it is advanced.

    For code that asks a clock for the time.  What waits on an event loop is for
    :func:`flinkray.testing.on_virtual_time` or :func:`flinkray.testing.simulate`.
    """

    def __init__(self, epoch: float = 0.0) -> None:
        """*epoch*: the wall clock, in seconds, when :meth:`monotonic` is 0."""
        self._epoch = epoch
        self._now = 0.0

    def time(self) -> float:
        return self._epoch + self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let so much time pass.

        Raises:
            ValueError: a negative number: time does not go back.
        """
        if seconds < 0:
            raise ValueError(f"cannot advance a clock by {seconds:g} s")
        self._now += seconds

    def set_wall_clock(self, time: float) -> None:
        """Somebody corrects the machine's clock; :meth:`monotonic` does not notice."""
        self._epoch = time - self._now
