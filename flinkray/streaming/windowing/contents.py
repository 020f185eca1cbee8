"""The contents of windows: all records, or one value to which the records are reduced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flinkray.kernels.rows import own, own_all
from flinkray.state.backend import KeyedStateBackend
from flinkray.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from flinkray.state.table import MISSING, ListTable, ValueTable
from flinkray.streaming.windowing.evictors import TimestampedValue

NAME = "window-contents"


Add = Callable[[Any, Any, "int | None"], bool]
"""Type of functions that add a record to the contents of a place.
(place, value, timestamp) -> whether the place was empty."""


Fold = Callable[[Any, Any], Any]
"""Type of functions that add a value to contents.
(value, contents so far) -> new contents. The function may change the contents so far."""


class WindowContents(ABC):
    """Says what is stored for a window, and how records are added to it. A place in the table is a
    pair (key, window)."""

    descriptor: StateDescriptor

    @abstractmethod
    def table(self, state: KeyedStateBackend) -> Any:
        """Return the table in *state* that holds the contents by key and window."""

    @abstractmethod
    def adder(self, table: Any) -> Add:
        """Return a function that adds one record to the contents of a place in *table*.
        The function is valid until the next snapshot."""

    # For whole blocks: the records of a block at a place are combined first, then stored.

    @abstractmethod
    def first(self, value: Any) -> Any:
        """Begin to combine records of a block for a place without contents: return the entry for
        *value*. :meth:`folder` adds further records, and :meth:`store` puts the entry into the
        table."""

    @abstractmethod
    def go_on(self, table: Any, place: Any, value: Any) -> Any:
        """Return an entry (:meth:`first`) that adds *value* to the contents of *place* once it is
        stored. MISSING if the place has no contents."""

    @abstractmethod
    def folder(self) -> Fold:
        """Return a function of (record, entry) that returns the entry with the record added."""

    @abstractmethod
    def store(self, table: Any, window: Any, entries: Mapping[Any, Any]) -> None:
        """Put *entries*, for each key the combined records of a block, into the table as contents
        of *window*. Lists are appended to the stored contents; other entries replace them."""

    @abstractmethod
    def read(self, table: Any, place: Any) -> Sequence[Any]:
        """Return copies of a place's elements for the window function; empty if there are none."""

    @abstractmethod
    def take(self, table: Any, place: Any) -> Sequence[Any]:
        """Remove a place's contents and return its elements for the window function."""


class ListContents(WindowContents):
    """Keeps the contents of each window as a list of all its records."""

    def __init__(self) -> None:
        self.descriptor = ListStateDescriptor(NAME)

    def table(self, state: KeyedStateBackend) -> Any:
        return state.list_table(self.descriptor, namespaced=True)

    def adder(self, table: ListTable) -> Add:
        append = table.append
        return lambda place, value, timestamp: append(place, value)

    def first(self, value: Any) -> Any:
        return [value]

    def go_on(self, table: ListTable, place: Any, value: Any) -> Any:
        return [value] if place in table else MISSING

    def folder(self) -> Fold:
        return _appended

    def store(self, table: ListTable, window: Any, entries: Mapping[Any, Any]) -> None:
        for key, values in entries.items():
            table.extend((key, window), values)

    def read(self, table: ListTable, place: Any) -> Sequence[Any]:
        return own_all(list(table.get(place)))

    def take(self, table: ListTable, place: Any) -> Sequence[Any]:
        return table.take(place)


class TimestampedContents(ListContents):
    """Keeps the contents of each window as a list of records with timestamps, for evictors."""

    def adder(self, table: ListTable) -> Add:
        append = table.append
        return lambda place, value, timestamp: append(place, TimestampedValue(value, timestamp))

    def read(self, table: ListTable, place: Any) -> Sequence[Any]:
        return own_all([element.value for element in table.get(place)])

    def take(self, table: ListTable, place: Any) -> Sequence[Any]:
        return [element.value for element in table.take(place)]


def _appended(value: Any, values: list[Any]) -> list[Any]:
    values.append(value)
    return values


class _FoldedContents(WindowContents):
    fold: Fold

    def folder(self) -> Fold:
        return self.fold

    def store(self, table: ValueTable, window: Any, entries: Mapping[Any, Any]) -> None:
        table.put_all({(key, window): entry for key, entry in entries.items()})

    def go_on(self, table: ValueTable, place: Any, value: Any) -> Any:
        entry = table.get_to_change(place, MISSING)
        return MISSING if entry is MISSING else self.fold(value, entry)


class ReduceContents(_FoldedContents):
    """Keeps the contents of each window as one value, to which its records are reduced."""

    def __init__(self, function: Any) -> None:
        self.descriptor = ReducingStateDescriptor(NAME, function)
        reduce = self._reduce = self.descriptor.reduce
        self.fold = lambda value, entry: reduce(entry, value)

    def first(self, value: Any) -> Any:
        return value

    def table(self, state: KeyedStateBackend) -> Any:
        return state.value_table(self.descriptor, namespaced=True)

    def adder(self, table: ValueTable) -> Add:
        get, put, reduce = table.get_to_change, table.put, self._reduce

        def add(place: Any, value: Any, timestamp: int | None) -> bool:
            current = get(place, MISSING)
            if current is MISSING:
                put(place, value)
                return True
            put(place, reduce(current, value))
            return False

        return add

    def read(self, table: ValueTable, place: Any) -> Sequence[Any]:
        value = table.get(place, MISSING)
        return () if value is MISSING else (own(value),)

    def take(self, table: ValueTable, place: Any) -> Sequence[Any]:
        value = table.take(place, MISSING)
        return () if value is MISSING else (value,)


class AggregateContents(_FoldedContents):
    """Keeps the contents of each window as one accumulator of an aggregate function."""

    def __init__(self, function: Any) -> None:
        self.descriptor = AggregatingStateDescriptor(NAME, function)
        self._create = function.create_accumulator
        self.fold = function.add
        self._result = function.get_result

    def first(self, value: Any) -> Any:
        return self.fold(value, self._create())

    def table(self, state: KeyedStateBackend) -> Any:
        return state.value_table(self.descriptor, namespaced=True)

    def adder(self, table: ValueTable) -> Add:
        get, put, create, add_value = table.get_to_change, table.put, self._create, self.fold

        def add(place: Any, value: Any, timestamp: int | None) -> bool:
            current = get(place, MISSING)
            if current is MISSING:
                put(place, add_value(value, create()))
                return True
            put(place, add_value(value, current))
            return False

        return add

    def read(self, table: ValueTable, place: Any) -> Sequence[Any]:
        accumulator = table.get_to_change(place, MISSING)
        return () if accumulator is MISSING else (own(self._result(accumulator)),)

    def take(self, table: ValueTable, place: Any) -> Sequence[Any]:
        accumulator = table.take(place, MISSING)
        return () if accumulator is MISSING else (self._result(accumulator),)


class WindowEvaluation(ABC):
    """Base class: makes a window's results of its elements, mostly with a window function."""

    function: Any = None

    @abstractmethod
    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        """Return the results of a window; *context* is the context of process window functions."""

    def without_context(self) -> Callable[[Any, Any, Sequence[Any]], Iterable[Any] | None] | None:
        """Return a function that makes the same results of key, window and elements. None: the
        evaluation needs a context."""
        return None

    def clear(self, context: Any) -> None:
        """Called when the window is removed: clear the state that the function keeps for it."""
        return


class PassOn(WindowEvaluation):
    """The evaluation of windows without a window function: the elements are the results."""

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        return elements

    def without_context(self) -> Callable[[Any, Any, Sequence[Any]], Iterable[Any] | None]:
        return self.results


class Apply(WindowEvaluation):
    """Calls a WindowFunction, or an AllWindowFunction if there are no keys."""

    def __init__(self, function: Any, keyed: bool) -> None:
        self.function = function
        self._keyed = keyed

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        return self.without_context()(key, context.window(), elements)

    def without_context(self) -> Callable[[Any, Any, Sequence[Any]], Iterable[Any] | None]:
        apply: Callable[..., Iterable[Any] | None] = self.function.apply
        return apply if self._keyed else lambda key, window, elements: apply(window, elements)


class Process(WindowEvaluation):
    """Calls a ProcessWindowFunction, or a ProcessAllWindowFunction if there are no keys."""

    def __init__(self, function: Any, keyed: bool) -> None:
        self.function = function
        self._keyed = keyed

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        if self._keyed:
            return self.function.process(key, context, elements)  # type: ignore[no-any-return]
        return self.function.process(context, elements)  # type: ignore[no-any-return]

    def clear(self, context: Any) -> None:
        self.function.clear(context)
