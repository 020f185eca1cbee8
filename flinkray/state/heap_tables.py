"""State tables and timers in dictionaries.

Until the first capture no changes are noted: value tables then use the dictionary's own methods.
After it, the first change of each place saves the old contents for captures that are not written
yet, so making a capture takes no time. Lists and maps are copied before they are changed in place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice, repeat
from typing import Any, NamedTuple

from flinkray.core.values import IMMUTABLE, own, own_all
from flinkray.kernels.rows import ReducingHandle, ValueHandle, bind
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.handles import TableReducingState, TableValueState
from flinkray.state.interfaces import ReducingState, ValueState
from flinkray.state.table import (
    MISSING,
    KeyContext,
    ListsInMemory,
    ListTable,
    MapTable,
    PointReader,
    StateTable,
    TimerQueue,
    ValueTable,
)
from flinkray.state.value_columns import ValueColumn, columns_of_entries

_FEW = 1000
"""Number of changes that are always noted. More are dropped if they outnumber the places."""
_LOOKED_UP = 1 << 14
"""Number of places looked up at once; other threads wait during the look-up."""
_PORTION = 1 << 16
"""Number of places passed on at once; other threads wait about 3 ms while these become a column.
With smaller portions, the writer waits for the interpreter's lock more often."""
_MOST_COPIED = 1 << 22
"""Largest table that is copied at once.
This takes about 25 ns per place, and looking up each place ten times as long."""


_SHORTEST_REST, _LONGEST_REST = 2, 16
"""Bounds of a rest, during which a table notes no changes, as a number of consecutive captures."""
_MOST_LOOKED_AT = 256
"""Number of places that are compared at the end of a rest."""
_MOST_AT_REST = 1 << 19
"""Largest table that is copied while its task waits: takes about 25 ns per place."""


Values = list[Any] | ValueColumn


class Changes(NamedTuple):
    """Captured places (key, or key and window) with their contents, and places now empty."""

    places: list[Any]
    contents: list[Any]
    """The contents of each of *places*."""
    removed: list[Any]
    """Places that are empty now; only if the capture has changes."""


class TableCapture:
    """The contents of a table at one moment. *entries*: the table's own dictionary, which continues
    to change, or a copy of it (*is_copy*). *places*: the capture has only these places (key, or key
    and window), which changed since the previous capture; None: it has all."""

    def __init__(
        self, entries: dict[Any, Any], places: set[Any] | None, is_copy: bool = False
    ) -> None:
        self._entries = entries
        self._is_copy = is_copy
        self.places = places
        self.before: dict[Any, Any] = {}
        """Old contents of places that have changed since the capture; MISSING for empty places."""
        self.done = False

    def read(self) -> Changes:
        """Return all captured contents; from any thread, also while the table changes."""
        removed: list[Any] = []
        portions = list(self.portions(removed))
        places = chain.from_iterable(places for places, _ in portions)
        contents = chain.from_iterable(contents for _, contents in portions)
        return Changes(list(places), list(contents), removed)

    def columns(self, removed: list[Any]) -> Iterator[tuple[Values, Values]]:
        """Yield the portions of :meth:`portions`: as columns as long as the contents of the table
        are plain (texts, bytes, numbers, and tuples of these), and then as lists."""
        return self._portions(removed, as_columns=True)

    def portions(self, removed: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield (places, contents) in portions of some thousand. A place is a key, or a key and
        window. Places that are empty now are added to *removed* before the first portion."""
        return self._portions(removed, as_columns=False)

    def _portions(self, removed: list[Any], as_columns: bool) -> Iterator[Any]:
        if self.places is None and len(self._entries) <= _MOST_COPIED:
            entries = self._entries if self._is_copy else self._copy()
            read = 0
            for columns in columns_of_entries(entries, _PORTION) if as_columns else ():
                yield columns
                read += _PORTION
            places = islice(entries, read, None)
            contents = islice(entries.values(), read, None)
            while portion := list(islice(places, _PORTION)):
                yield portion, list(islice(contents, _PORTION))
            return
        found = self._look_up()
        removed += found.removed
        for begin in range(0, len(found.places), _PORTION):
            end = begin + _PORTION
            yield found.places[begin:end], found.contents[begin:end]

    def _look_up(self) -> Changes:
        places = list(self._entries if self.places is None else self.places)
        contents: list[Any] = []
        for begin in range(0, len(places), _LOOKED_UP):
            portion = places[begin : begin + _LOOKED_UP]
            contents += map(self._entries.get, portion, repeat(MISSING))
        # Read ``before`` last: a change is noted in it before it is made in the table.
        before = self.before.copy()
        if self.places is not None:
            return _changes(places, list(map(before.get, places, contents)) if before else contents)
        if not before:
            return Changes(places, contents, [])
        kept = [
            (place, found)
            for place, found in zip(places, contents, strict=True)
            if place not in before
        ]
        kept += [(place, found) for place, found in before.items() if found is not MISSING]
        return Changes([place for place, _ in kept], [found for _, found in kept], [])

    def _copy(self) -> dict[Any, Any]:
        entries = self._entries.copy()
        before = self.before.copy()  # last, as above
        entries.update(before)
        for place in [place for place, found in before.items() if found is MISSING]:
            del entries[place]
        return entries


def _changes(places: list[Any], contents: list[Any]) -> Changes:
    kept = [found is not MISSING for found in contents]
    return Changes(
        list(compress(places, kept)),
        list(compress(contents, kept)),
        [place for place, is_kept in zip(places, kept, strict=True) if not is_kept],
    )


class _Tracked:
    """Base class of tables and timer queues: notes which places changed since the last capture.
    *entries*: contents by place (key, or key and window)."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries
        self._changed: set[Any] | None = None
        """Places changed since the last capture; None: there was no capture."""
        self._fresh: set[Any] = set()
        """The changed places that were empty at the last capture."""
        self._past: list[tuple[int | None, set[Any]]] = []
        """Captures since the oldest to which another can refer, by rising ids.
        Each is (id, places changed between the previous capture and this one)."""
        self._captures: list[TableCapture] = []

    def begin(self, known: Iterable[int]) -> None:
        """Start to note which places (key, or key and window) change.
        *known*: checkpoint ids of captures that contain the present contents."""
        self._past = [(checkpoint_id, set()) for checkpoint_id in known]
        self._changed = set()

    def capture(self, checkpoint_id: int | None = None, since: int | None = None) -> TableCapture:
        """Return a capture of the present contents, which copies nothing.
        The arguments are those of :meth:`KeyedStateBackend.capture`."""
        changed = set() if self._changed is None else self._changed
        capture = TableCapture(self._entries, self._changed_since(since, changed))
        if checkpoint_id is not None or self._past:
            self._past.append((checkpoint_id, changed))
            if sum(1 + len(places) for _, places in self._past) > max(len(self._entries), _FEW):
                self._past = [(checkpoint_id, set())]
        self._changed, self._fresh = set(), set()
        self._is_captured()
        self._captures.append(capture)
        return capture

    def _changed_since(self, since: int | None, changed: set[Any]) -> set[Any] | None:
        """Return the places (key, or key and window) changed since the capture with checkpoint id
        *since*.
        None if *since* is None or not known. *changed*: places changed since the last capture."""
        ids = [checkpoint_id for checkpoint_id, _ in self._past]
        if since is None or since not in ids:
            return None
        del self._past[: ids.index(since)]
        self._past[0] = since, set()
        return changed.union(*(places for _, places in self._past)) if self._past[1:] else changed

    def _first_change(self, place: Any) -> None:
        """Note the first change of a place (key, or key and window) since the last capture; call
        this before the change."""
        assert self._changed is not None
        self._changed.add(place)
        if place not in self._entries:
            self._fresh.add(place)
        if self._captures and self._is_captured():
            self._save(place, self._entries.get(place, MISSING))

    def _save(self, place: Any, contents: Any) -> None:
        for capture in self._captures:
            capture.before.setdefault(place, contents)

    def _is_captured(self) -> bool:
        for capture in self._captures:
            if capture.done:
                self._captures = [other for other in self._captures if not other.done]
                break
        return bool(self._captures)

    def _remove(self, place: Any) -> Any:
        """Remove the contents of a place (key, or key and window), and return them; MISSING if the
        place had none."""
        changed = self._changed
        if changed is not None and place in self._entries:
            if place not in changed:
                self._first_change(place)
            elif place in self._fresh:  # added and removed: the next capture need not know
                self._fresh.discard(place)
                changed.discard(place)
        return self._entries.pop(place, MISSING)

    def _clear(self) -> None:
        if self._changed is None:
            self._entries.clear()
        else:
            for place in list(self._entries):
                self._remove(place)


class HeapTable(_Tracked, StateTable):
    """Base class of the tables of values, lists and maps in dictionaries."""

    def __init__(
        self, descriptor: StateDescriptor, namespaced: bool, entries: dict[Any, Any]
    ) -> None:
        _Tracked.__init__(self, entries)
        StateTable.__init__(self, descriptor, namespaced)
        self._is_shared = False
        """Whether other threads read the table.
        Then mutable contents are copied before each change in place. A mark set by readers would
        come too late for a change that has begun, and readers cannot wait for a user function."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, place: Any) -> bool:
        return place in self._entries

    def places(self) -> Iterator[Any]:
        return iter(list(self._entries))

    def entries(self) -> Iterator[tuple[Any, Any]]:
        for place in list(self._entries):
            contents = self._entries.get(place, MISSING)
            if contents is not MISSING:
                yield place, contents

    def remove(self, place: Any) -> None:
        self._remove(place)

    def clear(self) -> None:
        self._clear()

    def point_reader(self) -> PointReader:
        self._is_shared = True
        return self._read

    def _read(self, places: Sequence[Any]) -> list[Any]:
        """Return the contents of each of *places* (MISSING if empty). May be called from any
        thread: each step is atomic for other threads, and the values inside are not changed any
        more."""
        return list(map(self._entries.get, places, repeat(MISSING)))


class HeapValueTable(HeapTable, ValueTable):
    """A table with one value per place (key, or key and window).

    If most places change between two captures, noting the changes takes a tenth of a program's
    time, and they are as large as the table. So the table then stops to note changes for some
    captures (it *rests*), which copy the whole table. At the end of a rest, the table compares some
    places with the previous capture. If most of them hold another object, it rests again; otherwise
    it notes changes.
    """

    def __init__(
        self, descriptor: StateDescriptor, namespaced: bool, entries: dict[Any, Any]
    ) -> None:
        super().__init__(descriptor, namespaced, entries)
        self.handles: list[HeapValueState | HeapReducingState] = []
        """Handles that write to the dictionary directly, without the methods below."""
        self._has_mutable = False
        """Whether the table holds values that are changed in place."""
        self._rest = 0
        """Number of captures until changes are noted again; 0: changes are being noted."""
        self._next_rest = _SHORTEST_REST
        self._copies: list[TableCapture] = []
        """Captures made during rests that are not written yet. Values in them must not change."""
        self._looked_at: list[tuple[Any, Any]] = []
        """(place, value) of some places, for comparison at the end of a rest."""
        self._write_directly()
        self.__dict__["get_to_change"] = entries.get

    def begin(self, known: Iterable[int]) -> None:
        super().begin(known)
        self._note()

    def capture(self, checkpoint_id: int | None = None, since: int | None = None) -> TableCapture:
        if not self._may_rest(checkpoint_id):
            self._rest, self._looked_at = 0, []
            capture = super().capture(checkpoint_id, since)
            self._note()
            return capture
        places = None if self._rest else super().capture(checkpoint_id, since).places
        self._rest -= 1
        if self._rest <= 0:
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
        self._looked_at = self._some() if self._rest == 1 else []
        self._changed, self._past, self._captures = None, [], []
        self._write_directly()
        capture = TableCapture(self._entries.copy(), places, is_copy=True)
        self._copies = [*(other for other in self._copies if not other.done), capture]
        return capture

    def _is_kept(self) -> bool:
        """Return whether captures that are not written yet may refer to values of this table. If
        so, values must not be changed in place."""
        if self._copies:
            self._copies = [capture for capture in self._copies if not capture.done]
        return bool(self._copies) or self._is_captured()

    def _some(self) -> list[tuple[Any, Any]]:
        """Return (place, value) of up to ``_MOST_LOOKED_AT`` places (key, or key and window),
        spread over the table."""
        step = len(self._entries) // _MOST_LOOKED_AT + 1
        return list(islice(self._entries.items(), None, None, step))

    def _most_changed(self) -> bool:
        found = [self._entries.get(place, MISSING) is not it for place, it in self._looked_at]
        return 2 * sum(found) > len(found)

    def _may_rest(self, checkpoint_id: int | None) -> bool:
        number, changed = len(self._entries), self._changed
        if changed is not None and 2 * len(changed) <= number:
            self._next_rest = _SHORTEST_REST
            return False
        return (
            checkpoint_id is not None
            and (changed is not None or self._rest > 1 or self._most_changed())
            and number <= _MOST_AT_REST
            and not self._has_mutable
            and not self._is_captured()
        )

    def _note(self) -> None:
        for name in ("get_to_change", "put", "put_all"):
            self.__dict__.pop(name, None)
        for handle in self.handles:
            handle.follow()

    def _write_directly(self) -> None:
        """Replace the methods *get*, *put* and *put_all* by those of the dictionary, which note no
        changes."""
        self.__dict__.update(
            get=self._entries.get, put=self._entries.__setitem__, put_all=self._entries.update
        )
        for handle in self.handles:
            handle.follow()

    def point_reader(self) -> PointReader:
        self.__dict__.pop("get_to_change", None)
        return super().point_reader()

    def get(self, place: Any, default: Any = None) -> Any:
        return self._entries.get(place, default)

    def get_to_change(self, place: Any, default: Any = None) -> Any:
        value = self._entries.get(place, MISSING)
        if value is MISSING:
            return default
        if type(value) in IMMUTABLE:
            return value
        self._has_mutable = True
        if self._is_shared:  # neither readers nor captures see the change
            return own(value)
        if self._changed is None:
            value = self._entries[place] = own(value)  # the table rests for the last time
            return value
        if place not in self._changed:
            self._first_change(place)
            if self._is_kept():
                value = self._entries[place] = own(value)
        return value

    def take(self, place: Any, default: Any = None) -> Any:
        value = self._remove(place)
        if value is MISSING:
            return default
        return own(value) if self._is_shared or self._rest or self._is_kept() else value

    def put(self, place: Any, value: Any) -> None:
        assert self._changed is not None
        if place not in self._changed:
            self._first_change(place)
        self._entries[place] = value

    def put_all(self, values: Mapping[Any, Any]) -> None:
        assert self._changed is not None
        for place in values.keys() - self._changed:
            self._first_change(place)
        self._entries.update(values)


class HeapValueState(ValueHandle, ValueState[Any]):
    """The handle of a value state on the heap."""

    def __init__(self, table: HeapValueTable, context: KeyContext, default: Any) -> None:
        self._table = table
        self._slow_handle = slow = TableValueState(table, context, default)
        bind(self, context, table._entries, table._first_change, slow)
        table.handles.append(self)
        self.follow()

    def clear(self) -> None:
        self._slow_handle.clear()

    def follow(self) -> None:
        """Adapt the handle to its table, when the table begins or stops to note changes, and when
        it has a new set of changed places (key, or key and window). The table calls this."""
        self._follow(self._table._changed)


class HeapReducingState(ReducingHandle, ReducingState[Any]):
    """The handle of a reducing state on the heap."""

    def __init__(
        self, table: HeapValueTable, context: KeyContext, reduce: Callable[[Any, Any], Any]
    ) -> None:
        self._table = table
        self._slow_handle = slow = TableReducingState(table, context, reduce)
        bind(self, context, table._entries, table._first_change, slow, reduce)
        table.handles.append(self)
        self.follow()

    def clear(self) -> None:
        self._slow_handle.clear()

    def follow(self) -> None:
        """Adapt the handle to its table, as :meth:`HeapValueState.follow`."""
        self._follow(self._table._changed)


class HeapListTable(HeapTable, ListTable):
    """A dictionary with a list for each place: a key, or a pair of key and namespace."""

    def get(self, place: Any) -> Sequence[Any]:
        values: Sequence[Any] = self._entries.get(place, ())
        return values

    def take(self, place: Any) -> Sequence[Any]:
        if self._changed is None and not self._is_shared:
            return self._entries.pop(place, ())  # type: ignore[no-any-return]
        values = self._remove(place)
        if values is MISSING:
            return ()
        if self._is_shared:
            values = values.copy()
        elif not self._is_captured():
            return values  # type: ignore[no-any-return]
        return own_all(values)

    @property
    def in_memory(self) -> ListsInMemory | None:
        return ListsInMemory(self._entries, self._changed, self._first_change)

    def append(self, place: Any, value: Any) -> bool:
        if self._changed is not None and place not in self._changed:
            self._first_change(place)
        values = self._entries.get(place)
        if values is None:
            self._entries[place] = [value]
            return True
        values.append(value)
        return False

    def extend(self, place: Any, values: Iterable[Any]) -> None:
        added = list(values)
        if not added:
            return
        if self._changed is not None and place not in self._changed:
            self._first_change(place)
        known = self._entries.setdefault(place, added)
        if known is not added:
            known.extend(added)

    def put(self, place: Any, values: Iterable[Any]) -> None:
        replacement = list(values)
        if not replacement:
            self._remove(place)
            return
        if self._changed is not None and place not in self._changed:
            self._first_change(place)
        self._entries[place] = replacement

    def _save(self, place: Any, contents: Any) -> None:
        super()._save(place, contents)
        if contents is not MISSING:
            self._entries[place] = contents.copy()

    def _read(self, places: Sequence[Any]) -> list[Any]:
        found = super()._read(places)
        return [it if it is MISSING else it.copy() for it in found]


_EMPTY: dict[Any, Any] = {}


class HeapMapTable(HeapTable, MapTable):
    """A dictionary with a map for each place: a key, or a pair of key and namespace."""

    _has_slow_keys = False
    """Whether comparing keys of entries may run Python code.
    Other threads could then see some of many new entries and not others."""

    def get(self, place: Any, key: Any, default: Any = None) -> Any:
        entries = self._entries.get(place)
        return default if entries is None else entries.get(key, default)

    def get_to_change(self, place: Any, key: Any, default: Any = None) -> Any:
        value = self._entries.get(place, _EMPTY).get(key, MISSING)
        if value is MISSING:
            return default
        if type(value) in IMMUTABLE:
            return value
        if self._is_shared:
            return own(value)
        if self._changed is not None:
            if place not in self._changed:
                self._first_change(place)
            if self._is_captured():
                value = self._entries[place][key] = own(value)
        return value

    def contains(self, place: Any, key: Any) -> bool:
        entries = self._entries.get(place)
        return entries is not None and key in entries

    def items(self, place: Any) -> Iterable[tuple[Any, Any]]:
        items: Iterable[tuple[Any, Any]] = self._entries.get(place, _EMPTY).items()
        return items

    def put(self, place: Any, key: Any, value: Any) -> None:
        if self._changed is not None and place not in self._changed:
            self._first_change(place)
        if self._is_shared:
            self._note_keys((key,))
        entries = self._entries.get(place)
        if entries is None:
            self._entries[place] = {key: value}
        else:
            entries[key] = value

    def put_all(self, place: Any, entries: Mapping[Any, Any]) -> None:
        if not entries:
            return
        if self._changed is not None and place not in self._changed:
            self._first_change(place)
        if self._is_shared:
            self._note_keys(entries)
        held = self._entries.get(place)
        if held is None:
            self._entries[place] = dict(entries)
            return
        if self._has_slow_keys:
            self._entries[place] = {**held, **entries}
            return
        held.update(entries)

    def point_reader(self) -> PointReader:
        self._note_keys(chain.from_iterable(self._entries.values()))
        return super().point_reader()

    def _note_keys(self, keys: Iterable[Any]) -> None:
        if not self._has_slow_keys:
            self._has_slow_keys = not IMMUTABLE.issuperset(map(type, keys))

    def _read(self, places: Sequence[Any]) -> list[Any]:
        found = super()._read(places)
        return [it if it is MISSING else it.copy() for it in found]

    def remove_entry(self, place: Any, key: Any) -> None:
        entries = self._entries.get(place)
        if entries is None or key not in entries:
            return
        if len(entries) == 1:
            self._remove(place)
            return
        if self._changed is not None and place not in self._changed:
            self._first_change(place)
            entries = self._entries[place]
        del entries[key]

    def _save(self, place: Any, contents: Any) -> None:
        super()._save(place, contents)
        if contents is not MISSING:
            self._entries[place] = contents.copy()


class HeapTimerQueue(_Tracked, TimerQueue):
    """A timer queue in memory.
    Timers of one time are in one dictionary, so a heap operation is needed only for each time."""

    def __init__(self) -> None:
        super().__init__({})
        self._heap: list[int] = []

    def add(self, timestamp: int, key: Any, namespace: Any) -> bool:
        bucket = self._entries.get(timestamp)
        if self._changed is not None and timestamp not in self._changed:
            if bucket is not None and (key, namespace) in bucket:
                return False
            self._first_change(timestamp)
            bucket = self._entries.get(timestamp)
        if bucket is None:
            self._entries[timestamp] = {(key, namespace): None}
            heapq.heappush(self._heap, timestamp)
            return True
        before = len(bucket)
        bucket[key, namespace] = None
        return len(bucket) > before

    def timers_in_memory(self, timestamp: int) -> dict[Any, None] | None:
        if self._changed is not None and timestamp not in self._changed:
            self._first_change(timestamp)
        timers: dict[Any, None] | None = self._entries.get(timestamp)
        if timers is None:
            timers = self._entries[timestamp] = {}
            heapq.heappush(self._heap, timestamp)
        return timers

    def discard(self, timestamp: int, key: Any, namespace: Any) -> None:
        self.claim(timestamp, (key, namespace))

    def first(self) -> int | None:
        while self._heap and not self._entries[self._heap[0]]:
            self._remove(heapq.heappop(self._heap))
        return self._heap[0] if self._heap else None

    def at(self, timestamp: int, most: int | None = None) -> list[tuple[Any, Any]]:
        return list(islice(self._entries.get(timestamp, ()), most))

    def claim(self, timestamp: int, timer: tuple[Any, Any]) -> bool:
        bucket = self._entries.get(timestamp)
        if bucket is None:
            return False
        if self._changed is not None and timestamp not in self._changed:
            if timer not in bucket:
                return False
            self._first_change(timestamp)
            bucket = self._entries[timestamp]
        return bucket.pop(timer, MISSING) is not MISSING

    def claim_all(self, timestamp: int, timers: Sequence[tuple[Any, Any]]) -> list[Any]:
        if self._changed is not None:
            return super().claim_all(timestamp, timers)
        pop = self._entries[timestamp].pop
        return [timer for timer in timers if pop(timer, MISSING) is MISSING]

    def has(self, timestamp: int, timer: tuple[Any, Any]) -> bool:
        return timer in self._entries.get(timestamp, ())

    def times(self) -> list[int]:
        return [timestamp for timestamp, bucket in self._entries.items() if bucket]

    def _save(self, place: Any, contents: Any) -> None:
        super()._save(place, contents)
        if contents is not MISSING:
            self._entries[place] = contents.copy()

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def items(self) -> Iterable[tuple[int, Any, Any]]:
        for timestamp, bucket in self._entries.items():
            for key, namespace in bucket:
                yield timestamp, key, namespace
