"""Timers of an operator by time: part of its keyed state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class TimerQueue(ABC):
    """Timers, unique per time, key and namespace.  Those of one time are in the order of their
    registration."""

    @abstractmethod
    def add(self, timestamp: int, key: Any, namespace: Any) -> bool:
        """Whether it was not there before."""

    @abstractmethod
    def discard(self, timestamp: int, key: Any, namespace: Any) -> None:
        """Remove a timer if it is there."""

    @abstractmethod
    def first(self) -> int | None:
        """The earliest time that has a timer."""

    @abstractmethod
    def at(self, timestamp: int, most: int | None = None) -> list[tuple[Any, Any]]:
        """Key and namespace of the first timers of that time, all if *most* is None.  They stay
        until :meth:`claim` takes each: one that fires may delete the next."""

    @abstractmethod
    def claim(self, timestamp: int, timer: tuple[Any, Any]) -> bool:
        """Take a timer out; False where it is not there any more."""

    @abstractmethod
    def __len__(self) -> int:
        """Timers."""

    @abstractmethod
    def items(self) -> Iterable[tuple[int, Any, Any]]:
        """All, as long as none is changed."""
