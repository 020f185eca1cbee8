"""Handles of state with a time to live; :mod:`flinkray.state.expiry` describes the stored form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flinkray.core.values import own, own_all
from flinkray.state.expiry import Expiry
from flinkray.state.handles import MapHandle, own_entries, owned_list, without_none
from flinkray.state.interfaces import (
    AggregatingState,
    ListState,
    ReducingState,
    ValueState,
)
from flinkray.state.key_context import KeyContext
from flinkray.state.key_values import as_key, own_key
from flinkray.state.table import MISSING, ListTable, MapTable, ValueTable


class TtlValueState(ValueState[Any]):
    """A :class:`ValueState` whose values expire."""

    def __init__(
        self, table: ValueTable, context: KeyContext, expiry: Expiry, default: Any
    ) -> None:
        self._table = table
        self._context = context
        self._expiry = expiry
        self._default = own(default)

    def value(self) -> Any:
        value = self._expiry.value(self._table, self._context.key)
        return own(self._default if value is MISSING else value)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._expiry.accessed()
            self._table.put(self._context.key, (own(value), self._expiry.now()))

    def clear(self) -> None:
        self._table.remove(self._context.key)


class TtlListState(ListState[Any]):
    """A :class:`ListState` whose elements expire one by one."""

    def __init__(self, table: ListTable, context: KeyContext, expiry: Expiry) -> None:
        self._table = table
        self._context = context
        self._expiry = expiry

    def get(self) -> Iterable[Any]:
        return owned_list(self._expiry.elements(self._table, self._context.key))

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        added = self._stamped(values)
        self._expiry.accessed()
        self._table.extend(self._context.key, added)

    def update(self, values: Iterable[Any]) -> None:
        replacement = self._stamped(values)
        self._expiry.accessed()
        self._table.put(self._context.key, replacement)

    def _stamped(self, values: Iterable[Any]) -> list[tuple[Any, int]]:
        now = self._expiry.now()
        return [(value, now) for value in own_all(without_none(values))]

    def clear(self) -> None:
        self._table.remove(self._context.key)


class TtlReducingState(ReducingState[Any]):
    """A :class:`ReducingState` whose values expire."""

    def __init__(
        self,
        table: ValueTable,
        context: KeyContext,
        expiry: Expiry,
        reduce: Callable[[Any, Any], Any],
    ) -> None:
        self._table = table
        self._context = context
        self._expiry = expiry
        self._reduce = reduce

    def get(self) -> Any:
        value = self._expiry.value(self._table, self._context.key)
        return None if value is MISSING else own(value)

    def add(self, value: Any) -> None:
        key = self._context.key
        if value is None:
            self._table.remove(key)
            return
        value = own(value)
        current = self._expiry.value(self._table, key, to_change=True)
        merged = value if current is MISSING else self._reduce(current, value)
        self._table.put(key, (merged, self._expiry.now()))

    def clear(self) -> None:
        self._table.remove(self._context.key)


class TtlAggregatingState(AggregatingState[Any, Any]):
    """An :class:`AggregatingState` whose accumulators expire."""

    def __init__(
        self, table: ValueTable, context: KeyContext, expiry: Expiry, function: Any
    ) -> None:
        self._table = table
        self._context = context
        self._expiry = expiry
        self._function = function

    def get(self) -> Any:
        accumulator = self._expiry.value(self._table, self._context.key, to_change=True)
        return None if accumulator is MISSING else own(self._function.get_result(accumulator))

    def add(self, value: Any) -> None:
        key = self._context.key
        if value is None:
            self._table.remove(key)
            return
        accumulator = self._expiry.value(self._table, key, to_change=True)
        if accumulator is MISSING:
            accumulator = self._function.create_accumulator()
        accumulator = self._function.add(own(value), accumulator)
        self._table.put(key, (accumulator, self._expiry.now()))

    def clear(self) -> None:
        self._table.remove(self._context.key)


class TtlMapState(MapHandle):
    """A :class:`MapState` whose entries expire one by one."""

    def __init__(self, table: MapTable, context: KeyContext, expiry: Expiry) -> None:
        super().__init__(table, context)
        self._expiry = expiry

    def get(self, key: Any) -> Any:
        self._expiry.accessed()
        value = self._expiry.entry(self._table, self._context.key, as_key(key))
        return None if value is MISSING else own(value)

    def put(self, key: Any, value: Any) -> None:
        self._expiry.accessed()
        self._table.put(self._context.key, own_key(key), (own(value), self._expiry.now()))

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        self._expiry.accessed()
        now = self._expiry.now()
        added = {key: (value, now) for key, value in own_entries(dict_value).items()}
        self._table.put_all(self._context.key, added)

    def contains(self, key: Any) -> bool:
        self._expiry.accessed()
        return self._expiry.entry(self._table, self._context.key, as_key(key)) is not MISSING

    def is_empty(self) -> bool:
        return not self._live()

    def _live(self) -> list[tuple[Any, Any]]:
        self._expiry.accessed()
        table, place = self._table, self._context.key
        keys = [key for key, _ in table.items(place)]
        read = ((key, self._expiry.entry(table, place, key)) for key in keys)
        return [(key, value) for key, value in read if value is not MISSING]
