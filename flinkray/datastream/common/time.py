"""Time spans and moments (PyFlink's ``pyflink.common.time``)."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.durations import Duration, Time

__all__ = ["Duration", "Instant", "Time"]


@dataclass(frozen=True, order=True)
class Instant:
    """Moment, in seconds since the epoch and additional nanoseconds.

    Instants are the values of the type ``Types.INSTANT()``; columns of that type are made of
    ``datetime.datetime``.

    >>> Instant.of_epoch_milli(1500)
    Instant<1, 500000000>
    >>> Instant.of_epoch_milli(-1).to_epoch_milli()
    -1

    Raises:
        ValueError: *nanos* is less than 0, or a second or more.
    """

    seconds: int
    nanos: int

    def __post_init__(self) -> None:
        if not 0 <= self.nanos < 1_000_000_000:
            raise ValueError(f"nanos must be 0 to 999999999, got {self.nanos}")

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """Return the moment *epoch_milli* milliseconds after the epoch; before it, if negative."""
        seconds, millis = divmod(epoch_milli, 1000)
        return Instant(seconds, millis * 1_000_000)

    def to_epoch_milli(self) -> int:
        """Return milliseconds since the epoch, rounded down."""
        return self.seconds * 1000 + self.nanos // 1_000_000

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"
