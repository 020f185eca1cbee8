"""Keyed state on the heap: each table is a dictionary, which is captured while it changes.

Key groups cost nothing while records are processed: entries are sorted into key groups when a
snapshot is written.

A writer and its task compete for the interpreter's lock. So entries become columns one portion at a
time, with one call of Arrow for each column (:mod:`flinkray.state.value_columns`). Sorting by key
group is done by Arrow and NumPy without the lock.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state.backend import KeyedStateBackend, Schedule
from flinkray.state.columnar_snapshots import ColumnarCapture, RestoredColumns
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.expiry import without_expired
from flinkray.state.heap_tables import (
    HeapListTable,
    HeapMapTable,
    HeapReducingState,
    HeapTable,
    HeapTimerQueue,
    HeapValueState,
    HeapValueTable,
    TableCapture,
    Values,
)
from flinkray.state.interfaces import ReducingState, ValueState
from flinkray.state.key_group_assignment import KeyGroupAssigner, KeyHash, stable_hash
from flinkray.state.key_values import as_places
from flinkray.state.snapshots import (
    ColumnarForm,
    ColumnarSnapshot,
    Payload,
    RestoredTable,
    Section,
    SectionKind,
    SnapshotBody,
    SnapshotContents,
    SnapshotStream,
    StateCapture,
    TableForm,
    TableSnapshot,
    drop_groups,
)
from flinkray.state.state_serializer import (
    Places,
    StateFrameWriter,
    StateSerializer,
    check_key_groups,
    check_keys,
    merged,
    write_timers,
)
from flinkray.state.table import KeyContext, TimerQueue, ValueTable
from flinkray.state.thread_turns import short_turns
from flinkray.state.value_columns import TupleColumn, column_of, concatenated, divisible

_SHAPES: dict[str, type[HeapTable]] = {
    "value": HeapValueTable,
    "reducing": HeapValueTable,
    "aggregating": HeapValueTable,
    "list": HeapListTable,
    "map": HeapMapTable,
}
"""Table classes, by the descriptor's kind."""

_MOST_KNOWN = 1000
"""Largest number of captures to which later captures can refer."""


_Groups = dict[int, list[Payload]]
"""Frames by key group, oldest first."""


class _Restored(RestoredTable[Payload]):
    def read(
        self, name: str, serializer: StateSerializer, assign: KeyGroupAssigner
    ) -> dict[Any, Any]:
        """Decode the restored table and return its contents by place (key, or key and window).
        Raises StateMigrationError if the contents cannot be read with *serializer*."""
        for snapshot in self.serializers:
            serializer.check(snapshot)
        entries: dict[Any, Any] = {}
        payloads = ((group, it) for group, of_group in self.groups.items() for it in of_group)
        for group, payload in payloads:
            for frame in serializer.read(payload):
                check_key_groups(f"state {name!r}", frame.keys, group, assign)
                for place in as_places(frame.removed_keys, frame.removed_namespaces):
                    entries.pop(place, None)
                places = as_places(frame.keys, frame.namespaces)
                # ``|=`` with a dictionary reserves space at once, which saves a quarter of the
                # time.
                entries |= dict(zip(places, frame.contents, strict=True))
        return entries

    def snapshot(self) -> TableSnapshot:
        groups, serializer = _joined(self.groups), merged(self.serializers)
        return TableSnapshot(self.kind, self.namespaced, True, groups, serializer)


class HeapKeyedStateBackend(KeyedStateBackend[HeapTable, _Restored]):
    """A backend that keeps keyed state in dictionaries; see the module's docstring."""

    def __init__(
        self,
        max_parallelism: int = 128,
        key_groups: KeyGroupRange | None = None,
        now: Callable[[], int] | None = None,
        schedule: Schedule | None = None,
        hash_of: KeyHash = stable_hash,
    ) -> None:
        super().__init__(max_parallelism, key_groups, now, schedule, hash_of)
        self._queues: dict[str, HeapTimerQueue] = {}
        self._known: deque[int] | None = None
        """Ids of the captures since the oldest to which a later capture can refer.
        None: changes are not noted yet."""

    def _make_table(
        self, descriptor: StateDescriptor, namespaced: bool, restored: _Restored | None
    ) -> HeapTable:
        entries: dict[Any, Any] = {}
        if restored is not None:
            serializer = StateSerializer(descriptor)
            entries = restored.read(descriptor.name, serializer, self._assigner())
        table = _SHAPES[descriptor.kind](descriptor, namespaced, entries)
        if self._known is not None:  # these captures contain the restored data
            table.begin(self._known)
        return table

    def value_state(self, table: ValueTable, context: KeyContext, default: Any) -> ValueState[Any]:
        assert isinstance(table, HeapValueTable)
        return HeapValueState(table, context, default)

    def reducing_state(
        self, table: ValueTable, context: KeyContext, reduce: Callable[[Any, Any], Any]
    ) -> ReducingState[Any]:
        assert isinstance(table, HeapValueTable)
        return HeapReducingState(table, context, reduce)

    def timer_queue(self, name: str) -> TimerQueue:
        return self._queues.setdefault(name, HeapTimerQueue())

    def capture(self, checkpoint_id: int | None = None, since: int | None = None) -> StateCapture:
        if self._known is None:
            self._known = deque(maxlen=_MOST_KNOWN)
        is_whole = since is None or since not in self._known
        if is_whole:
            since = None
        while since is not None and self._known[0] != since:
            self._known.popleft()
        if checkpoint_id is not None:
            self._known.append(checkpoint_id)
        tables: list[Captured] = [
            (table, table.capture(checkpoint_id, since)) for table in self._tables.values()
        ]
        queues = {name: queue.capture() for name, queue in self._queues.items()}
        columns = self._columnar.capture(checkpoint_id, since)
        if not (columns or self._restored or self._columnar.restored):
            # If every table is captured as a whole, the capture needs no earlier snapshot.
            is_whole = is_whole or all(of_table.places is None for _, of_table in tables)
        return HeapCapture(
            is_whole,
            self.key_groups,
            self._assigner(),
            self.now(),
            tables,
            queues,
            columns,
            dict(self._restored) if is_whole else {},
            dict(self._columnar.restored) if is_whole else {},
        )

    def restore(
        self, snapshots: Iterable[SnapshotStream], checkpoint_id: int | None = None
    ) -> None:
        self._check_unused()
        timers: dict[str, _Groups] = {}
        for snapshot in snapshots:
            bodies = self._own_bodies(snapshot)
            contents, theirs = snapshot.contents(), snapshot.key_groups
            for name, form in contents.tables.items():
                check_keys(name, form.serializer)
                known = self._restored.setdefault(name, _Restored(form.kind, form.namespaced))
                known.add(form, theirs, bodies[Section(SectionKind.TABLE, name)])
            for name in contents.timers:
                of_queue = timers.setdefault(name, {})
                drop_groups(of_queue, theirs)
                of_queue.update(bodies[Section(SectionKind.TIMERS, name)])
            columns = {
                name: ColumnarSnapshot(
                    *form[:-1], _joined(bodies[Section(SectionKind.COLUMNS, name)]), form.pickled
                )
                for name, form in contents.columns.items()
            }
            self._columnar.restore(columns, theirs, self.key_groups)
        if checkpoint_id is not None:
            self._known = deque([checkpoint_id], maxlen=_MOST_KNOWN)
        for name, groups in timers.items():
            self._restore_timers(name, ((group, it) for group in groups for it in groups[group]))

    def _own_bodies(self, snapshot: SnapshotStream) -> dict[Section, _Groups]:
        """Return the parts of a snapshot that belong to this subtask's key groups: a list of
        payloads for each section and key group. The payloads are not joined, since a joined copy
        may not fit into memory."""
        bodies: dict[Section, _Groups] = defaultdict(dict)
        for group, section, payload in snapshot.bodies():
            if group in self.key_groups:
                bodies[section].setdefault(group, []).append(payload)
        return bodies


def _joined(groups: _Groups) -> dict[int, bytes]:
    return {group: b"".join(payloads) for group, payloads in groups.items()}


MOST_IN_CHUNK = 1 << 19
"""Number of entries that are sorted at once."""

Captured = tuple[HeapTable, TableCapture]


class PassedOnTable(Protocol):
    """A restored table, not requested by the program, which snapshots contain as it was stored."""

    def snapshot(self) -> TableSnapshot: ...


class HeapCapture(StateCapture):
    """A :class:`StateCapture` of a :class:`HeapKeyedStateBackend`. *moment*: processing time of the
    capture, in milliseconds; *restored*, *restored_columns*: restored tables that the program has
    not requested yet. The snapshot contains them in their stored form."""

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
    """Some entries of a table, sorted by key group and not serialised yet."""

    entries: TupleColumn
    """Keys, namespaces if there are any, and contents unless the entries were removed."""
    groups: dict[int, tuple[int, int]]
    """(begin, end) of the entries of each key group."""


class _TableWriter:
    """Writes one captured table to a snapshot: sorts all entries by key group, and then serialises
    them one key group after another."""

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
        """Return the description with which readers decode the table; called after the last
        frame."""
        kind, namespaced = self._table.descriptor.kind, self._table.namespaced
        return TableForm(kind, namespaced, self._is_whole, self._writer.snapshot())

    def _read(self, capture: TableCapture) -> None:
        removed: list[Any] = []
        run: list[TupleColumn] = []
        for places, contents in self._portions(capture, removed):
            entries = self._entries(places, contents)
            if run and (entries.shape != run[0].shape or sum(map(len, run)) >= MOST_IN_CHUNK):
                self._add(run)
                run = []
            run.append(entries)
        self._add(run)
        if removed:
            self._add([self._entries(removed)])

    def _portions(
        self, capture: TableCapture, removed: list[Any]
    ) -> Iterator[tuple[Values, Values]]:
        if self._limit is None:
            yield from capture.columns(removed)
            return
        for portion in capture.portions(removed):
            places, contents = without_expired(self._table, *portion, self._limit)
            if not self._is_whole:  # remove what earlier snapshots have
                removed += set(portion[0]).difference(places)
            if places:
                yield places, contents

    def _entries(self, places: Values, *contents: Values) -> TupleColumn:
        columns: Iterable[Any] = [places]
        if isinstance(places, TupleColumn) and self._table.namespaced:
            columns = places.parts
        elif self._table.namespaced:
            assert isinstance(places, list)
            columns = zip(*places, strict=True)
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
