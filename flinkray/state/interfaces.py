"""The state handles that user functions hold.

A handle is always about one key: that of the record or timer being processed. State changes only
through handles: mutable values are copied on the way in and out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic

import numpy.typing as npt
from typing_extensions import TypeVar

T = TypeVar("T", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
IN = TypeVar("IN", default=Any)
OUT = TypeVar("OUT", default=Any)


class State(ABC):
    """A named state of the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what this state has stored for the current key."""


class ValueState(State, Generic[T]):
    """A handle of state with one value per key."""

    @abstractmethod
    def value(self) -> T | None:
        """Return the value; if there is none, the descriptor's default (None unless set)."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Replace the value of the current key; None removes the value."""


class AppendingState(State, Generic[IN, OUT]):
    """A handle of state to which elements are added."""

    @abstractmethod
    def get(self) -> OUT:
        """Return the combined result of all added elements."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add one element to the state."""


class MergingState(AppendingState[IN, OUT]):
    """Appending state that is merged when windows merge, such as session windows."""


class ReducingState(MergingState[T, "T | None"], Generic[T]):
    """A handle of state with one value per key, to which all added values are reduced.
    ``get`` returns None if nothing was added."""


class AggregatingState(MergingState[IN, "OUT | None"], Generic[IN, OUT]):
    """A handle of state with the result, per key, of an aggregate function over added values.
    ``get`` returns None if nothing was added."""


class ListState(MergingState[T, Iterable[T]], Generic[T]):
    """A handle of state with a list per key, which is empty (not None) if nothing was added."""

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Add several elements, none of which may be None."""

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the list; an empty list removes the state."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapState(State, Generic[K, V]):
    """A handle of state with a map per key."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of *key* in the map; None if the map does not have *key*."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of *key* in the map."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Set the values of several keys in the map."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry of *key* from the map, if it exists."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether the map has a value for *key*."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Return the map's (key, value) pairs in the order of insertion.
        The map may be changed during the iteration."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Return keys in the order of insertion; the map may be changed during the iteration."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """Return values in the order of insertion; the map may be changed during the iteration."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether the map is empty."""

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
    """A number for each key, in an array, for functions that process whole batches."""

    @property
    @abstractmethod
    def values(self) -> npt.NDArray[Any]:
        """The numbers of all keys so far, read and written in place. The index of a key is its slot
        (``ctx.slots``).
        The array is valid for the current batch only. Write only to the slots of that batch."""


class ReadOnlyBroadcastState(State, Generic[K, V]):
    """Broadcast state as seen by the side that is not broadcast: it can only be read."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of *key* in the map; None if the map does not have *key*."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether the map has a value for *key*."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Return the map's (key, value) pairs in the order of insertion."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Return the map's keys in the order of insertion."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """Return the map's values in the order of insertion."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether the map is empty."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """A map that every subtask holds as a whole; broadcast elements change all copies equally."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of *key* in the map."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Set the values of several keys in the map."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry of *key* from the map, if it exists."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)
