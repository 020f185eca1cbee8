"""Handles of state with a time to live.

What is stored is ``(value, renewed)``, the second being processing time in milliseconds; in lists
and maps each element or entry has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flinkray.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.errors import StateError
from flinkray.state.heap_handles import (
    MISSING,
    KeyContext,
    MapIterator,
    _without_none,
    reader_of_default,
)
from flinkray.state.interfaces import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from flinkray.state.ttl import StateTtlConfig, StateVisibility, UpdateType


class _Expiry:
    """When entries expire, and whether that may be seen."""

    def __init__(
        self,
        table: dict[Any, Any],
        context: KeyContext,
        config: StateTtlConfig,
        now: Callable[[], int],
    ) -> None:
        self.table = table
        self.context = context
        self.now = now
        self._ttl = config.ttl
        self._renew_on_read = config.update_type is UpdateType.OnReadAndWrite
        self._show_expired = config.state_visibility is StateVisibility.ReturnExpiredIfNotCleanedUp

    def read(self, entries: dict[Any, Any], key: Any) -> Any:
        """The value under *key*, or MISSING.  An expired one is removed by this, and returned for
        the last time if it may be seen."""
        entry = entries.get(key)
        if entry is None:
            return MISSING
        value, renewed = entry
        now = self.now()
        if renewed + self._ttl <= now:
            del entries[key]
            return value if self._show_expired else MISSING
        if self._renew_on_read:
            entries[key] = (value, now)
        return value

    def read_list(self) -> list[Any]:
        entries = self.table.get(self.context.key)
        if entries is None:
            return []
        now = self.now()
        kept = [entry for entry in entries if entry[1] + self._ttl > now]
        seen = entries if self._show_expired else kept
        if self._renew_on_read:
            kept = [(value, now) for value, _ in kept]
        if kept:
            self.table[self.context.key] = kept
        else:
            del self.table[self.context.key]
        return [value for value, _ in seen]


class TtlValueState(ValueState[Any]):
    """A :class:`ValueState` that expires."""

    def __init__(self, expiry: _Expiry, default: Any) -> None:
        self._expiry = expiry
        self._default = reader_of_default(default)

    def value(self) -> Any:
        value = self._expiry.read(self._expiry.table, self._expiry.context.key)
        return self._default() if value is MISSING else value

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._expiry.table[self._expiry.context.key] = (value, self._expiry.now())

    def clear(self) -> None:
        self._expiry.table.pop(self._expiry.context.key, None)


class TtlListState(ListState[Any]):
    """A :class:`ListState` whose elements expire one by one."""

    def __init__(self, expiry: _Expiry) -> None:
        self._expiry = expiry

    def get(self) -> Iterable[Any]:
        return self._expiry.read_list()

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        now = self._expiry.now()
        added = [(value, now) for value in _without_none(values)]
        if added:
            self._expiry.table.setdefault(self._expiry.context.key, []).extend(added)

    def update(self, values: Iterable[Any]) -> None:
        replacement = _without_none(values)
        self.clear()
        self.add_all(replacement)

    def clear(self) -> None:
        self._expiry.table.pop(self._expiry.context.key, None)


class TtlReducingState(ReducingState[Any]):
    """A :class:`ReducingState` that expires."""

    def __init__(self, expiry: _Expiry, reduce: Callable[[Any, Any], Any]) -> None:
        self._expiry = expiry
        self._reduce = reduce

    def get(self) -> Any:
        value = self._expiry.read(self._expiry.table, self._expiry.context.key)
        return None if value is MISSING else value

    def add(self, value: Any) -> None:
        expiry = self._expiry
        current = expiry.read(expiry.table, expiry.context.key)
        merged = value if current is MISSING else self._reduce(current, value)
        expiry.table[expiry.context.key] = (merged, expiry.now())

    def clear(self) -> None:
        self._expiry.table.pop(self._expiry.context.key, None)


class TtlAggregatingState(AggregatingState[Any, Any]):
    """An :class:`AggregatingState` that expires."""

    def __init__(self, expiry: _Expiry, function: Any) -> None:
        self._expiry = expiry
        self._function = function

    def get(self) -> Any:
        accumulator = self._expiry.read(self._expiry.table, self._expiry.context.key)
        return None if accumulator is MISSING else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        expiry = self._expiry
        accumulator = expiry.read(expiry.table, expiry.context.key)
        if accumulator is MISSING:
            accumulator = self._function.create_accumulator()
        accumulator = self._function.add(value, accumulator)
        expiry.table[expiry.context.key] = (accumulator, expiry.now())

    def clear(self) -> None:
        self._expiry.table.pop(self._expiry.context.key, None)


class TtlMapState(MapState[Any, Any]):
    """A :class:`MapState` whose entries expire one by one."""

    def __init__(self, expiry: _Expiry) -> None:
        self._expiry = expiry

    def get(self, key: Any) -> Any:
        entries = self._expiry.table.get(self._expiry.context.key)
        if entries is None:
            return None
        value = self._expiry.read(entries, key)
        self._drop_if_empty(entries)
        return None if value is MISSING else value

    def put(self, key: Any, value: Any) -> None:
        self.put_all({key: value})

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        now = self._expiry.now()
        added = {key: (value, now) for key, value in dict_value.items()}
        if added:
            self._expiry.table.setdefault(self._expiry.context.key, {}).update(added)

    def remove(self, key: Any) -> None:
        entries = self._expiry.table.get(self._expiry.context.key)
        if entries is not None:
            entries.pop(key, None)
            self._drop_if_empty(entries)

    def contains(self, key: Any) -> bool:
        entries = self._expiry.table.get(self._expiry.context.key)
        if entries is None:
            return False
        found = self._expiry.read(entries, key) is not MISSING
        self._drop_if_empty(entries)
        return found

    def items(self) -> MapIterator:
        return MapIterator(self._live(), self.remove, "items")

    def keys(self) -> MapIterator:
        return MapIterator(self._live(), self.remove, "keys")

    def values(self) -> MapIterator:
        return MapIterator(self._live(), self.remove, "values")

    def is_empty(self) -> bool:
        return not self._live()

    def clear(self) -> None:
        self._expiry.table.pop(self._expiry.context.key, None)

    def _live(self) -> dict[Any, Any]:
        entries = self._expiry.table.get(self._expiry.context.key)
        if entries is None:
            return {}
        read = ((key, self._expiry.read(entries, key)) for key in list(entries))
        live = {key: value for key, value in read if value is not MISSING}
        self._drop_if_empty(entries)
        return live

    def _drop_if_empty(self, entries: dict[Any, Any]) -> None:
        if not entries:
            self.clear()


def ttl_handle(
    descriptor: StateDescriptor,
    table: dict[Any, Any],
    context: KeyContext,
    config: StateTtlConfig,
    now: Callable[[], int],
) -> Any:
    """The handle for a descriptor with a time to live."""
    expiry = _Expiry(table, context, config, now)
    if isinstance(descriptor, ValueStateDescriptor):
        return TtlValueState(expiry, descriptor.default_value)
    if isinstance(descriptor, ListStateDescriptor):
        return TtlListState(expiry)
    if isinstance(descriptor, MapStateDescriptor):
        return TtlMapState(expiry)
    if isinstance(descriptor, ReducingStateDescriptor):
        return TtlReducingState(expiry, descriptor.reduce)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return TtlAggregatingState(expiry, descriptor.agg_function)
    raise StateError(f"there is no keyed state for {descriptor!r}")
