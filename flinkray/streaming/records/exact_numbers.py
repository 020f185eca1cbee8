"""Check whether doubles hold numbers that are written with many digits."""

from __future__ import annotations

import re
from decimal import Decimal

_PARTS = re.compile(r"[+-]?([0-9]*)\.?([0-9]*)(?:[eE].*)?")


def is_exact(text: str) -> bool:
    """Return whether the nearest double, printed with as many digits, equals the number.
    So digits that come only from printing a double, such as 0.1000000000000000056, are no loss."""
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
