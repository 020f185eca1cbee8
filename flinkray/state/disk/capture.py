"""Captures of state on a disk, read from a snapshot of the engine, one key group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state.columnar_snapshots import ColumnarCapture, RestoredColumns
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.disk.changes import changed_places
from flinkray.state.disk.restored_frames import Spool, SpooledTable
from flinkray.state.disk.rocksdb import Pair, Snapshot
from flinkray.state.disk.rows import PlaceCodec, table_prefix
from flinkray.state.disk.tables import DiskTable
from flinkray.state.disk.timers import DiskTimerQueue, Timer, read_timers_of_rows
from flinkray.state.expiry import without_expired
from flinkray.state.heap_tables import TableCapture
from flinkray.state.key_group_assignment import KeyGroupAssigner
from flinkray.state.snapshots import (
    ColumnarForm,
    ColumnarSnapshot,
    Section,
    SectionKind,
    SnapshotBody,
    SnapshotContents,
    SnapshotStream,
    StateCapture,
    TableForm,
)
from flinkray.state.state_serializer import Places, StateFrameWriter, merged, write_timers

_LARGEST_FRAME = 4 << 20
"""Largest size of a frame in bytes; a single place may be larger."""
_MOST_PLACES = 20_000
"""Largest number of places in a frame."""
_MOST_TIMERS = 20_000


class CapturedTable:
    """A table in a capture, with what is needed to read and encode its rows in another thread."""

    def __init__(self, table: DiskTable[Any], assign: KeyGroupAssigner) -> None:
        self.table = table
        self.descriptor: StateDescriptor = table.descriptor
        self.number = table.number
        self.namespaced = table.namespaced
        self.codec = PlaceCodec(table.number, table.namespaced, assign)
        self.section = Section(SectionKind.TABLE, table.descriptor.name)
        self.writer: StateFrameWriter = table.serializer.writer()

    def read_rows(self, pairs: Iterator[Pair]) -> Iterator[tuple[Any, Any]]:
        """Yield (place, contents) for each place of this table in *pairs*, the table's rows in
        order. A place is a key, or a pair of key and window."""
        return self.table.read_rows(self.codec, pairs)

    def columns(self, places: list[Any]) -> Places:
        """Return the keys of *places*, and their namespaces (windows). The namespaces are None if
        the table has none."""
        if not self.namespaced:
            return places, None
        return [key for key, _ in places], [namespace for _, namespace in places]


class CapturedQueue:
    """A timer queue in a capture, with what is needed to read its rows in another thread. *memory*:
    the captured timers that are not on the disk but in memory."""

    def __init__(
        self, name: str, queue: DiskTimerQueue, memory: TableCapture, assign: KeyGroupAssigner
    ) -> None:
        self.section = Section(SectionKind.TIMERS, name)
        self.number = queue.number
        self.memory = memory
        self.codec = PlaceCodec(queue.number, True, assign)


@dataclass
class _Frame:
    """Collects the places (key, or key and window) and contents of the next frame, a part of a
    table that is written at once."""

    places: list[Any] = field(default_factory=list)
    contents: list[Any] = field(default_factory=list)
    removed: list[Any] = field(default_factory=list)
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.size > _LARGEST_FRAME or len(self.places) + len(self.removed) >= _MOST_PLACES


class DiskCapture(StateCapture):
    """A :class:`StateCapture` of a :class:`DiskKeyedStateBackend`.
    *epochs*: the capture has only the places that changed in these epochs (the time between two
    captures is an epoch). None: it has the whole state."""

    def __init__(
        self,
        key_groups: KeyGroupRange,
        assign: KeyGroupAssigner,
        moment: int,
        snapshot: Snapshot | None,
        epochs: range | None,
        tables: list[CapturedTable],
        queues: list[CapturedQueue],
        columns: Mapping[str, ColumnarCapture],
        spool: Spool | None,
        restored: Mapping[str, SpooledTable],
        restored_columns: Mapping[str, RestoredColumns],
    ) -> None:
        super().__init__(epochs is None)
        self.key_groups = key_groups
        self.assign = assign
        self.moment = moment
        self.snapshot = snapshot
        self.epochs = epochs
        self.tables = tables
        self.queues = queues
        self.columns = columns
        self.spool = spool
        # A copy: the backend drops the frames of a table that comes into use.
        self.restored = {
            name: SpooledTable(it.kind, it.namespaced, list(it.serializers), dict(it.groups))
            for name, it in restored.items()
        }
        self.restored_columns = restored_columns

    def stream(self) -> SnapshotStream:
        return _DiskStream(self)

    def release(self) -> None:
        for queue in self.queues:
            queue.memory.done = True
        if self.snapshot is not None:
            self.snapshot.release()


class _DiskStream(SnapshotStream):
    """The snapshot of a :class:`DiskCapture`, which is read from the disk during the iteration."""

    def __init__(self, capture: DiskCapture) -> None:
        self.key_groups = capture.key_groups
        self._capture = capture
        self._columns: dict[str, ColumnarSnapshot] = {}

    def bodies(self) -> Iterator[SnapshotBody]:
        capture = self._capture
        try:
            self._columns = {
                **{name: it.write(capture.assign) for name, it in capture.columns.items()},
                **{name: it.snapshot() for name, it in capture.restored_columns.items()},
            }
            timers = [
                _by_group(capture.assign, _timers_in_memory(queue.memory))
                for queue in capture.queues
            ]
            for group in range(capture.key_groups.first, capture.key_groups.last + 1):
                yield from self._tables_of(group)
                for queue, in_memory in zip(capture.queues, timers, strict=True):
                    yield from self._timers_of(group, queue, in_memory.pop(group, []))
                for name, columns in self._columns.items():
                    payload = columns.groups.get(group)
                    if payload is not None:
                        yield SnapshotBody(group, Section(SectionKind.COLUMNS, name), payload)
        finally:
            capture.release()

    def contents(self) -> SnapshotContents:
        capture = self._capture
        is_whole = capture.is_whole
        tables = {
            it.section.name: TableForm(
                it.descriptor.kind, it.namespaced, is_whole, it.writer.snapshot()
            )
            for it in capture.tables
        }
        for name, restored in capture.restored.items():
            tables[name] = TableForm(
                restored.kind, restored.namespaced, True, merged(restored.serializers)
            )
        columns = {
            name: ColumnarForm(it.kind, it.namespaced, it.whole, it.removed, it.pickled)
            for name, it in self._columns.items()
        }
        queues = tuple(queue.section.name for queue in capture.queues)
        return SnapshotContents(tables, queues, columns)

    # --- tables -------------------------------------------------------------------------------

    def _tables_of(self, group: int) -> Iterator[SnapshotBody]:
        capture = self._capture
        snapshot = capture.snapshot
        if snapshot is not None and capture.epochs is None:
            for table in capture.tables:
                yield from self._everything(table, group, snapshot)
        elif snapshot is not None:
            yield from self._changes(group, snapshot)
        for name, restored in capture.restored.items():
            assert capture.spool is not None
            for payload in restored.frames(capture.spool, group):
                yield SnapshotBody(group, Section(SectionKind.TABLE, name), payload)

    def _everything(
        self, table: CapturedTable, group: int, snapshot: Snapshot
    ) -> Iterator[SnapshotBody]:
        frame = _Frame()
        prefix = table_prefix(table.number, group)

        def counted() -> Iterator[Pair]:
            for key, row in snapshot.scan(prefix):
                frame.size += len(key) + len(row)
                yield key, row

        for place, contents in table.read_rows(counted()):
            if frame.is_full:
                yield from self._written(group, table, frame)
            frame.places.append(place)
            frame.contents.append(contents)
        yield from self._written(group, table, frame)

    def _changes(self, group: int, snapshot: Snapshot) -> Iterator[SnapshotBody]:
        capture = self._capture
        assert capture.epochs is not None
        by_number = {table.number: table for table in capture.tables}
        table: CapturedTable | None = None
        frame = _Frame()
        for number, rest, exact in changed_places(snapshot, capture.epochs, group):
            if table is not None and (number != table.number or frame.is_full):
                yield from self._written(group, table, frame)
            table = by_number[number]
            rows = list(snapshot.scan_place(table_prefix(number, group) + rest))
            frame.size += sum(len(key) + len(row) for key, row in rows)
            if not rows:
                frame.removed.append(table.codec.decode(rest, 0, exact))
            for place, contents in table.read_rows(iter(rows)):
                frame.places.append(place)
                frame.contents.append(contents)
        if table is not None:
            yield from self._written(group, table, frame)

    def _written(self, group: int, table: CapturedTable, frame: _Frame) -> Iterator[SnapshotBody]:
        config = table.descriptor.ttl_config
        if config is not None and config.cleanup_strategies.in_full_snapshot():
            limit = self._capture.moment - config.ttl
            places, contents = without_expired(table.table, frame.places, frame.contents, limit)
            if not self._capture.is_whole:  # remove what earlier snapshots have
                frame.removed += set(frame.places).difference(places)
            frame.places, frame.contents = places, contents
        if frame.places or frame.removed:
            payload = table.writer.write(
                table.columns(frame.places), frame.contents, table.columns(frame.removed)
            )
            yield SnapshotBody(group, table.section, payload)
        frame.places, frame.contents, frame.removed, frame.size = [], [], [], 0

    # --- timers -------------------------------------------------------------------------------

    def _timers_of(
        self, group: int, queue: CapturedQueue, in_memory: list[Timer]
    ) -> Iterator[SnapshotBody]:
        timers = iter(in_memory)
        yield from _written_timers(group, queue, timers)
        snapshot = self._capture.snapshot
        if snapshot is not None:
            prefix = table_prefix(queue.number, group)
            on_disk = read_timers_of_rows(queue.codec, snapshot.scan(prefix))
            yield from _written_timers(group, queue, on_disk)


def _written_timers(
    group: int, queue: CapturedQueue, timers: Iterator[Timer]
) -> Iterator[SnapshotBody]:
    while portion := list(islice(timers, _MOST_TIMERS)):
        yield SnapshotBody(group, queue.section, write_timers(portion))


def _timers_in_memory(capture: TableCapture) -> list[Timer]:
    times, buckets, _ = capture.read()
    return sorted(
        ((time, *timer) for time, bucket in zip(times, buckets, strict=True) for timer in bucket),
        key=lambda timer: timer[0],
    )


def _by_group(assign: KeyGroupAssigner, timers: list[Timer]) -> dict[int, list[Timer]]:
    groups = assign.of_all([timer[1] for timer in timers])
    order = np.argsort(groups, kind="stable")
    found: dict[int, list[Timer]] = {}
    for place, group in zip(order.tolist(), groups[order].tolist(), strict=True):
        found.setdefault(group, []).append(timers[place])
    return found
