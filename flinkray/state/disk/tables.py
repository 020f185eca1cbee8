"""State tables on a disk, with a cache of decoded contents.

Places that were changed, or may have been changed in place, are written together: when some
thousands of places have changed, when the cache is full, and before each capture. The cache has two
generations. A place that is used moves to the young generation; when the young generation is full,
the old one is dropped.

A *value* has one row. A *list* has a row for each portion of elements that was written at once, so
adding to a list only reads whether the list exists. A *map* has a row for each entry, with a number
that gives the order of insertion.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from flinkray.core.values import IMMUTABLE, own, own_all
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.disk.changes import OVERHEAD, DiskStore
from flinkray.state.disk.rocksdb import Pair, after
from flinkray.state.disk.rows import (
    Exact,
    PlaceCodec,
    ValueRows,
    decode_value,
    encode_part,
    encoded_at,
    exact_part,
    part_of,
    table_prefix,
    with_exact,
    without_exact,
)
from flinkray.state.errors import StateError
from flinkray.state.key_encoding import decode_first_key
from flinkray.state.key_group_assignment import KeyGroupAssigner
from flinkray.state.table import (
    MISSING,
    ListTable,
    MapTable,
    PointReader,
    StateTable,
    ValueTable,
)

if TYPE_CHECKING:
    import rocksdict

HeldT = TypeVar("HeldT")


class _Unknown:
    __slots__ = ()


_UNKNOWN: Any = _Unknown()
"""Marks a place or entry that is not in the cache."""

_NUMBER = struct.Struct(">Q")
_ENTRY = struct.Struct(">QI")
"""Format of the head of a map entry's row: number of the entry, size of the encoded place."""
_FIRST = _NUMBER.pack(0)
_MOST_PORTIONS = 16
"""Number of a cached list's rows from which on the list is rewritten as one row."""


class DiskTable(StateTable, Generic[HeldT]):
    """Base class of the tables of values, lists and maps on disk. *HeldT* is the form in which the
    contents of a place (key, or key and window) are cached. *number* is the table's number in the
    engine."""

    def __init__(
        self,
        descriptor: StateDescriptor,
        namespaced: bool,
        number: int,
        store: DiskStore,
        assign: KeyGroupAssigner,
    ) -> None:
        super().__init__(descriptor, namespaced)
        self.number = number
        self.codec = PlaceCodec(number, namespaced, assign)
        self._assign = assign
        self._is_shared = False
        """Whether other threads read the table.
        Then mutable contents are copied before each change in place, and put back."""
        self._store = store
        self._rows = ValueRows()
        self._young: dict[Any, HeldT] = {}
        self._old: dict[Any, HeldT] = {}
        self._dirty: dict[Any, None] = {}
        """Changed places that are not written yet; their contents are in the young generation."""

    _CHANGING: ClassVar[tuple[str, ...]] = ()
    """Names of methods that take the store's lock if other threads read the table.
    Readers combine the contents that these methods change from cache and rows."""

    # --- methods of each shape --------------------------------------------------------------------

    @abstractmethod
    def _put_rows(
        self, batch: rocksdict.WriteBatch, place: bytes, exact: Exact, held: HeldT
    ) -> int:
        """Add the unwritten changes of a place (key, or key and window) to *batch*.
        Returns their size in bytes. *held*: the cached contents of the place."""

    @abstractmethod
    def _settled(self, held: HeldT) -> None:
        """Update *held*, a place's cached contents, in place: its changes are on the disk now."""

    @abstractmethod
    def place_of(self, pair: Pair) -> bytes:
        """Return the encoded place (table number, key group, key and window) to which a row
        belongs."""

    @abstractmethod
    def contents_of(self, rows: Sequence[Pair]) -> Any:
        """Return the value, list or map that *rows*, all rows of one place (key, or key and window)
        in order, represent. May be called from any thread."""

    @abstractmethod
    def put_restored(
        self, batch: rocksdict.WriteBatch, place: Any, encoded: bytes, contents: Any
    ) -> None:
        """Add rows with the restored *contents* of a place (key, or key and window) to *batch*; the
        place has no rows yet. *encoded*: the encoded place."""

    # --- StateTable ---------------------------------------------------------------------------

    def __len__(self) -> int:
        self._store.flush()
        return sum(1 for _ in self._encoded_places())

    def estimated_size(self) -> int:
        return self._store.engine.estimated_number() + len(self._dirty)

    def places(self) -> Iterator[Any]:
        for place, _ in self.entries():
            yield place

    def entries(self) -> Iterator[tuple[Any, Any]]:
        self._store.flush()
        prefix = table_prefix(self.number)
        pairs = self._store.engine.scan_in_portions(prefix, after(prefix))
        return self.read_rows(self.codec, pairs)

    def read_rows(self, codec: PlaceCodec, pairs: Iterable[Pair]) -> Iterator[tuple[Any, Any]]:
        """Yield (place, contents) for each place (key, or key and window) in *pairs*, rows of this
        table in order. May be called from any thread, with the thread's own codec."""
        for encoded, rows in groupby(pairs, self.place_of):
            of_place = list(rows)
            exact, _, _ = without_exact(of_place[0][1])
            yield codec.decode(encoded, 4, exact), self.contents_of(of_place)

    def _encoded_places(self) -> Iterator[tuple[bytes, Exact]]:
        prefix = table_prefix(self.number)
        for encoded, rows in groupby(self._store.engine.scan(prefix, after(prefix)), self.place_of):
            exact, _, _ = without_exact(next(rows)[1])
            yield encoded, exact

    def point_reader(self) -> PointReader:
        """Return a function with which other threads read the contents of places (key, or key and
        window). Lists and maps are changed and read under a lock, because readers combine unwritten
        changes with rows. No user function runs under the lock, and results are serialised after it
        is released. Values are read without the lock (see ``DiskValueTable``)."""
        if not self._is_shared:
            self._is_shared = True
            for name in self._CHANGING:
                self.__dict__[name] = _in_turns(self._store.lock, getattr(self, name))
        return self._read

    def _read(self, places: Sequence[Any]) -> list[Any]:
        """Return the contents of each of *places*. May be called from any thread."""
        assign = KeyGroupAssigner(self._assign.max_parallelism, self._assign.hash_of, 1)
        codec = PlaceCodec(self.number, self.namespaced, assign)
        return [self._read_place(codec, place) for place in places]

    @abstractmethod
    def _read_place(self, codec: PlaceCodec, place: Any) -> Any:
        """Return the contents of a place (key, or key and window), from cache or disk; MISSING if
        it has none. May be called from any thread."""

    def _stored(self, codec: PlaceCodec, place: Any) -> list[Pair]:
        """Return the rows that a place (key, or key and window) has on disk. May be called from any
        thread."""
        engine = self._store.opened_engine
        return [] if engine is None else list(engine.reader().scan_place(codec.encode(place)))

    def clear(self) -> None:
        self._store.flush()
        engine = self._store.engine
        if self._store.epoch is not None:
            batch = engine.batch()
            for encoded, exact in self._encoded_places():
                self._store.note(batch, encoded, exact)
            engine.write(batch)
        prefix = table_prefix(self.number)
        engine.delete_range(prefix, after(prefix))
        self._old = {}  # the old one first: readers look there last
        self._young = {}

    # --- Cached -------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        return bool(self._dirty)

    def write_to(self, batch: rocksdict.WriteBatch) -> tuple[int, int]:
        places = list(self._dirty)
        size = 0
        for place, encoded in zip(places, self.codec.encode_all(places), strict=True):
            exact = self.codec.exact(place)
            try:
                size += self._put_rows(batch, encoded, exact, self._young[place])
            except StateError as error:
                raise StateError(
                    f"state {self.descriptor.name!r} of {_key_of(place, self)!r}: {error}"
                ) from error
            self._store.note(batch, encoded, exact)
        return len(places), size

    def written(self) -> None:
        for place in self._dirty:
            self._settled(self._young[place])
        self._dirty.clear()

    def make_older(self) -> None:
        self._old, self._young = self._young, {}

    # --- helpers for the shapes -------------------------------------------------------------------

    def _held(self, place: Any) -> HeldT | None:
        """Return the cached contents of a place (key, or key and window), and note that they were
        used now. None if the place is not in the cache."""
        held = self._young.get(place)
        if held is None:
            held = self._old.get(place)
            if held is not None:
                self._young[place] = held
        return held

    def _keep(self, place: Any, held: HeldT, size: int) -> HeldT:
        self._store.account(size + OVERHEAD)
        self._young[place] = held
        return held

    def _change(self, place: Any, held: HeldT) -> None:
        """Mark the contents of a place (key, or key and window) as changed, so that they are
        written later; call this before the change. *held*: the cached contents of the place."""
        if place not in self._dirty:
            if len(self._dirty) >= self._store.most_dirty:
                self._store.flush()
                self._store.make_room()
            self._young[place] = held
            self._dirty[place] = None

    def _rows_of(self, encoded: bytes) -> list[Pair]:
        return list(self._store.engine.reader().scan_place(encoded))


def _in_turns(lock: AbstractContextManager[Any], method: Callable[..., Any]) -> Callable[..., Any]:

    @wraps(method)
    def call(*arguments: Any) -> Any:
        with lock:
            return method(*arguments)

    return call


def _key_of(place: Any, table: StateTable) -> Any:
    return place[0] if table.namespaced else place


def _size_of(rows: Iterable[Pair]) -> int:
    return sum(len(key) + len(row) for key, row in rows)


# --- values -------------------------------------------------------------------------------------


class DiskValueTable(DiskTable[Any], ValueTable):
    """A table with one value per place (key, or key and window). The cache holds values, and
    MISSING for empty places. A reader that finds nothing in the cache reads the engine. That is
    correct: the engine's value was current when the reader looked in the cache, and values written
    since are current as well."""

    def _load(self, place: Any) -> Any:
        value = self._old.get(place, _UNKNOWN)
        if value is not _UNKNOWN:
            self._young[place] = value
            return value
        row = self._store.engine.get(self.codec.encode(place))
        if row is None:
            return self._keep(place, MISSING, 0)
        return self._keep(place, decode_value(row, encoded_at(row)), len(row))

    def __contains__(self, place: Any) -> bool:
        return self.get(place, MISSING) is not MISSING

    def get(self, place: Any, default: Any = None) -> Any:
        value = self._young.get(place, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._load(place)
        return default if value is MISSING else value

    def get_to_change(self, place: Any, default: Any = None) -> Any:
        value = self._young.get(place, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._load(place)
        if value is MISSING:
            return default
        if type(value) not in IMMUTABLE:
            if self._is_shared:
                return own(value)
            self._change(place, value)
        return value

    def take(self, place: Any, default: Any = None) -> Any:
        value = self.get(place, MISSING)
        if value is MISSING:
            return default
        self._change(place, MISSING)
        self._young[place] = MISSING
        return own(value) if self._is_shared else value

    def put(self, place: Any, value: Any) -> None:
        if place not in self._dirty:
            self._change(place, value)
        self._young[place] = value

    def put_all(self, values: Mapping[Any, Any]) -> None:
        for place, value in values.items():
            self.put(place, value)

    def remove(self, place: Any) -> None:
        if self._young.get(place, _UNKNOWN) is MISSING:
            return
        self._change(place, MISSING)
        self._young[place] = MISSING

    def _read_place(self, codec: PlaceCodec, place: Any) -> Any:
        value = self._young.get(place, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._old.get(place, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        engine = self._store.opened_engine
        row = None if engine is None else engine.get(codec.encode(place))
        return MISSING if row is None else decode_value(row, encoded_at(row))

    def read_rows(self, codec: PlaceCodec, pairs: Iterable[Pair]) -> Iterator[tuple[Any, Any]]:
        decode = codec.decode
        for key, row in pairs:
            exact, _, at = without_exact(row)
            yield decode(key, 4, exact), decode_value(row, at)

    def _put_rows(self, batch: rocksdict.WriteBatch, place: bytes, exact: Exact, held: Any) -> int:
        if held is MISSING:
            batch.delete(place)
            return len(place)
        row = with_exact(exact, self._rows.encode(held))
        batch.put(place, row)
        return len(place) + len(row)

    def _settled(self, held: Any) -> None:
        return

    def place_of(self, pair: Pair) -> bytes:
        return pair[0]

    def contents_of(self, rows: Sequence[Pair]) -> Any:
        ((_, row),) = rows
        return decode_value(row, encoded_at(row))

    def put_restored(
        self, batch: rocksdict.WriteBatch, place: Any, encoded: bytes, contents: Any
    ) -> None:
        batch.put(encoded, with_exact(self.codec.exact(place), self._rows.encode(contents)))


# --- lists --------------------------------------------------------------------------------------


class _HeldList:
    """The cached contents of a list: either the whole list (*values*), or only the added elements
    that are not written yet (*added*), if it is known that more elements are on disk."""

    __slots__ = ("added", "is_rewritten", "portions", "stored", "values")

    def __init__(self, values: list[Any] | None, portions: list[bytes]) -> None:
        self.values = values
        self.added: list[Any] = []
        """Unwritten elements, while ``values`` is None."""
        self.portions = portions
        """Numbers of the list's rows, if ``values`` is not None."""
        self.stored = 0 if values is None else len(values)
        """Number of elements on the disk."""
        self.is_rewritten = False
        """Whether the rows on the disk are to be replaced as a whole."""


class DiskListTable(DiskTable[_HeldList], ListTable):
    """A table with one list per place (key, or key and window); the module's docstring describes
    its rows."""

    _CHANGING = ("take", "append", "extend", "put", "remove", "clear")

    _next = 1
    """Number of the next row: rows are in the order in which they were written."""

    def _known(self, place: Any) -> _HeldList:
        """Return the cached list of a place (key, or key and window) with all its values; reads the
        values if needed."""
        held = self._held(place)
        if held is not None and held.values is not None:
            return held
        rows = self._rows_of(self.codec.encode(place))
        values = self.contents_of(rows) if rows else []
        portions = [key[-8:] for key, _ in rows]
        if held is None:
            held = _HeldList(values, portions)
        else:
            held.stored, held.portions = len(values), portions
            held.values = values + held.added
            held.added = []  # last, as other threads may be reading
        return self._keep(place, held, _size_of(rows))

    def __contains__(self, place: Any) -> bool:
        held = self._held(place) or self._existing(place)
        return held.values is None or bool(held.values)

    def _existing(self, place: Any) -> _HeldList:
        """Look up whether a place (key, or key and window) that is not in the cache has a list on
        disk, and cache the answer. Returns the cached form of the list. It does not have the
        elements on disk yet."""
        row = self._store.engine.get(self.codec.encode(place) + _FIRST)
        return self._keep(place, _HeldList([] if row is None else None, []), 0)

    def get(self, place: Any) -> Sequence[Any]:
        return self._known(place).values or ()

    def take(self, place: Any) -> Sequence[Any]:
        held = self._known(place)
        values = held.values
        if not values:
            return ()
        self._change(place, held)
        held.values, held.is_rewritten = [], True
        return own_all(values.copy()) if self._is_shared else values

    def _read_place(self, codec: PlaceCodec, place: Any) -> Any:
        with self._store.lock:
            held = self._young.get(place) or self._old.get(place)
            # In this order: when the whole list becomes known, ``values`` is set before ``added``
            # is emptied.
            added = [] if held is None else held.added.copy()
            values = None if held is None else held.values
            if values is None:
                rows = self._stored(codec, place)
                values = self.contents_of(rows) + added
            return values.copy() or MISSING

    def append(self, place: Any, value: Any) -> bool:
        held = self._held(place) or self._existing(place)
        self._change(place, held)
        if held.values is None:
            held.added.append(value)
            return False
        held.values.append(value)
        return len(held.values) == 1

    def extend(self, place: Any, values: Iterable[Any]) -> None:
        added = list(values)
        if not added:
            return
        held = self._held(place) or self._existing(place)
        self._change(place, held)
        if held.values is None:
            held.added += added
        else:
            held.values += added

    def put(self, place: Any, values: Iterable[Any]) -> None:
        replacement = list(values)
        held = self._known(place)
        if not replacement and not held.values:
            return
        self._change(place, held)
        held.values, held.is_rewritten = replacement, True

    def remove(self, place: Any) -> None:
        self.put(place, ())

    def _put_rows(
        self, batch: rocksdict.WriteBatch, place: bytes, exact: Exact, held: _HeldList
    ) -> int:
        if held.values is None:
            return self._put_portion(batch, place + self._number(), exact, held.added)
        is_rewritten = held.is_rewritten or len(held.portions) >= _MOST_PORTIONS
        begin = 0 if is_rewritten else held.stored
        if is_rewritten:
            for portion in held.portions:
                batch.delete(place + portion)
            held.portions = []
            held.is_rewritten = True  # until the rows are on the disk
        if begin == len(held.values):
            return len(place)
        portion = self._number() if held.portions else _FIRST
        held.portions.append(portion)
        return self._put_portion(batch, place + portion, exact, held.values[begin:])

    def _number(self) -> bytes:
        number = _NUMBER.pack(self._next)
        self._next += 1
        return number

    def _put_portion(
        self, batch: rocksdict.WriteBatch, key: bytes, exact: Exact, values: list[Any]
    ) -> int:
        row = with_exact(exact, self._rows.encode(values))
        batch.put(key, row)
        return len(key) + len(row)

    def _settled(self, held: _HeldList) -> None:
        held.added, held.is_rewritten = [], False
        held.stored = len(held.values or ())

    def place_of(self, pair: Pair) -> bytes:
        return pair[0][:-8]

    def contents_of(self, rows: Sequence[Pair]) -> list[Any]:
        values: list[Any] = []
        for _, row in rows:
            values += decode_value(row, encoded_at(row))
        return values

    def put_restored(
        self, batch: rocksdict.WriteBatch, place: Any, encoded: bytes, contents: Any
    ) -> None:
        self._put_portion(batch, encoded + _FIRST, self.codec.exact(place), list(contents))


# --- maps ---------------------------------------------------------------------------------------


class _HeldMap:
    """The cached contents of a map: some of its entries, or all."""

    __slots__ = ("changed", "entries", "gone", "is_complete", "numbers")

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}
        """Values by key.
        If all entries are here, they are in order; else MISSING marks keys without entry."""
        self.numbers: dict[Any, tuple[int, Any]] = {}
        """(number, exact key) of existing entries, by key. Equal keys, such as 1 and True, may
        differ."""
        self.is_complete = False
        self.changed: dict[Any, None] = {}
        """Keys of entries that were changed or removed, and are not written yet."""
        self.gone: list[bytes] = []
        """Rows to be deleted before the changes are written."""


class DiskMapTable(DiskTable[_HeldMap], MapTable):
    """A table with one map per place (key, or key and window); the module's docstring describes its
    rows."""

    _CHANGING = ("put", "put_all", "remove_entry", "remove", "clear")

    _next = 0
    """Number of the next entry, which gives the order of insertion."""

    def _map(self, place: Any) -> _HeldMap:
        return self._held(place) or self._keep(place, _HeldMap(), 0)

    def _entry(self, place: Any, held: _HeldMap, key: Any) -> Any:
        value = held.entries.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        if held.is_complete:
            return MISSING
        part = encode_part(key)
        row_key = self.codec.encode(place) + part
        row = self._store.engine.get(row_key)
        size = OVERHEAD
        if row is None:
            value = MISSING
        else:
            key, number, value = _read_entry(len(row_key) - len(part), row_key, row)
            held.numbers[key] = number, key
            size += len(row)
        held.entries[key] = value
        self._store.account(size)
        self._young[place] = held
        return value

    def _complete(self, place: Any) -> _HeldMap:
        """Return the cached map of a place (key, or key and window) with all its entries; reads the
        entries if needed."""
        held = self._map(place)
        if held.is_complete:
            return held
        encoded = self.codec.encode(place)
        rows = self._rows_of(encoded)
        gone = set(held.gone)
        for row_key, row in rows:
            if row_key not in gone:
                key, number, value = _read_entry(len(encoded), row_key, row)
                if key not in held.changed and held.entries.get(key, MISSING) is MISSING:
                    held.entries[key], held.numbers[key] = value, (number, key)
        in_order = sorted(held.numbers.values(), key=_number_of)
        held.entries = {key: held.entries[key] for _, key in in_order}
        held.is_complete = True
        return self._keep(place, held, _size_of(rows))

    def __contains__(self, place: Any) -> bool:
        held = self._map(place)
        if held.numbers or held.is_complete:
            return bool(held.numbers)
        if held.changed or held.gone:
            self._store.flush()
        return any(True for _ in self._store.engine.reader().scan_place(self.codec.encode(place)))

    def get(self, place: Any, key: Any, default: Any = None) -> Any:
        value = self._entry(place, self._map(place), key)
        return default if value is MISSING else value

    def get_to_change(self, place: Any, key: Any, default: Any = None) -> Any:
        held = self._map(place)
        value = self._entry(place, held, key)
        if value is MISSING:
            return default
        if type(value) not in IMMUTABLE:
            if self._is_shared:
                return own(value)
            self._change(place, held)
            held.changed[key] = None
        return value

    def _read_place(self, codec: PlaceCodec, place: Any) -> Any:
        with self._store.lock:
            held = self._young.get(place) or self._old.get(place)
            if held is not None and held.is_complete:
                return held.entries.copy() or MISSING
            size = len(codec.encode(place))
            rows = self._stored(codec, place)
            entries = {key: (number, value) for key, number, value in _read_entries(size, rows)}
            if held is not None:
                for key in held.changed:
                    entries.pop(key, None)
                    if key in held.numbers:
                        number, exactly = held.numbers[key]
                        entries[exactly] = number, held.entries[key]
            in_order = sorted(entries.items(), key=lambda entry: entry[1][0])
            return {key: value for key, (_, value) in in_order} or MISSING

    def contains(self, place: Any, key: Any) -> bool:
        return self._entry(place, self._map(place), key) is not MISSING

    def items(self, place: Any) -> Iterable[tuple[Any, Any]]:
        return self._complete(place).entries.items()

    def put(self, place: Any, key: Any, value: Any) -> None:
        held = self._map(place)
        if self._entry(place, held, key) is MISSING:
            held.numbers[key] = self._next, key
            self._next += 1
        self._change(place, held)
        held.entries[key] = value
        held.changed[key] = None

    def put_all(self, place: Any, entries: Mapping[Any, Any]) -> None:
        for key, value in entries.items():
            self.put(place, key, value)

    def remove_entry(self, place: Any, key: Any) -> None:
        held = self._map(place)
        if self._entry(place, held, key) is MISSING:
            return
        self._change(place, held)
        held.changed[key] = None
        del held.numbers[key]
        if held.is_complete:
            del held.entries[key]
        else:
            held.entries[key] = MISSING

    def remove(self, place: Any) -> None:
        held = self._map(place)
        encoded = self.codec.encode(place)
        rows = [key for key, _ in self._rows_of(encoded)]
        if not rows and not held.numbers:
            return
        self._change(place, held)
        held.gone = rows
        held.entries, held.numbers, held.changed = {}, {}, {}
        held.is_complete = True

    def _put_rows(
        self, batch: rocksdict.WriteBatch, place: bytes, exact: Exact, held: _HeldMap
    ) -> int:
        for row_key in held.gone:
            batch.delete(row_key)
        size = 0
        for key in held.changed:
            row_key = place + encode_part(key)
            known = held.numbers.get(key)
            if known is None:
                batch.delete(row_key)
            else:
                number, exactly = known
                size += self._put_entry(
                    batch, row_key, exact, exactly, number, len(place), held.entries[key]
                )
        return size

    def _put_entry(
        self,
        batch: rocksdict.WriteBatch,
        row_key: bytes,
        exact: Exact,
        key: Any,
        number: int,
        size: int,
        value: Any,
    ) -> int:
        encoded = _ENTRY.pack(number, size) + self._rows.encode(value)
        row = with_exact(exact, encoded, exact_part(key))
        batch.put(row_key, row)
        return len(row_key) + len(row)

    def _settled(self, held: _HeldMap) -> None:
        held.changed, held.gone = {}, []

    def place_of(self, pair: Pair) -> bytes:
        row_key, row = pair
        _, size = _ENTRY.unpack_from(row, encoded_at(row))
        return row_key[:size]

    def contents_of(self, rows: Sequence[Pair]) -> dict[Any, Any]:
        (_, first) = rows[0]
        _, size = _ENTRY.unpack_from(first, encoded_at(first))
        entries = [_read_entry(size, *pair) for pair in rows]
        entries.sort(key=lambda entry: entry[1])
        return {key: value for key, _, value in entries}

    def put_restored(
        self, batch: rocksdict.WriteBatch, place: Any, encoded: bytes, contents: Any
    ) -> None:
        exact = self.codec.exact(place)
        for key, value in contents.items():
            self._put_entry(
                batch, encoded + encode_part(key), exact, key, self._next, len(encoded), value
            )
            self._next += 1


def _read_entries(place_size: int, rows: Iterable[Pair]) -> Iterator[tuple[Any, int, Any]]:
    return (_read_entry(place_size, *pair) for pair in rows)


def _number_of(entry: tuple[int, Any]) -> int:
    return entry[0]


def _read_entry(place_size: int, row_key: bytes, row: bytes) -> tuple[Any, int, Any]:
    _, exact_key, at = without_exact(row)
    number, _ = _ENTRY.unpack_from(row, at)
    if exact_key is None:
        key, _ = decode_first_key(row_key, place_size)
    else:
        key = part_of(exact_key)
    return key, number, decode_value(row, at + _ENTRY.size)
