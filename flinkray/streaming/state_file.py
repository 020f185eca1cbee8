"""Files that the state of operators refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class StateFile:
    """A file that operator state refers to; a savepoint has a copy of it."""

    name: str
    """By which the operator knows it."""
    pieces: Callable[[], Iterator[bytes]]
    """Its bytes."""
