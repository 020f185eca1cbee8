"""State with a time to live: its tables, its stored form, and the removal of expired contents.

Tables store ``(value, renewed)``, where *renewed* is processing time in milliseconds. In lists and
maps each element or entry has its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from flinkray.state.table import MISSING, ListTable, MapTable, StateTable, ValueTable
from flinkray.state.ttl import StateTtlConfig, StateVisibility, UpdateType

PORTION = 1000
"""Number of values that one search for expired values examines."""
MOST = 10_000
"""Largest number of values that one search examines if the program asks for more: 1 to 2 ms."""


class Expiry:
    """Settings and clock of one table whose contents expire, and the search for expired contents.
    *now* returns processing time in milliseconds. *clean* examines a given number of values and
    removes the expired ones."""

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
        self.per_access = 0 if search is None else search.cleanup_size
        self.per_record = self.per_access if search is not None and search.for_every_record else 0
        """Number of values to examine for each record."""
        self.due = 0
        """Number of values that are due to be examined."""
        self._clean = clean
        self.renews_on_read = config.update_type is UpdateType.OnReadAndWrite
        self.shows_expired = config.state_visibility is StateVisibility.ReturnExpiredIfNotCleanedUp

    def accessed(self) -> None:
        """Count an access to the table; after enough accesses, :meth:`search`."""
        self.due += self.per_access
        if self.due >= PORTION:
            self.search()

    def search(self) -> None:
        """Examine as many values as are due to be examined, and remove the expired ones."""
        portion, self.due = min(self.due, MOST), 0
        self._clean(portion)

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
    """Return stored contents as a query sees them: without renewal times and, unless *config* makes
    expired values visible, without expired parts. MISSING if nothing is left. *kind*: kind of the
    state. *now*: milliseconds."""
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
    """Return *places* and their *contents* without those last renewed at *limit* (milliseconds) or
    before."""
    living: list[tuple[Any, Any]] = []
    for place, held in zip(places, contents, strict=True):
        kept = _without_expired(table, held, limit)
        if kept is not None:
            living.append((place, kept))
    return [place for place, _ in living], [kept for _, kept in living]


def _without_expired(table: StateTable, contents: Any, limit: int) -> Any:
    """Return the contents of one place (key, or key and window) without the parts (list elements,
    map entries) last renewed at *limit* or before. None if no part is left."""
    if isinstance(table, ValueTable):
        return contents if contents[1] > limit else None
    kept: Any
    if isinstance(table, ListTable):
        kept = [element for element in contents if element[1] > limit]
    else:
        kept = {key: value for key, value in contents.items() if value[1] > limit}
    return kept or None


class _Expiring:
    def __init__(self, table: Any, expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry

    def remove(self, place: Any) -> None:
        self._table.remove(place)


class ExpiringValues(_Expiring):
    """A :class:`ValueTable` for handles: hides the renewal times that the table underneath stores.
    A read removes an expired value. That read returns the value if expired values are visible,
    later reads do not."""

    def __init__(self, table: ValueTable, expiry: Expiry) -> None:
        super().__init__(table, expiry)
        # A reducing or aggregating state reads before it writes, which is one access.
        self._counts_writes = table.descriptor.kind == "value"

    def get(self, place: Any, default: Any = None) -> Any:
        return self._current(self._table.get, place, default)

    def get_to_change(self, place: Any, default: Any = None) -> Any:
        return self._current(self._table.get_to_change, place, default)

    def _current(self, get: Callable[[Any, Any], Any], place: Any, default: Any) -> Any:
        expiry = self._expiry
        expiry.due += expiry.per_access
        if expiry.due >= PORTION:
            expiry.search()
        entry = get(place, MISSING)
        if entry is MISSING:
            return default
        value, renewed = entry
        now = expiry.now()
        if renewed + expiry.ttl <= now:
            self._table.remove(place)
            return value if expiry.shows_expired else default
        if expiry.renews_on_read:
            self._table.put(place, (value, now))
        return value

    def put(self, place: Any, value: Any) -> None:
        if self._counts_writes:
            self._expiry.accessed()
        self._table.put(place, (value, self._expiry.now()))


class ExpiringLists(_Expiring):
    """A :class:`ListTable` for handles: hides the renewal times that the table underneath stores. A
    read removes expired elements. That read returns them if expired values are visible, later reads
    do not."""

    def get(self, place: Any) -> list[Any]:
        expiry = self._expiry
        expiry.accessed()
        entries = self._table.get(place)
        if not entries:
            return []
        now = expiry.now()
        kept = [entry for entry in entries if entry[1] + expiry.ttl > now]
        seen = [value for value, _ in (entries if expiry.shows_expired else kept)]
        if expiry.renews_on_read:
            self._table.put(place, [(value, now) for value, _ in kept])
        elif len(kept) < len(entries):
            self._table.put(place, kept)
        return seen

    def append(self, place: Any, value: Any) -> None:
        self.extend(place, [value])

    def extend(self, place: Any, values: Sequence[Any]) -> None:
        self._expiry.accessed()
        self._table.extend(place, self._stamped(values))

    def put(self, place: Any, values: Sequence[Any]) -> None:
        self._expiry.accessed()
        self._table.put(place, self._stamped(values))

    def _stamped(self, values: Sequence[Any]) -> list[tuple[Any, int]]:
        now = self._expiry.now()
        return [(value, now) for value in values]


class ExpiringMaps(_Expiring):
    """A :class:`MapTable` for handles: hides the renewal times that the table underneath stores. A
    read removes an expired entry. That read returns it if expired values are visible, later reads
    do not."""

    def get(self, place: Any, key: Any, default: Any = None, counts: bool = True) -> Any:
        table, expiry = self._table, self._expiry
        if counts:
            expiry.accessed()
        entry = table.get(place, key, MISSING)
        if entry is MISSING:
            return default
        value, renewed = entry
        now = expiry.now()
        if renewed + expiry.ttl <= now:
            table.remove_entry(place, key)
            return value if expiry.shows_expired else default
        if expiry.renews_on_read:
            table.put(place, key, (value, now))
        return value

    def contains(self, place: Any, key: Any) -> bool:
        return self.get(place, key, MISSING) is not MISSING

    def items(self, place: Any) -> list[tuple[Any, Any]]:
        self._expiry.accessed()
        keys = [key for key, _ in self._table.items(place)]
        read = ((key, self.get(place, key, MISSING, False)) for key in keys)
        return [(key, value) for key, value in read if value is not MISSING]

    def __contains__(self, place: Any) -> bool:
        return bool(self.items(place))

    def put(self, place: Any, key: Any, value: Any) -> None:
        self._expiry.accessed()
        self._table.put(place, key, (value, self._expiry.now()))

    def put_all(self, place: Any, entries: Mapping[Any, Any]) -> None:
        self._expiry.accessed()
        now = self._expiry.now()
        self._table.put_all(place, {key: (value, now) for key, value in entries.items()})

    def remove_entry(self, place: Any, key: Any) -> None:
        self._table.remove_entry(place, key)


def expiring(table: StateTable, expiry: Expiry) -> Any:
    """Return a table for handles, which reads and writes *table* and hides renewal times and
    expired contents."""
    if isinstance(table, ListTable):
        return ExpiringLists(table, expiry)
    if isinstance(table, MapTable):
        return ExpiringMaps(table, expiry)
    assert isinstance(table, ValueTable)
    return ExpiringValues(table, expiry)
