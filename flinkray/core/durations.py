"""Defines PyFlink's ``Time`` and ``Duration`` (milliseconds), and converts between the text of a
duration, for example ``"10 s"``, and its number of seconds.
"""

from __future__ import annotations

import numbers
import re
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache, total_ordering

_DURATION_UNITS = {
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def _times(number: int, unit: int) -> int:
    """Return ``number * unit``, for a span of *number* units of time.

    A text is refused, because ``*`` would repeat it.

    Raises:
        TypeError: *number* is not a number.
    """
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise TypeError(f"a span of time takes a number, got {number!r}")
    return number * unit


@total_ordering
class _Milliseconds:
    __slots__ = ("_milliseconds",)

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = int(_times(milliseconds, 1))

    def to_milliseconds(self) -> int:
        """Return the whole span in milliseconds."""
        return self._milliseconds

    def to_timedelta(self) -> timedelta:
        """Return the span as a :class:`~datetime.timedelta`."""
        return timedelta(milliseconds=self._milliseconds)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Milliseconds):
            return self._milliseconds == other._milliseconds
        return NotImplemented

    def __lt__(self, other: object) -> bool:
        if isinstance(other, _Milliseconds):
            return self._milliseconds < other._milliseconds
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._milliseconds} ms)"


class Time(_Milliseconds):
    """A span of time for windows, gaps and time to live (PyFlink's ``Time``)."""

    __slots__ = ()

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        """Return a span of this many milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> Time:
        """Return a span of this many seconds."""
        return Time(_times(seconds, 1000))

    @staticmethod
    def minutes(minutes: int) -> Time:
        """Return a span of this many minutes."""
        return Time(_times(minutes, 60_000))

    @staticmethod
    def hours(hours: int) -> Time:
        """Return a span of this many hours."""
        return Time(_times(hours, 3_600_000))

    @staticmethod
    def days(days: int) -> Time:
        """Return a span of this many days of 24 hours."""
        return Time(_times(days, 86_400_000))


class Duration(_Milliseconds):
    """A span of time for watermarks and time-outs (PyFlink's ``Duration``)."""

    __slots__ = ()

    @staticmethod
    def of_millis(millis: int) -> Duration:
        """Return a span of this many milliseconds."""
        return Duration(millis)

    @staticmethod
    def of_seconds(seconds: int) -> Duration:
        """Return a span of this many seconds."""
        return Duration(_times(seconds, 1000))

    @staticmethod
    def of_minutes(minutes: int) -> Duration:
        """Return a span of this many minutes."""
        return Duration(_times(minutes, 60_000))

    @staticmethod
    def of_hours(hours: int) -> Duration:
        """Return a span of this many hours."""
        return Duration(_times(hours, 3_600_000))

    @staticmethod
    def of_days(days: int) -> Duration:
        """Return a span of this many days of 24 hours."""
        return Duration(_times(days, 86_400_000))

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """Return a span of this many nanoseconds, rounded down to milliseconds."""
        return Duration(nanos // 1_000_000)

    @staticmethod
    def of(delta: timedelta) -> Duration:
        """Return a timedelta as a duration, rounded down to milliseconds."""
        return Duration(delta // timedelta(milliseconds=1))


Span = Time | Duration | timedelta | int
"""Types that are accepted as a span of time; an int is milliseconds."""


def milliseconds(span: Time | Duration | timedelta | int) -> int:
    """Return the span in milliseconds.

    Raises:
        TypeError: *span* is not a span of time (a float has no unit, a bool is a mistake).
    """
    if isinstance(span, _Milliseconds):
        return span.to_milliseconds()
    if isinstance(span, timedelta):
        return span // timedelta(milliseconds=1)
    if isinstance(span, int) and not isinstance(span, bool):
        return span
    raise TypeError(
        f"expected a span of time (Time, Duration, timedelta or milliseconds as int), got {span!r}"
    )


def parse_duration(value: object) -> float:
    """Return the seconds of ``"500 ms"``, ``"10 s"``, ``"1.5min"``, ``"2 h"`` or a timedelta.
    A number without a unit is refused, except 0: Flink reads milliseconds, Python users expect
    seconds. Raises ValueError or TypeError."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        if seconds < 0:
            raise ValueError(f"negative duration: {value}")
        return seconds
    if not isinstance(value, str):
        raise TypeError(f"not a duration: {value!r}")
    return _parse_duration(value)


@lru_cache(1024)
def _parse_duration(value: str) -> float:
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"not a duration: {value!r}")
    number, unit = float(match[1]), match[2].lower()
    if not unit and number == 0:
        return 0.0
    if unit not in _DURATION_UNITS:
        raise ValueError(f"no unit of time: {value!r}")
    return number / 1000 if unit == "ms" else number * _DURATION_UNITS[unit]


@lru_cache(1024)
def format_duration(seconds: float) -> str:
    """Return a text that :func:`parse_duration` reads back as exactly this number of seconds."""
    text = format(Decimal(repr(seconds)), "f")  # no exponent, shortest digits
    return f"{text.removesuffix('.0')} s"
