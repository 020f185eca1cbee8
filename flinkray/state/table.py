"""State tables: what every backend offers, in three shapes.

A table is a named state of one operator's subtask.  What it holds for one key is at a *place*: the
key, or, where state belongs to windows, the pair of key and namespace.

Values belong to the table from when they are put in, and what is read still belongs to it: whoever
lets user code see a value copies it (the handles do).  Only what comes from ``get_to_change`` and
``take`` may be changed in place.  A table's methods may be looked up once before a loop, but not be
kept across a snapshot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flinkray.state.descriptors import StateDescriptor
from flinkray.state.serializers import StateSerializer


class _Missing:
    __slots__ = ()


MISSING: Any = _Missing()
"""Stands for no value where None could be one."""


PointReader = Callable[[Sequence[Any]], list[Any]]
"""What there is at places: a value, a list, or a dictionary; MISSING where there is nothing."""


class StateTable(ABC):
    """What the shapes have in common.

    Args:
        namespaced: places are pairs of key and namespace.
    """

    def __init__(self, descriptor: StateDescriptor, namespaced: bool = False) -> None:
        self.descriptor = descriptor
        self.namespaced = namespaced
        self.serializer = StateSerializer(descriptor)

    @abstractmethod
    def __len__(self) -> int:
        """Places that hold something."""

    def estimated_size(self) -> int:
        """About how many these are, where counting them takes time."""
        return len(self)

    @abstractmethod
    def __contains__(self, place: Any) -> bool:
        """Whether there is something."""

    @abstractmethod
    def places(self) -> Iterator[Any]:
        """Those that hold something now; the table may be changed meanwhile."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Places and what they hold, not to be changed; the table may be changed meanwhile, and
        what is given may be what there was a moment ago."""

    @abstractmethod
    def remove(self, place: Any) -> None:
        """Whatever is there."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything."""

    @abstractmethod
    def point_reader(self) -> PointReader:
        """From now on other threads may read, while the task's thread goes on; the table may become
        slower by that.  To be called by the task's thread, before the table is used.

        What is read of one place is what was there at one moment, and stays so: nobody changes it
        any more.  Of several places, moments may differ.  Whoever changes what ``get_to_change``
        gave must put it back, and readers see it from then on.

        Raises:
            StateError: the backend cannot do that.
        """


class ValueTable(StateTable):
    """One value at a place."""

    @abstractmethod
    def get(self, place: Any, default: Any = None) -> Any:
        """The value, not to be changed."""

    @abstractmethod
    def get_to_change(self, place: Any, default: Any = None) -> Any:
        """The value, for whoever may change it in place; it counts as changed if it can be."""

    @abstractmethod
    def take(self, place: Any, default: Any = None) -> Any:
        """Remove the value, and give it to the caller for good."""

    @abstractmethod
    def put(self, place: Any, value: Any) -> None:
        """Replace the value."""

    @abstractmethod
    def put_all(self, values: Mapping[Any, Any]) -> None:
        """Replace many, by place."""


class ListTable(StateTable):
    """A list at a place; none is empty."""

    @abstractmethod
    def get(self, place: Any) -> Sequence[Any]:
        """The elements, as long as the place is not changed."""

    @abstractmethod
    def take(self, place: Any) -> Sequence[Any]:
        """Remove the list, and give its elements to the caller for good."""

    @abstractmethod
    def append(self, place: Any, value: Any) -> bool:
        """Add an element; whether it is the first one."""

    @abstractmethod
    def extend(self, place: Any, values: Iterable[Any]) -> None:
        """Add elements."""

    @abstractmethod
    def put(self, place: Any, values: Iterable[Any]) -> None:
        """Replace the elements."""


class MapTable(StateTable):
    """Entries at a place, in the order of insertion; no map is empty."""

    @abstractmethod
    def get(self, place: Any, key: Any, default: Any = None) -> Any:
        """The value of an entry, not to be changed."""

    @abstractmethod
    def get_to_change(self, place: Any, key: Any, default: Any = None) -> Any:
        """The value, for whoever may change it in place; it counts as changed if it can be."""

    @abstractmethod
    def contains(self, place: Any, key: Any) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self, place: Any) -> Iterable[tuple[Any, Any]]:
        """Keys and values, as long as the place is not changed."""

    @abstractmethod
    def put(self, place: Any, key: Any, value: Any) -> None:
        """Replace an entry."""

    @abstractmethod
    def put_all(self, place: Any, entries: Mapping[Any, Any]) -> None:
        """Replace many entries."""

    @abstractmethod
    def remove_entry(self, place: Any, key: Any) -> None:
        """If it is there."""
