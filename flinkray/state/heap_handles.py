"""The handles of heap state: a table, and where to find the current key.

They are on the path of every record, hence the flat attribute access and no helper functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flinkray.state.errors import StateError
from flinkray.state.interfaces import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)

_ATOMS = (int, float, str, bytes, bool, type(None))


class _Missing:
    __slots__ = ()


MISSING: Any = _Missing()


class _NoKey:
    """Refuses every look into a table, or into timers, by having no hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise StateError(
            "keyed state and timers belong to a key, and there is none here: use them where a "
            "record of the keyed stream or a timer is handled, not in open() or "
            "process_broadcast_element()"
        )


NO_KEY: Any = _NoKey()


class KeyContext:
    """The key that state is about now."""

    __slots__ = ("key",)

    def __init__(self, key: Any = NO_KEY) -> None:
        self.key = key


def reader_of_default(default: Any) -> Callable[[], Any]:
    """What gives a state's default: each reader has its own, so that it may change it."""
    if isinstance(default, _ATOMS):
        return lambda: default
    return lambda: copy.deepcopy(default)


class HeapValueState(ValueState[Any]):
    """See :class:`ValueState`."""

    __slots__ = ("_context", "_default", "_get", "_table")

    def __init__(self, table: dict[Any, Any], context: KeyContext, default: Any) -> None:
        self._table = table
        self._get = table.get
        self._context = context
        self._default = reader_of_default(default)

    def value(self) -> Any:
        value = self._get(self._context.key, MISSING)
        return self._default() if value is MISSING else value

    def update(self, value: Any) -> None:
        if value is None:
            self._table.pop(self._context.key, None)
        else:
            self._table[self._context.key] = value

    def clear(self) -> None:
        self._table.pop(self._context.key, None)


class HeapListState(ListState[Any]):
    """See :class:`ListState`."""

    __slots__ = ("_context", "_table")

    def __init__(self, table: dict[Any, Any], context: KeyContext) -> None:
        self._table = table
        self._context = context

    def get(self) -> Iterable[Any]:
        return list(self._table.get(self._context.key, ()))

    def add(self, value: Any) -> None:
        if value is None:
            raise StateError("None cannot be added to a list state")
        values = self._table.get(self._context.key)
        if values is None:
            self._table[self._context.key] = [value]
        else:
            values.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        added = _without_none(values)
        if added:
            self._table.setdefault(self._context.key, []).extend(added)

    def update(self, values: Iterable[Any]) -> None:
        replacement = _without_none(values)
        if replacement:
            self._table[self._context.key] = replacement
        else:
            self._table.pop(self._context.key, None)

    def clear(self) -> None:
        self._table.pop(self._context.key, None)


def _without_none(values: Iterable[Any] | None) -> list[Any]:
    if values is None:
        raise StateError("None is no list; use clear() to empty a list state")
    result = list(values)
    if any(value is None for value in result):
        raise StateError("None cannot be added to a list state")
    return result


class HeapReducingState(ReducingState[Any]):
    """See :class:`ReducingState`."""

    __slots__ = ("_context", "_reduce", "_table")

    def __init__(
        self, table: dict[Any, Any], context: KeyContext, reduce: Callable[[Any, Any], Any]
    ) -> None:
        self._table = table
        self._context = context
        self._reduce = reduce

    def get(self) -> Any:
        return self._table.get(self._context.key)

    def add(self, value: Any) -> None:
        if value is None:
            self._table.pop(self._context.key, None)
            return
        key = self._context.key
        current = self._table.get(key, MISSING)
        self._table[key] = value if current is MISSING else self._reduce(current, value)

    def clear(self) -> None:
        self._table.pop(self._context.key, None)


class HeapAggregatingState(AggregatingState[Any, Any]):
    """See :class:`AggregatingState`; the accumulator is what is stored."""

    __slots__ = ("_add", "_context", "_create", "_result", "_table")

    def __init__(self, table: dict[Any, Any], context: KeyContext, function: Any) -> None:
        self._table = table
        self._context = context
        self._create = function.create_accumulator
        self._add = function.add
        self._result = function.get_result

    def get(self) -> Any:
        accumulator = self._table.get(self._context.key, MISSING)
        return None if accumulator is MISSING else self._result(accumulator)

    def add(self, value: Any) -> None:
        key = self._context.key
        accumulator = self._table.get(key, MISSING)
        if accumulator is MISSING:
            accumulator = self._create()
        self._table[key] = self._add(value, accumulator)

    def clear(self) -> None:
        self._table.pop(self._context.key, None)


class MapIterator(Iterator[Any]):
    """Goes through a map as it was when the iterator was made."""

    def __init__(self, entries: dict[Any, Any], remove: Callable[[Any], None], what: str) -> None:
        self._entries = iter(list(entries.items()))
        self._remove = remove
        self._what = what
        self._current: Any = MISSING

    def __next__(self) -> Any:
        key, value = next(self._entries)
        self._current = key
        return key if self._what == "keys" else value if self._what == "values" else (key, value)

    def remove(self) -> None:
        """Remove the pair that was returned last.

        Raises:
            StateError: nothing was returned yet, or it was removed already.
        """
        if self._current is MISSING:
            raise StateError("remove() goes with one call of next() before it")
        self._remove(self._current)
        self._current = MISSING


class HeapMapState(MapState[Any, Any]):
    """See :class:`MapState`."""

    __slots__ = ("_context", "_table")

    def __init__(self, table: dict[Any, Any], context: KeyContext) -> None:
        self._table = table
        self._context = context

    def get(self, key: Any) -> Any:
        entries = self._table.get(self._context.key)
        return None if entries is None else entries.get(key)

    def put(self, key: Any, value: Any) -> None:
        entries = self._table.get(self._context.key)
        if entries is None:
            self._table[self._context.key] = {key: value}
        else:
            entries[key] = value

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        if dict_value:
            self._table.setdefault(self._context.key, {}).update(dict_value)

    def remove(self, key: Any) -> None:
        entries = self._table.get(self._context.key)
        if entries is not None and key in entries:
            del entries[key]
            if not entries:
                del self._table[self._context.key]

    def contains(self, key: Any) -> bool:
        entries = self._table.get(self._context.key)
        return entries is not None and key in entries

    def items(self) -> MapIterator:
        return self._iterate("items")

    def keys(self) -> MapIterator:
        return self._iterate("keys")

    def values(self) -> MapIterator:
        return self._iterate("values")

    def _iterate(self, what: str) -> MapIterator:
        state_key = self._context.key

        def remove(key: Any) -> None:
            entries = self._table.get(state_key)
            if entries is not None:
                entries.pop(key, None)
                if not entries:
                    del self._table[state_key]

        return MapIterator(self._table.get(state_key, {}), remove, what)

    def is_empty(self) -> bool:
        return not self._table.get(self._context.key)

    def clear(self) -> None:
        self._table.pop(self._context.key, None)
