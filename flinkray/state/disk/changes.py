"""Changes of the tables of a disk backend: they are written to RocksDB together, when the cache is
full or a capture is made, and noted for the captures of changes."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from flinkray.state.disk.rocksdb import Engine, Snapshot
from flinkray.state.disk.rows import Exact, with_exact, without_exact

if TYPE_CHECKING:
    import rocksdict

CHANGES = 0xFFFF
"""Number of the table of noted changes; other tables have lower numbers."""

OVERHEAD = 200
"""Approximate size in bytes of a decoded value and its place, beyond their encoded size."""
MOST_DIRTY = 4096
"""Largest number of unwritten changed places of a table; writing them takes some milliseconds."""
_LEAST_DIRTY = 16

_NOTE = struct.Struct(">HIHH")
_EPOCH = struct.Struct(">HI")
_TABLE_AND_GROUP = struct.Struct(">HH")
_FEW_NOTES = 100_000
"""Number of changes that are always noted; more are dropped if they outnumber half of all pairs."""


class Cached(Protocol):
    """Interface of a table, with which the :class:`DiskStore` writes the changes of all tables."""

    @property
    def has_changes(self) -> bool:
        """Whether the table has unwritten changes."""

    def write_to(self, batch: rocksdict.WriteBatch) -> tuple[int, int]:
        """Add the unwritten changes to *batch*. Returns (number of changed keys or (key, window)
        pairs, number of bytes)."""

    def written(self) -> None:
        """Mark the changes as written that :meth:`write_to` has added to a batch."""

    def make_older(self) -> None:
        """Drop the cached values that were not used since the last call."""


class DiskStore:
    """What the tables of one backend share: the engine, the limit of cached values, and the notes
    of changed places (key, or key and window). Only the task's thread uses it, except ``lock`` and
    ``opened_engine``. *open_engine* is called when the engine is first needed; *cache_bytes* is an
    approximate limit for decoded values."""

    def __init__(self, open_engine: Callable[[], Engine], cache_bytes: int) -> None:
        self._open = open_engine
        self._engine: Engine | None = None
        self._half = cache_bytes // 2
        self._used = 0
        self._tables: list[Cached] = []
        self.most_dirty = MOST_DIRTY
        self.lock = FairLock()
        """Held while changes are written and while tables drop the written changes from memory.
        Tables that other threads read also take it; see ``DiskTable.point_reader``."""
        self.epoch: int | None = None
        """Epoch of the changes made now. None: changes are not noted yet."""
        self._first_epoch = 0
        self._notes = 0
        """Number of noted changes; a place may be counted several times."""

    @property
    def engine(self) -> Engine:
        """The engine, which is opened at its first use."""
        if self._engine is None:
            self._engine = self._open()
        return self._engine

    @property
    def opened_engine(self) -> Engine | None:
        """The engine; None if it is not open. May be read from any thread."""
        return self._engine

    @property
    def is_open(self) -> bool:
        """Whether the engine is open."""
        return self._engine is not None

    def add(self, table: Cached) -> None:
        """Register a table; the changes of all registered tables are written together."""
        self._tables.append(table)

    def close(self) -> None:
        """Release the engine; nothing is read or written through this store any more."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.release()

    # --- caches -------------------------------------------------------------------------------

    def account(self, size: int) -> None:
        """Note that the cached values of all tables have become *size* bytes larger. If the cache
        is full, all tables write their changes and drop the values that were not used for the
        longest time."""
        self._used += size
        if self._used > self._half:
            self.flush()
            self.make_room()

    def make_room(self) -> None:
        """If the cache is full, drop values that were not used lately from all tables. Call this
        only when no table has unwritten changes."""
        if self._used > self._half:
            for table in self._tables:
                table.make_older()
            self._used = 0

    def flush(self) -> None:
        """Write the changes of all tables to the engine. Raises StateStorageError, StateError."""
        changed = [table for table in self._tables if table.has_changes]
        if not changed:
            return
        batch = self.engine.batch()
        number = size = 0
        for table in changed:
            of_table, bytes_of_table = table.write_to(batch)
            number += of_table
            size += bytes_of_table
        with self.lock:
            self.engine.write(batch)
            for table in changed:
                table.written()
        self._used += size + number * OVERHEAD
        # Large values are written more often, so that unwritten changes stay small.
        room = self._half // (8 * max(size // number, 1))
        self.most_dirty = min(MOST_DIRTY, max(_LEAST_DIRTY, room))

    # --- changes ------------------------------------------------------------------------------

    def note(self, batch: rocksdict.WriteBatch, place: bytes, exact: Exact) -> None:
        """Add to *batch* a note that the contents of *place* (encoded key and window) changed in
        the present epoch, the time since the last capture. The next captures of changes read the
        notes. No note is needed before the first capture."""
        if self.epoch is not None:
            table, group = _TABLE_AND_GROUP.unpack_from(place)
            key = _NOTE.pack(CHANGES, self.epoch, group, table) + place[4:]
            batch.put(key, with_exact(exact, b""))
            self._notes += 1

    def next_epoch(self, oldest: int | None) -> None:
        """Begin a new epoch, because a capture is made now: changes are noted by epoch. Notes from
        before the epoch *oldest* are deleted, since no capture needs them. None: all notes."""
        epoch = 0 if self.epoch is None else self.epoch + 1
        first = epoch if oldest is None else oldest
        if first > self._first_epoch and self.is_open and self._notes:
            begin, end = _EPOCH.pack(CHANGES, self._first_epoch), _EPOCH.pack(CHANGES, first)
            self.engine.delete_range(begin, end)
            if first == epoch:
                self._notes = 0
        self._first_epoch = first
        self.epoch = epoch

    @property
    def has_too_many_notes(self) -> bool:
        """Whether there are so many notes of changes that capturing the whole state is cheaper."""
        if self._notes <= _FEW_NOTES:
            return False
        return 2 * self._notes > self.engine.estimated_number()


def changed_places(
    snapshot: Snapshot, epochs: Iterable[int], group: int
) -> list[tuple[int, bytes, Exact]]:
    """Return the places in the key group *group* that changed in one of the *epochs* (times between
    two captures), in order. A place is given as (number of its table, encoded key and namespace,
    exact key and namespace as far as needed)."""
    notes: dict[bytes, bytes] = {}
    for epoch in epochs:
        prefix = _EPOCH.pack(CHANGES, epoch) + group.to_bytes(2, "big")
        begin = len(prefix)
        notes.update((key[begin:], row) for key, row in snapshot.scan(prefix))
    return [
        (int.from_bytes(encoded[:2], "big"), encoded[2:], without_exact(notes[encoded])[0])
        for encoded in sorted(notes)
    ]


class FairLock:
    """A reentrant lock for ``with`` statements, which threads get in the order of their requests.
    With Python's own locks, a thread that takes the lock again and again would keep all other
    threads waiting."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._mutex:
            if self._owner == me or self._owner is None:
                self._owner = me
                self._depth += 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append((me, turn))
        turn.acquire()  # returns when the lock belongs to this thread

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._depth -= 1
            if self._depth:
                return
            if not self._waiting:
                self._owner = None
                return
            self._owner, turn = self._waiting.popleft()
            self._depth = 1
            turn.release()
