"""Writes the contents of tables and timers on the heap as of a moment, while they change.

A writer and its task compete for the interpreter's lock. So entries become columns one portion at a
time, with one call of Arrow for each column (:mod:`flinkray.state.value_columns`). Sorting by key
group is done by Arrow and NumPy without the lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.columnar_snapshots import ColumnarCapture, RestoredColumns
from flinkray.state.expiry import without_expired
from flinkray.state.heap_tables import HeapTable, TableCapture
from flinkray.state.keys import KeyGroupAssigner
from flinkray.state.serializers import Places, StateFrameWriter, write_timers
from flinkray.state.snapshots import (
    ColumnarForm,
    Section,
    SectionKind,
    SnapshotBody,
    SnapshotContents,
    SnapshotStream,
    StateCapture,
    TableForm,
    TableSnapshot,
)
from flinkray.state.thread_turns import short_turns
from flinkray.state.value_columns import TupleColumn, column_of, concatenated, divisible

MOST_IN_CHUNK = 1 << 19
"""Number of entries that are sorted at once."""

Captured = tuple[HeapTable, TableCapture]


class PassedOnTable(Protocol):
    """A restored table that is not in use; snapshots pass it on as it was stored."""

    def snapshot(self) -> TableSnapshot: ...


class HeapCapture(StateCapture):
    """A :class:`StateCapture` of a :class:`HeapKeyedStateBackend`.
    *moment*: processing time of the capture, in milliseconds; *restored*, *restored_columns*:
    tables that are not in use yet; the snapshot contains them in their stored form."""

    def __init__(
        self,
        is_whole: bool,
        key_groups: KeyGroupRange,
        assign: KeyGroupAssigner,
        moment: int,
        tables: Sequence[Captured],
        queues: Mapping[str, TableCapture],
        columns: Mapping[str, ColumnarCapture],
        restored: Mapping[str, PassedOnTable],
        restored_columns: Mapping[str, RestoredColumns],
    ) -> None:
        super().__init__(is_whole)
        self.key_groups = key_groups
        self.assign = assign
        self.moment = moment
        self.tables = tables
        self.queues = queues
        self.columns = columns
        self.restored = restored
        self.restored_columns = restored_columns

    def stream(self) -> SnapshotStream:
        return _HeapSnapshot(self)

    def release(self) -> None:
        for capture in (*(capture for _, capture in self.tables), *self.queues.values()):
            capture.done = True


class _HeapSnapshot(SnapshotStream):
    def __init__(self, capture: HeapCapture) -> None:
        self.key_groups = capture.key_groups
        self._capture = capture
        self._contents = SnapshotContents({}, (), {})

    def bodies(self) -> Iterator[SnapshotBody]:
        try:
            with short_turns():
                yield from self._bodies()
        finally:
            self._capture.release()

    def _bodies(self) -> Iterator[SnapshotBody]:
        capture = self._capture
        sections: dict[Section, Mapping[int, bytes]] = {}
        forms: dict[str, TableForm] = {}
        columnar: dict[str, ColumnarForm] = {}
        writers = {
            table.descriptor.name: _TableWriter(table, of_table, capture.assign, capture.moment)
            for table, of_table in capture.tables
        }
        for name, restored in capture.restored.items():
            kind, namespaced, whole, groups, serializer = restored.snapshot()
            forms[name] = TableForm(kind, namespaced, whole, serializer)
            sections[Section(SectionKind.TABLE, name)] = groups
        for name, queue in capture.queues.items():
            sections[Section(SectionKind.TIMERS, name)] = _timers(queue, capture.assign)
        written = {name: columns.write(capture.assign) for name, columns in capture.columns.items()}
        written |= {name: it.snapshot() for name, it in capture.restored_columns.items()}
        for name, table in written.items():
            kind, namespaced, whole, removed, groups, pickled = table
            columnar[name] = ColumnarForm(kind, namespaced, whole, removed, pickled)
            sections[Section(SectionKind.COLUMNS, name)] = groups
        of_tables = chain.from_iterable(writer.groups() for writer in writers.values())
        for group in sorted({*chain(*sections.values()), *of_tables}):
            for name, writer in writers.items():
                frames = b"".join(writer.frames(group))
                if frames:
                    yield SnapshotBody(group, Section(SectionKind.TABLE, name), frames)
            for section, of_section in sections.items():
                if group in of_section:
                    yield SnapshotBody(group, section, of_section[group])
        self._contents = SnapshotContents(
            {**{name: writer.form() for name, writer in writers.items()}, **forms},
            tuple(capture.queues),
            columnar,
        )

    def contents(self) -> SnapshotContents:
        return self._contents


class _Chunk(NamedTuple):
    """A portion of a table's entries, sorted by key group."""

    entries: TupleColumn
    """Keys, namespaces if there are any, and contents unless the entries were removed."""
    groups: dict[int, tuple[int, int]]
    """(begin, end) of the entries of each key group."""


class _TableWriter:
    """Writes one table: sorts all entries first, and then serialises them by key group."""

    def __init__(
        self, table: HeapTable, capture: TableCapture, assign: KeyGroupAssigner, moment: int
    ) -> None:
        self._table = table
        self._assign = assign
        self._is_whole = capture.places is None
        self._writer: StateFrameWriter = table.serializer.writer()
        self._chunks: list[_Chunk] = []
        self._limit: int | None = None
        """Values last renewed at this time or before are left out. None: nothing expires."""
        config = table.descriptor.ttl_config
        if config is not None and config.cleanup_strategies.in_full_snapshot():
            self._limit = moment - config.ttl
        self._read(capture)
        if not any(chunk.entries.has_objects for chunk in self._chunks):
            capture.done = True  # nothing is left that the task could change

    def groups(self) -> Iterator[int]:
        """Yield the key groups that have entries; a key group may occur several times."""
        return chain.from_iterable(chunk.groups for chunk in self._chunks)

    def frames(self, group: int) -> Iterator[bytes]:
        namespaced = self._table.namespaced
        nothing: Places = ((), () if namespaced else None)
        for chunk in self._chunks:
            if group in chunk.groups:
                keys, *others = chunk.entries.slice(*chunk.groups[group]).parts
                places: Places = (keys, others.pop(0) if namespaced else None)
                if others:
                    yield self._writer.write(places, others[0], nothing)
                else:
                    yield self._writer.write(nothing, (), places)

    def form(self) -> TableForm:
        """Return the description of the table; call this method after all frames are written."""
        kind, namespaced = self._table.descriptor.kind, self._table.namespaced
        return TableForm(kind, namespaced, self._is_whole, self._writer.snapshot())

    def _read(self, capture: TableCapture) -> None:
        removed: list[Any] = []
        run: list[TupleColumn] = []
        for places, contents in capture.portions(removed):
            if self._limit is not None:
                living = without_expired(self._table, places, contents, self._limit)
                if not self._is_whole:  # remove what earlier snapshots have
                    removed += set(places).difference(living[0])
                places, contents = living
            if not places:
                continue
            entries = self._entries(places, contents)
            if run and (entries.shape != run[0].shape or sum(map(len, run)) >= MOST_IN_CHUNK):
                self._add(run)
                run = []
            run.append(entries)
        self._add(run)
        if removed:
            self._add([self._entries(removed)])

    def _entries(self, places: list[Any], *contents: list[Any]) -> TupleColumn:
        columns = zip(*places, strict=True) if self._table.namespaced else [places]
        return TupleColumn(len(places), list(map(column_of, [*columns, *contents])))

    def _add(self, run: list[TupleColumn]) -> None:
        if not run:
            return
        entries = concatenated(run)
        run.clear()
        assert isinstance(entries, TupleColumn)
        groups = self._assign.of_column(entries.parts[0]).astype(np.uint16)
        order = np.argsort(groups, kind="stable")
        in_order = groups[order]
        begins = np.flatnonzero(np.diff(in_order, prepend=-1)).tolist()
        ends = [*begins[1:], len(order)]
        ranges = zip(in_order[begins].tolist(), zip(begins, ends, strict=True), strict=True)
        ordered = divisible(entries.take(order))
        assert isinstance(ordered, TupleColumn)
        self._chunks.append(_Chunk(ordered, dict(ranges)))


def _timers(capture: TableCapture, assign: KeyGroupAssigner) -> dict[int, bytes]:
    times, buckets, _ = capture.read()
    timers = [
        (time, *timer) for time, bucket in zip(times, buckets, strict=True) for timer in bucket
    ]
    of_group: dict[int, list[Any]] = {}
    groups = assign.of_all([key for _, key, _ in timers]).tolist()
    for group, timer in zip(groups, timers, strict=True):
        of_group.setdefault(group, []).append(timer)
    return {group: write_timers(found) for group, found in of_group.items()}
