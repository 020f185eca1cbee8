"""State with a time to live: its handles, its stored form, and the removal of expired contents.

Tables store ``(value, renewed)``, where *renewed* is processing time in milliseconds. In lists and
maps each element or entry has its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from flinkray.core.values import own, own_all
from flinkray.state.handles import MapHandle, own_entries, owned_list, without_none
from flinkray.state.interfaces import (
    AggregatingState,
    ListState,
    ReducingState,
    ValueState,
)
from flinkray.state.key_values import as_key, own_key
from flinkray.state.table import MISSING, KeyContext, ListTable, MapTable, StateTable, ValueTable
from flinkray.state.ttl import StateTtlConfig, StateVisibility, UpdateType

PORTION = 1000
"""Number of values that one search for expired values examines."""
MOST = 10_000
"""Largest number of values that one search examines if the program asks for more: 1 to 2 ms."""


class Expiry:
    """Reads contents of one table, and removes or hides what has expired. *now* returns processing
    time in milliseconds. *clean* examines the given number of values and removes expired ones."""

    def __init__(
        self,
        table: StateTable,
        config: StateTtlConfig,
        now: Callable[[], int],
        clean: Callable[[int], Any],
    ) -> None:
        self.table = table
        self.now = now
        self.ttl = config.ttl
        search = config.cleanup_strategies.get_incremental_cleanup_strategy()
        self.in_background = search is not None
        self._per_access = 0 if search is None else search.cleanup_size
        self.per_record = self._per_access if search is not None and search.for_every_record else 0
        """Number of values to examine for each record."""
        self._due = 0
        self._clean = clean
        self._renew_on_read = config.update_type is UpdateType.OnReadAndWrite
        self._show_expired = config.state_visibility is StateVisibility.ReturnExpiredIfNotCleanedUp

    def accessed(self) -> None:
        """Count an access; after enough accesses, examine a portion of values for expired ones."""
        self._due += self._per_access
        if self._due >= PORTION:
            portion, self._due = min(self._due, MOST), 0
            self._clean(portion)

    # --- what handles read --------------------------------------------------------------------

    def value(self, table: ValueTable, place: Any, to_change: bool = False) -> Any:
        """Return the value of a place, or MISSING.
        An expired value is removed; it is returned for the last time if expired values are visible.
        *to_change*: whether the caller may change the value in place."""
        self.accessed()
        entry = table.get_to_change(place, MISSING) if to_change else table.get(place, MISSING)
        if entry is MISSING:
            return MISSING
        value, renewed = entry
        now = self.now()
        if renewed + self.ttl <= now:
            table.remove(place)
            return value if self._show_expired else MISSING
        if self._renew_on_read:
            table.put(place, (value, now))
        return value

    def elements(self, table: ListTable, place: Any) -> list[Any]:
        """Return the elements of a list.
        Expired elements are removed; they are returned once more if expired values are visible."""
        self.accessed()
        entries = table.get(place)
        if not entries:
            return []
        now = self.now()
        kept = [entry for entry in entries if entry[1] + self.ttl > now]
        seen = [value for value, _ in (entries if self._show_expired else kept)]
        if self._renew_on_read:
            table.put(place, [(value, now) for value, _ in kept])
        elif len(kept) < len(entries):
            table.put(place, kept)
        return seen

    def entry(self, table: MapTable, place: Any, key: Any) -> Any:
        """Return the value of a map's entry, or MISSING.
        An expired entry is removed; it is returned once more if expired values are visible."""
        entry = table.get(place, key, MISSING)
        if entry is MISSING:
            return MISSING
        value, renewed = entry
        now = self.now()
        if renewed + self.ttl <= now:
            table.remove_entry(place, key)
            return value if self._show_expired else MISSING
        if self._renew_on_read:
            table.put(place, key, (value, now))
        return value

    # --- contents that nobody reads ---------------------------------------------------------------

    def clean(self, now: Callable[[], int]) -> Iterator[None]:
        """Examine all contents of the table and remove expired ones; yields after each value.
        The table may be changed between two yields."""
        table = self.table
        if isinstance(table, ValueTable):
            return self._clean_values(table, now)
        if isinstance(table, ListTable):
            return self._clean_lists(table, now)
        assert isinstance(table, MapTable)
        return self._clean_maps(table, now)

    def _clean_values(self, table: ValueTable, now: Callable[[], int]) -> Iterator[None]:
        ttl = self.ttl
        for place, seen in table.entries():
            if seen[1] + ttl <= now():
                entry = table.get(place, MISSING)
                if entry is not MISSING and entry[1] + ttl <= now():
                    table.remove(place)
            yield

    def _clean_lists(self, table: ListTable, now: Callable[[], int]) -> Iterator[None]:
        for place, seen in table.entries():
            number, limit = len(seen), now() - self.ttl
            if any(entry[1] <= limit for entry in seen):
                entries = table.get(place)
                kept = [entry for entry in entries if entry[1] > limit]
                if len(kept) < len(entries):
                    table.put(place, kept)
            yield from repeat(None, number)

    def _clean_maps(self, table: MapTable, now: Callable[[], int]) -> Iterator[None]:
        ttl = self.ttl
        for place, entries in table.entries():
            for key, seen in list(entries.items()):
                if seen[1] + ttl <= now():
                    entry = table.get(place, key, MISSING)
                    if entry is not MISSING and entry[1] + ttl <= now():
                        table.remove_entry(place, key)
                yield


def visible(contents: Any, kind: str, config: StateTtlConfig, now: int) -> Any:
    """Return stored contents without renewal times and expired parts, as a query sees them.
    Returns MISSING if nothing is left.

    Args:
        kind: kind of the state's descriptor.
        now: processing time in milliseconds.
    """
    show_expired = config.state_visibility is StateVisibility.ReturnExpiredIfNotCleanedUp
    limit = -1 if show_expired else now - config.ttl
    if kind == "list":
        return [value for value, renewed in contents if renewed > limit] or MISSING
    if kind == "map":
        found = {key: value for key, (value, renewed) in contents.items() if renewed > limit}
        return found or MISSING
    value, renewed = contents
    return value if renewed > limit else MISSING


def without_expired(
    table: StateTable, places: Sequence[Any], contents: Sequence[Any], limit: int
) -> tuple[list[Any], list[Any]]:
    """Return (places, contents) without contents last renewed at *limit* or before."""
    living: list[tuple[Any, Any]] = []
    for place, held in zip(places, contents, strict=True):
        kept = _without_expired(table, held, limit)
        if kept is not None:
            living.append((place, kept))
    return [place for place, _ in living], [kept for _, kept in living]


def _without_expired(table: StateTable, contents: Any, limit: int) -> Any:
    """Return one place's contents without parts last renewed at *limit* or before.
    None if no part is left."""
    if isinstance(table, ValueTable):
        return contents if contents[1] > limit else None
    kept: Any
    if isinstance(table, ListTable):
        kept = [element for element in contents if element[1] > limit]
    else:
        kept = {key: value for key, value in contents.items() if value[1] > limit}
    return kept or None


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
