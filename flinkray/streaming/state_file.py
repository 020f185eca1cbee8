"""Files that belong to the state of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class StateFile:
    """A file that operator state refers to. A savepoint has a copy of the file."""

    name: str
    """The name by which the operator knows the file."""
    pieces: Callable[[], Iterator[bytes]]
    """Returns an iterator over the bytes of the file, in pieces."""
