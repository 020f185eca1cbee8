"""What programs give by mistake, refused where they give it."""

from __future__ import annotations

import operator


def whole_number(value: object, what: str) -> int:
    """An integer, of whatever type.

    Raises:
        TypeError: it is none.  A truth value is a mistake, too; a number as a text is not read.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(f"{what} is a whole number (int), got {value!r}")
