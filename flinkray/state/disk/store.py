"""What the tables of one backend share: the engine, the room of their caches, the noted changes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from flinkray.state.disk.engine import Engine, Snapshot
from flinkray.state.disk.fair_lock import FairLock
from flinkray.state.disk.places import Exact
from flinkray.state.disk.rows import with_exact, without_exact

if TYPE_CHECKING:
    import rocksdict

CHANGES = 0xFFFF
"""Number of the table of noted changes; others have lower ones."""

OVERHEAD = 200
"""Bytes that a decoded value and its place take beyond their encoding, about."""
MOST_DIRTY = 4096
"""Places of a table that have changed and are not written yet: some milliseconds of work."""
_LEAST_DIRTY = 16

_NOTE = struct.Struct(">HIHH")
_EPOCH = struct.Struct(">HI")
_TABLE_AND_GROUP = struct.Struct(">HH")
_FEW_NOTES = 100_000
"""Changes that are remembered in any case; of more than there are rows, nothing is."""


class Cached(Protocol):
    """A table, as far as its store goes."""

    @property
    def has_changes(self) -> bool:
        """Whether there is something to be written."""

    def write_to(self, batch: rocksdict.WriteBatch) -> tuple[int, int]:
        """Add what has changed; how many places, and bytes, these are."""

    def written(self) -> None:
        """It is on the disk."""

    def make_older(self) -> None:
        """Values that were not used since the last call are forgotten."""


class DiskStore:
    """See the module.  From the task's thread, but for ``lock`` and ``opened_engine``.

    Args:
        open_engine: makes the engine, when it is needed first.
        cache_bytes: for decoded values, roughly.
    """

    def __init__(self, open_engine: Callable[[], Engine], cache_bytes: int) -> None:
        self._open = open_engine
        self._engine: Engine | None = None
        self._half = cache_bytes // 2
        self._used = 0
        self._tables: list[Cached] = []
        self.most_dirty = MOST_DIRTY
        self.lock = FairLock()
        """Held while changes are written and while what tables have of them is let go, and by
        tables that other threads read; see ``DiskTable.point_reader``."""
        self.epoch: int | None = None
        """Of changes now; None: they are not noted yet."""
        self._first_epoch = 0
        self._notes = 0
        """Changes that were noted, some of them more than once."""

    @property
    def engine(self) -> Engine:
        """Opened at its first use."""
        if self._engine is None:
            self._engine = self._open()
        return self._engine

    @property
    def opened_engine(self) -> Engine | None:
        """If there is one; from any thread."""
        return self._engine

    @property
    def is_open(self) -> bool:
        """Whether there is an engine."""
        return self._engine is not None

    def add(self, table: Cached) -> None:
        """Its changes are written with those of the others."""
        self._tables.append(table)

    def close(self) -> None:
        """Nothing is read or written here any more."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.release()

    # --- caches -------------------------------------------------------------------------------

    def account(self, size: int) -> None:
        """So many bytes of decoded values more are kept.  When there is no room, all tables write
        their changes, and forget what was not used for the longest time."""
        self._used += size
        if self._used > self._half:
            self.flush()
            self.make_room()

    def make_room(self) -> None:
        """Where there is none, after everything was written."""
        if self._used > self._half:
            for table in self._tables:
                table.make_older()
            self._used = 0

    def flush(self) -> None:
        """Write the changes of all tables.  Raises StateStorageError, StateError."""
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
        # Large values are written more often, so that what is not written stays small.
        room = self._half // (8 * max(size // number, 1))
        self.most_dirty = min(MOST_DIRTY, max(_LEAST_DIRTY, room))

    # --- changes ------------------------------------------------------------------------------

    def note(self, batch: rocksdict.WriteBatch, place: bytes, exact: Exact) -> None:
        """A place has changed in this epoch: its contents, or that there are none any more, belong
        to captures of changes since then."""
        if self.epoch is not None:
            table, group = _TABLE_AND_GROUP.unpack_from(place)
            key = _NOTE.pack(CHANGES, self.epoch, group, table) + place[4:]
            batch.put(key, with_exact(exact, b""))
            self._notes += 1

    def next_epoch(self, oldest: int | None) -> None:
        """What changes from now on is told apart; what has changed before the epoch *oldest* is
        not asked for any more."""
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
        """More than it is worth: all that there is is not more."""
        if self._notes <= _FEW_NOTES:
            return False
        return 2 * self._notes > self.engine.estimated_number()


def changed_places(
    snapshot: Snapshot, epochs: Iterable[int], group: int
) -> list[tuple[int, bytes, Exact]]:
    """Tables and places (encoded, behind their key group) of a key group that have changed in these
    epochs, in order."""
    notes: dict[bytes, bytes] = {}
    for epoch in epochs:
        prefix = _EPOCH.pack(CHANGES, epoch) + group.to_bytes(2, "big")
        begin = len(prefix)
        notes.update((key[begin:], row) for key, row in snapshot.scan(prefix))
    return [
        (int.from_bytes(encoded[:2], "big"), encoded[2:], without_exact(notes[encoded])[0])
        for encoded in sorted(notes)
    ]
