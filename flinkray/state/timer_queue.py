"""The interface of an operator's timers, ordered by time, which are part of its keyed state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class TimerQueue(ABC):
    """An ordered set of timers; each is unique by time, key and namespace.
    Timers of the same time are in the order of registration."""

    @abstractmethod
    def add(self, timestamp: int, key: Any, namespace: Any) -> bool:
        """Add a timer. Returns False if it exists already."""

    @abstractmethod
    def discard(self, timestamp: int, key: Any, namespace: Any) -> None:
        """Remove a timer, if it exists."""

    @abstractmethod
    def first(self) -> int | None:
        """Return the earliest time of a timer; None if there are no timers."""

    @abstractmethod
    def at(self, timestamp: int, most: int | None = None) -> list[tuple[Any, Any]]:
        """Return (key, namespace) of the first *most* timers at *timestamp*. None: of all.
        The timers stay in the queue until :meth:`claim` removes each, because a timer that fires
        may delete the next timer."""

    @abstractmethod
    def claim(self, timestamp: int, timer: tuple[Any, Any]) -> bool:
        """Remove a timer that is about to fire. Returns False if it does not exist any more."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of timers."""

    @abstractmethod
    def items(self) -> Iterable[tuple[int, Any, Any]]:
        """Yield all timers; valid until a timer is added or removed."""
