"""Numbers and times as text: Java's ``toString`` format, and whether a double keeps all digits."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from decimal import Decimal

import numpy as np


def java_double(value: float) -> str:
    """Return the text of a double in the form of Java's ``Double.toString``."""
    return _java_float(float(value), repr(float(value)))


def java_float(value: float) -> str:
    """Return the text of a float in the form of Java's ``Float.toString``."""
    with np.errstate(over="ignore"):
        short = np.float32(value)
    return _java_float(float(short), str(short))


def _java_float(value: float, shortest: str) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = decimal.Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent
    """Position of the decimal point, counted from the first digit."""
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    if 1e-3 <= abs(value) < 1e7:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        whole, rest = text[:point].ljust(point, "0"), text[point:]
        return f"{minus}{whole}.{rest or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def java_time(value: datetime.time) -> str:
    """Return the text of ``java.sql.Time.toString``, without fractions of a second."""
    return f"{value:%H:%M:%S}"


def java_timestamp(value: datetime.datetime) -> str:
    """Return the text of a timestamp as Java's ``java.sql.Timestamp.toString`` does."""
    fraction = f"{value.microsecond:06}".rstrip("0") or "0"
    return f"{value:%Y-%m-%d %H:%M:%S}.{fraction}"


_PARTS = re.compile(r"[+-]?([0-9]*)\.?([0-9]*)(?:[eE].*)?")


def is_exact(text: str) -> bool:
    """Return whether a double keeps the number in *text*: the nearest double, printed with as many
    digits, equals the number. Digits that come only from printing a double, such as
    0.1000000000000000056, are therefore no loss."""
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return True  # infinity, by name
    digits = len((parts[1] + parts[2]).lstrip("0"))
    if not digits:
        return True
    number = float(text)
    if number == 0 or abs(number) == float("inf"):
        return False
    return Decimal(text) == Decimal(f"{number:.{digits - 1}e}")
