"""Checks the types of arguments that users often pass wrongly."""

from __future__ import annotations

import operator
import os
from collections.abc import Hashable, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def whole_number(value: object, what: str) -> int:
    """Return *value* as an int; any integer type is accepted. *what*: name of the argument, for the
    error. Raises TypeError: *value* is no integer. A bool is refused, and a text is not parsed."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(f"{what} is a whole number (int), got {value!r}")


def first_twice(names: Sequence[Name]) -> Name | None:
    """Return the first name that occurs more than once; None if all names differ."""
    if len(set(names)) == len(names):
        return None
    return next(name for name in names if names.count(name) > 1)


def path_of(value: object, whose: str, hint: str = "") -> str:
    """Return *value* as an absolute path, because tasks may have another working directory.
    *whose*: what the path belongs to, with an article, for the error text; *hint* is appended to
    the text. Raises TypeError: *value* is not a path."""
    if isinstance(value, str | os.PathLike):
        return os.path.abspath(value)
    raise TypeError(f"a path of {whose} is a str or a pathlib.Path, got {value!r}{hint}")
