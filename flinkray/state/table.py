"""What every backend keeps: state tables in three shapes, timers in order, the current key.

A table is a named state of one subtask. The contents of one key are at a *place*: the key, or, if
state belongs to windows, the pair of key and namespace.

Values belong to the table after they are put in, and values that are read still belong to the
table. Code that passes values to user code must copy them (the handles do). Only values from
``get_to_change`` and ``take`` may be changed in place. A table's methods may be looked up once
before a loop, but must not be kept across a snapshot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flinkray.kernels.rows import KeyHolder
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.state_serializer import StateSerializer


class _Missing:
    __slots__ = ()


MISSING: Any = _Missing()
"""Stands for "no value" where None could be a value."""


PointReader = Callable[[Sequence[Any]], list[Any]]
"""Returns the contents of places: a value, a list or a dictionary each, or MISSING."""


class StateTable(ABC):
    """Base class of the tables of values, lists and maps. A place is a key or, if *namespaced*, a
    pair (key, namespace); a namespace is mostly a window."""

    def __init__(self, descriptor: StateDescriptor, namespaced: bool = False) -> None:
        self.descriptor = descriptor
        self.namespaced = namespaced
        self.serializer = StateSerializer(descriptor)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of places (key, or key and window) that have contents."""

    def estimated_size(self) -> int:
        """Return the number of places (key, or key and window) that have contents; approximate in
        backends that count slowly."""
        return len(self)

    @abstractmethod
    def __contains__(self, place: Any) -> bool:
        """Return whether the place (key, or key and window) has contents."""

    @abstractmethod
    def places(self) -> Iterator[Any]:
        """Return the places (key, or key and window) that have contents now; the table may change
        during the iteration."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Yield (place, contents); the contents must not be changed.
        The table may change during the iteration; the contents may be slightly out of date."""

    @abstractmethod
    def remove(self, place: Any) -> None: ...

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def point_reader(self) -> PointReader:
        """Return a function with which other threads read, while the task's thread continues.

        The task's thread calls this method before the table is used; the table may become slower.
        The function returns the contents that each place had at one moment, which may differ
        between places. These contents are not changed any more. A caller of ``get_to_change`` must
        put the changed value back; readers see the change from then on. Raises StateError if the
        backend does not support this.
        """


class ValueTable(StateTable):
    """A table with one value per place (a key, or a pair of key and namespace)."""

    @abstractmethod
    def get(self, place: Any, default: Any = None) -> Any:
        """Return the value of a place (key, or key and window), or *default*. Do not change the
        returned value."""

    @abstractmethod
    def get_to_change(self, place: Any, default: Any = None) -> Any:
        """Return the value of a place (key, or key and namespace), or *default*. The caller may
        change it in place; a mutable value is treated as changed in any case."""

    @abstractmethod
    def take(self, place: Any, default: Any = None) -> Any:
        """Remove and return the value of a place (key, or key and window), or *default*. The caller
        may change it."""

    @abstractmethod
    def put(self, place: Any, value: Any) -> None: ...

    @abstractmethod
    def put_all(self, values: Mapping[Any, Any]) -> None: ...


class ListsInMemory(NamedTuple):
    """Direct access to a table of lists. Before the first change of a place (a key, or key and
    window) that is not in *changed*, call *first_change* with the place."""

    entries: dict[Any, list[Any]]
    changed: set[Any] | None
    """None: changes are not noted."""
    first_change: Callable[[Any], object]


class ListTable(StateTable):
    """A table with one list per place (a key, or a pair of key and namespace). A place with an
    empty list counts as empty."""

    @abstractmethod
    def get(self, place: Any) -> Sequence[Any]:
        """Return the elements at a place (key, or key and window); valid until the place is
        changed."""

    @abstractmethod
    def take(self, place: Any) -> Sequence[Any]:
        """Remove and return the elements at a place (key, or key and window). The caller may change
        them."""

    @abstractmethod
    def append(self, place: Any, value: Any) -> bool:
        """Add an element to the list of a place (key, or key and window). Returns whether the list
        was empty."""

    @abstractmethod
    def extend(self, place: Any, values: Iterable[Any]) -> None: ...

    @property
    def in_memory(self) -> ListsInMemory | None:
        """The lists by place, which callers may change directly until the next capture.
        None: callers must use the methods."""
        return None

    @abstractmethod
    def put(self, place: Any, values: Iterable[Any]) -> None: ...


class MapTable(StateTable):
    """A table with one map per place (a key, or a pair of key and namespace), in the order of
    insertion. A place with an empty map counts as empty."""

    @abstractmethod
    def get(self, place: Any, key: Any, default: Any = None) -> Any:
        """Return the value of *key* in the map of a place (key, or key and window), or *default*.
        Do not change the returned value."""

    @abstractmethod
    def get_to_change(self, place: Any, key: Any, default: Any = None) -> Any:
        """Return the value of *key* in the map of a place (key, or key and window), or *default*.
        The caller may change it in place; a mutable value is treated as changed in any case."""

    @abstractmethod
    def contains(self, place: Any, key: Any) -> bool: ...

    @abstractmethod
    def items(self, place: Any) -> Iterable[tuple[Any, Any]]:
        """Return the (key, value) pairs of the map of a place (key, or key and window); valid until
        the place is changed."""

    @abstractmethod
    def put(self, place: Any, key: Any, value: Any) -> None: ...

    @abstractmethod
    def put_all(self, place: Any, entries: Mapping[Any, Any]) -> None: ...

    @abstractmethod
    def remove_entry(self, place: Any, key: Any) -> None:
        """Remove the entry of *key* from the map of a place (key, or key and window), if the entry
        exists."""


class TimerQueue(ABC):
    """An ordered set of timers; each is unique by time, key and namespace.
    Timers of the same time are in the order of registration."""

    @abstractmethod
    def add(self, timestamp: int, key: Any, namespace: Any) -> bool:
        """Add a timer. Returns False if it exists already."""

    @abstractmethod
    def discard(self, timestamp: int, key: Any, namespace: Any) -> None: ...

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

    def timers_in_memory(self, timestamp: int) -> dict[Any, None] | None:
        """Return the timers at *timestamp*, which callers may add to directly until the next call
        of :meth:`first` or the next capture. None: callers must use :meth:`add`."""
        return None

    def claim_all(self, timestamp: int, timers: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Remove *timers*, which :meth:`at` has returned. Returns those that do not exist."""
        return [timer for timer in timers if not self.claim(timestamp, timer)]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def items(self) -> Iterable[tuple[int, Any, Any]]:
        """Yield all timers; valid until a timer is added or removed."""


class _NoKey:
    """The present key while there is none. It has no hash, so using a state or timer fails."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise StateError(
            "keyed state and timers belong to a key, and there is none here: use them where a "
            "record of the keyed stream or a timer is handled, not in open() or "
            "process_broadcast_element()"
        )


NO_KEY: Any = _NoKey()


class KeyContext(KeyHolder):
    """Holds the present key (*key*), to which handles of state and timers refer.
    For state of windows, *key* is the pair (key, window)."""

    __slots__ = ()

    def __init__(self, key: Any = NO_KEY) -> None:
        self.key = key
