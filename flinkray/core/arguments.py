"""What programs give by mistake, refused where they give it."""

from __future__ import annotations

import operator
import os


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


def path_of(value: object, whose: str, hint: str = "") -> str:
    """A path, absolute: tasks may have another working directory than the program.

    Args:
        whose: what it is the path of, with its article.
        hint: what to say besides.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, str | os.PathLike):
        return os.path.abspath(value)
    raise TypeError(f"a path of {whose} is a str or a pathlib.Path, got {value!r}{hint}")
