"""Checks times from user code: whole numbers of milliseconds, of Python or NumPy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from operator import index
from typing import Any

from flinkray.streaming.errors import StreamError, text_of

_EXPECTED = "a time is a whole number (int) of milliseconds since 1970"


def timer_time(time: Any) -> int:
    """Return the time of a timer, as user code has given it, as a Python int.
    The time may be later than all possible timestamps, for example the last watermark plus a delay.
    A timer at such a time never fires. Raises StreamError: *time* is no whole number."""
    if type(time) is int:
        return time
    if not hasattr(time, "__index__"):
        raise StreamError(f"a timer was set to {text_of(time)}: {_EXPECTED}")
    return index(time)


NO_TIMES = "not timestamps or milliseconds as integers"
"""The part of error messages for a column that holds no times."""

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1)
_AWARE_EPOCH = _EPOCH.replace(tzinfo=timezone.utc)


def time_of_field(value: Any, name: str) -> int:
    """Return the time in a field of a record, in milliseconds.
    As in Arrow, a time without zone is in UTC. Raises StreamError: the field holds no time."""
    if isinstance(value, datetime):
        since = value - (_EPOCH if value.utcoffset() is None else _AWARE_EPOCH)
        return int(since // _MILLISECOND)
    if value is None or not hasattr(value, "__index__"):
        raise StreamError(f"field {name!r} holds {text_of(value)}, {NO_TIMES}")
    return index(value)


def first_wrong(timestamps: Sequence[Any]) -> int | None:
    """Return the index of the first timestamp that is no whole number of 64 bits; None if there is
    none."""
    try:
        array("q", timestamps)
    except (TypeError, OverflowError):
        if len(timestamps) == 1:
            return 0
        return next(p for p, t in enumerate(timestamps) if first_wrong([t]) is not None)
    return None


def wrong_timestamp(timestamp: Any) -> StreamError:
    """Return the error for a timestamp of a timestamp assigner that is no 64-bit whole number."""
    return StreamError(
        f"the timestamp assigner returned {text_of(timestamp)}: {_EXPECTED}, of 64 bits"
    )
