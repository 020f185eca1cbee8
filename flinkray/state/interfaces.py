"""The state handles that user functions hold.

A handle is always about one key: that of the record or timer which is being processed.  State
changes only through handles: values that can be changed are copied on their way in and out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy.typing as npt

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(ABC):
    """One named state of one key."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what is stored for the current key."""


class ValueState(State, Generic[T]):
    """One value per key."""

    @abstractmethod
    def value(self) -> T | None:
        """The value, or the descriptor's default (None) where there is none."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Replace the value; None removes it."""


class AppendingState(State, Generic[IN, OUT]):
    """State to which elements are added."""

    @abstractmethod
    def get(self) -> OUT:
        """What the elements amount to."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add one element."""


class MergingState(AppendingState[IN, OUT]):
    """Appending state of which several can become one (sessions that merge)."""


class ReducingState(MergingState[T, "T | None"], Generic[T]):
    """One value per key that a reduce function makes of all added ones; None while empty."""


class AggregatingState(MergingState[IN, "OUT | None"], Generic[IN, OUT]):
    """The result of an aggregate function over all added values; None while empty."""


class ListState(MergingState[T, Iterable[T]], Generic[T]):
    """A list per key; empty (not None) where nothing was added."""

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Add several elements, none of them None."""

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the list; an empty one removes it."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapState(State, Generic[K, V]):
    """A map per key."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of *key*, or None."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of *key*."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Set several values."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove *key* if it is there."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether *key* has a value."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Pairs in the order of insertion; the map may be changed while they are gone through."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """As :meth:`items`."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """As :meth:`items`."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no pair."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class ArrayState(ABC):
    """A number for each key, in an array: for functions that are given whole batches."""

    @property
    @abstractmethod
    def values(self) -> npt.NDArray[Any]:
        """One number for each key that has come, by slot.  It is read and written in place, and
        good for the batch that is processed: there is another one when more keys have come.  Write
        only to the slots of that batch."""


class ReadOnlyBroadcastState(State, Generic[K, V]):
    """Broadcast state as the side that is not broadcast sees it."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of *key*, or None."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether *key* has a value."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Pairs in the order of insertion."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """As :meth:`items`."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """As :meth:`items`."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no pair."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """A map that every subtask holds whole and that broadcast elements change in all alike."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of *key*."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Set several values."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove *key* if it is there."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)
