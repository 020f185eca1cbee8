"""Handles of keyed state: each refers to a table and to the context with the current key.

Handles copy mutable values on the way in and out, so that state changes only through a handle. They
are called for every record, so they use flat attribute access and no helper functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flinkray.core.values import IMMUTABLE, own, own_all
from flinkray.state.errors import StateError
from flinkray.state.interfaces import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from flinkray.state.key_values import as_key, own_key
from flinkray.state.table import MISSING, KeyContext, ListTable, MapTable, ValueTable


class TableValueState(ValueState[Any]):
    """The handle of a value state: a :class:`ValueState` whose values are in a table of a
    backend."""

    __slots__ = ("_context", "_default", "_table")

    def __init__(self, table: ValueTable, context: KeyContext, default: Any) -> None:
        self._table = table
        self._context = context
        self._default = own(default)

    def value(self) -> Any:
        value = self._table.get(self._context.key, MISSING)
        if type(value) in IMMUTABLE:
            return value
        return own(self._default if value is MISSING else value)

    def update(self, value: Any) -> None:
        if type(value) not in IMMUTABLE:
            value = own(value)
        elif value is None:
            self._table.remove(self._context.key)
            return
        self._table.put(self._context.key, value)

    def clear(self) -> None:
        self._table.remove(self._context.key)


class TableListState(ListState[Any]):
    """A :class:`ListState` whose lists are in a table of a backend."""

    __slots__ = ("_context", "_table")

    def __init__(self, table: ListTable, context: KeyContext) -> None:
        self._table = table
        self._context = context

    def get(self) -> Iterable[Any]:
        return owned_list(self._table.get(self._context.key))

    def add(self, value: Any) -> None:
        if value is None:
            raise StateError("None cannot be added to a list state")
        if type(value) not in IMMUTABLE:
            value = own(value)
        self._table.append(self._context.key, value)

    def add_all(self, values: Iterable[Any]) -> None:
        self._table.extend(self._context.key, own_all(without_none(values)))

    def update(self, values: Iterable[Any]) -> None:
        self._table.put(self._context.key, own_all(without_none(values)))

    def clear(self) -> None:
        self._table.remove(self._context.key)


def owned_list(values: Iterable[Any]) -> list[Any]:
    """Return a new list of *values* that user code may change: mutable values are copied."""
    copied = list(values)
    owned: list[Any] = own_all(copied)  # type: ignore[assignment]
    return owned


def without_none(values: Iterable[Any] | None) -> list[Any]:
    """Return the values as a list. Raises StateError if *values* or an element is None."""
    if values is None:
        raise StateError("None is no list; use clear() to empty a list state")
    result = list(values)
    if any(value is None for value in result):
        raise StateError("None cannot be added to a list state")
    return result


class TableReducingState(ReducingState[Any]):
    """A :class:`ReducingState` whose values are in a table of a backend."""

    __slots__ = ("_context", "_reduce", "_table")

    def __init__(
        self, table: ValueTable, context: KeyContext, reduce: Callable[[Any, Any], Any]
    ) -> None:
        self._table = table
        self._context = context
        self._reduce = reduce

    def get(self) -> Any:
        return own(self._table.get(self._context.key))

    def add(self, value: Any) -> None:
        key = self._context.key
        if value is None:
            self._table.remove(key)
            return
        value = own(value)
        current = self._table.get_to_change(key, MISSING)
        self._table.put(key, value if current is MISSING else self._reduce(current, value))

    def clear(self) -> None:
        self._table.remove(self._context.key)


class TableAggregatingState(AggregatingState[Any, Any]):
    """An :class:`AggregatingState` whose accumulators are in a table of a backend."""

    __slots__ = ("_add", "_context", "_create", "_result", "_table")

    def __init__(self, table: ValueTable, context: KeyContext, function: Any) -> None:
        self._table = table
        self._context = context
        self._create = function.create_accumulator
        self._add = function.add
        self._result = function.get_result

    def get(self) -> Any:
        accumulator = self._table.get_to_change(self._context.key, MISSING)
        return None if accumulator is MISSING else own(self._result(accumulator))

    def add(self, value: Any) -> None:
        key = self._context.key
        if value is None:
            self._table.remove(key)
            return
        accumulator = self._table.get_to_change(key, MISSING)
        if accumulator is MISSING:
            accumulator = self._create()
        self._table.put(key, self._add(own(value), accumulator))

    def clear(self) -> None:
        self._table.remove(self._context.key)


class MapIterator(Iterator[Any]):
    """Iterates over a copy of a map, made when the iterator was created."""

    def __init__(
        self, entries: Iterable[tuple[Any, Any]], remove: Callable[[Any], None], what: str
    ) -> None:
        self._entries = iter(list(entries))
        self._remove = remove
        self._what = what
        self._current: Any = MISSING

    def __next__(self) -> Any:
        key, value = next(self._entries)
        self._current = key
        if self._what == "values":
            return own(value)
        key = own(key)
        return key if self._what == "keys" else (key, own(value))

    def remove(self) -> None:
        """Remove the entry that was returned last.
        Raises StateError if nothing was returned yet, or the entry was removed already."""
        if self._current is MISSING:
            raise StateError("remove() goes with one call of next() before it")
        self._remove(self._current)
        self._current = MISSING


class TableMapState(MapState[Any, Any]):
    """A :class:`MapState` whose maps are in a table of a backend."""

    __slots__ = ("_context", "_table")

    def __init__(self, table: MapTable, context: KeyContext) -> None:
        self._table = table
        self._context = context

    def get(self, key: Any) -> Any:
        value = self._table.get(self._context.key, as_key(key))
        return value if type(value) in IMMUTABLE else own(value)

    def put(self, key: Any, value: Any) -> None:
        if type(value) not in IMMUTABLE:
            value = own(value)
        self._table.put(self._context.key, own_key(key), value)

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        self._table.put_all(self._context.key, own_entries(dict_value))

    def contains(self, key: Any) -> bool:
        return self._table.contains(self._context.key, as_key(key))

    def is_empty(self) -> bool:
        return self._context.key not in self._table

    def remove(self, key: Any) -> None:
        self._table.remove_entry(self._context.key, as_key(key))

    def items(self) -> MapIterator:
        return self._iterate("items")

    def keys(self) -> MapIterator:
        return self._iterate("keys")

    def values(self) -> MapIterator:
        return self._iterate("values")

    def _iterate(self, what: str) -> MapIterator:
        place, table = self._context.key, self._table
        return MapIterator(table.items(place), lambda key: table.remove_entry(place, key), what)

    def clear(self) -> None:
        self._table.remove(self._context.key)


def own_entries(entries: dict[Any, Any]) -> dict[Any, Any]:
    """Return a copy of the dictionary that user code may change: mutable keys and values are
    copied, too."""
    return {own_key(key): own(value) for key, value in entries.items()}
