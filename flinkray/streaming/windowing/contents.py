"""What is kept of a window's records: all of them, or one value that they were reduced to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flinkray.core.values import own, own_all
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
"""Adds a record, that is a value with a timestamp, at a place; whether it is the first there."""


Fold = Callable[[Any, Any], Any]
"""Of a value and what was put together before it, which it may change."""


class WindowContents(ABC):
    """How records get into the table of contents, and out of it."""

    descriptor: StateDescriptor

    @abstractmethod
    def table(self, state: KeyedStateBackend) -> Any:
        """Where the contents are, by key and window."""

    @abstractmethod
    def adder(self, table: Any) -> Add:
        """The way in, until the next snapshot."""

    # The same for whole blocks: what a block brings at a place is put together first.

    @abstractmethod
    def first(self, value: Any) -> Any:
        """Of a place that has nothing yet."""

    @abstractmethod
    def go_on(self, table: Any, place: Any, value: Any) -> Any:
        """Of one that has something, else MISSING."""

    @abstractmethod
    def folder(self) -> Fold:
        """The same with one more."""

    @abstractmethod
    def store(self, table: Any, window: Any, entries: Mapping[Any, Any]) -> None:
        """What was put together, by key."""

    @abstractmethod
    def read(self, table: Any, place: Any) -> Sequence[Any]:
        """What the window function is given, which may change it; nothing where nothing is."""

    @abstractmethod
    def take(self, table: Any, place: Any) -> Sequence[Any]:
        """The same for the last time: the contents go."""


class ListContents(WindowContents):
    """All records."""

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
    """All records with their timestamps, for evictors."""

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
    """One value, to which records are added."""

    fold: Fold

    def folder(self) -> Fold:
        return self.fold

    def store(self, table: ValueTable, window: Any, entries: Mapping[Any, Any]) -> None:
        table.put_all({(key, window): entry for key, entry in entries.items()})

    def go_on(self, table: ValueTable, place: Any, value: Any) -> Any:
        entry = table.get_to_change(place, MISSING)
        return MISSING if entry is MISSING else self.fold(value, entry)


class ReduceContents(_FoldedContents):
    """One value."""

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
    """One accumulator."""

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
    """Calls the user's window function."""

    function: Any = None

    @abstractmethod
    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        """The results of a window; *context* is that of process window functions."""

    def clear(self, context: Any) -> None:
        """The window goes."""
        return


class PassOn(WindowEvaluation):
    """No window function: the elements are the results."""

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        return elements


class Apply(WindowEvaluation):
    """A WindowFunction, or an AllWindowFunction where there are no keys."""

    def __init__(self, function: Any, keyed: bool) -> None:
        self.function = function
        self._keyed = keyed

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        if self._keyed:
            return self.function.apply(key, context.window(), elements)  # type: ignore[no-any-return]
        return self.function.apply(context.window(), elements)  # type: ignore[no-any-return]


class Process(WindowEvaluation):
    """A ProcessWindowFunction, or a ProcessAllWindowFunction where there are no keys."""

    def __init__(self, function: Any, keyed: bool) -> None:
        self.function = function
        self._keyed = keyed

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        if self._keyed:
            return self.function.process(key, context, elements)  # type: ignore[no-any-return]
        return self.function.process(context, elements)  # type: ignore[no-any-return]

    def clear(self, context: Any) -> None:
        self.function.clear(context)
