"""Keyed state on the heap: each table is a dictionary.

Key groups cost nothing while records are processed: entries are sorted into key groups when a
snapshot is written.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.backend import ARRAYS, KeyedStateBackend, Schedule, check_use
from flinkray.state.columnar_table import ColumnarTable
from flinkray.state.columnar_tables import ColumnarTables
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.heap_snapshots import Captured, HeapCapture
from flinkray.state.heap_tables import (
    HeapListTable,
    HeapMapTable,
    HeapTable,
    HeapTimerQueue,
    HeapValueState,
    HeapValueTable,
)
from flinkray.state.interfaces import ValueState
from flinkray.state.key_context import KeyContext
from flinkray.state.key_values import as_key, as_places
from flinkray.state.keys import KeyGroupAssigner, KeyHash, stable_hash
from flinkray.state.row_table import KeysOf, RowTable
from flinkray.state.serializers import (
    StateSerializer,
    check_key_groups,
    check_keys,
    merged,
    read_timers,
)
from flinkray.state.snapshots import (
    ColumnarSnapshot,
    Payload,
    Section,
    SectionKind,
    SnapshotStream,
    StateCapture,
    TableForm,
    TableSnapshot,
)
from flinkray.state.stored_forms import SerializerSnapshot
from flinkray.state.table import ValueTable
from flinkray.state.timer_queue import TimerQueue

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


@dataclass
class _Restored:
    """A restored table that is not in use yet."""

    kind: str
    namespaced: bool
    serializers: list[SerializerSnapshot] = field(default_factory=list)
    groups: _Groups = field(default_factory=dict)

    def read(
        self, name: str, serializer: StateSerializer, assign: KeyGroupAssigner
    ) -> dict[Any, Any]:
        """Decode the restored table and return its contents, by place.
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
        """Return the table as a snapshot, in its stored form."""
        groups, serializer = _joined(self.groups), merged(self.serializers)
        return TableSnapshot(self.kind, self.namespaced, True, groups, serializer)


class HeapKeyedStateBackend(KeyedStateBackend):
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
        self._tables: dict[str, HeapTable] = {}
        self._queues: dict[str, HeapTimerQueue] = {}
        self._restored: dict[str, _Restored] = {}
        self._columnar = ColumnarTables()
        self._known: deque[int] | None = None
        """Ids of the captures since the oldest to which a later capture can refer.
        None: changes are not noted yet."""

    def table(self, descriptor: StateDescriptor, namespaced: bool = False) -> HeapTable:
        table = self._tables.get(descriptor.name)
        if table is not None:
            check_use(descriptor, namespaced, table.descriptor.kind, table.namespaced)
            return table
        if descriptor.kind not in _SHAPES:
            raise StateError(f"there is no keyed state for {descriptor!r}")
        entries: dict[Any, Any] = {}
        restored = self._restored.get(descriptor.name)
        if restored is not None:
            check_use(descriptor, namespaced, restored.kind, restored.namespaced)
            assign = KeyGroupAssigner(self.max_parallelism, self.hash_of)
            entries = restored.read(descriptor.name, StateSerializer(descriptor), assign)
            del self._restored[descriptor.name]
        table = _SHAPES[descriptor.kind](descriptor, namespaced, entries)
        if self._known is not None:  # these captures contain the restored data
            table.begin(self._known)
        self._tables[descriptor.name] = table
        return table

    def value_state(self, table: ValueTable, context: KeyContext, default: Any) -> ValueState[Any]:
        assert isinstance(table, HeapValueTable)
        return HeapValueState(table, context, default)

    def timer_queue(self, name: str) -> TimerQueue:
        return self._queues.setdefault(name, HeapTimerQueue())

    def columns(self, name: str = ARRAYS, namespaced: bool = False) -> ColumnarTable:
        assign = KeyGroupAssigner(self.max_parallelism, self.hash_of)
        return self._columnar.columns(name, namespaced, assign, self._known or ())

    def rows(self, name: str, namespaced: bool = False, keys_of: KeysOf | None = None) -> RowTable:
        assign = KeyGroupAssigner(self.max_parallelism, self.hash_of)
        return self._columnar.rows(name, namespaced, keys_of, assign, self._known or ())

    def names(self) -> list[str]:
        return [*self._tables, *self._restored]

    def tables(self) -> Iterable[HeapTable]:
        return self._tables.values()

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
            KeyGroupAssigner(self.max_parallelism, self.hash_of),
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
        if self._tables or self._columnar:
            raise StateError("a backend is restored before its states are used, not afterwards")
        timers: dict[str, _Groups] = {}
        for snapshot in snapshots:
            bodies = self._own_bodies(snapshot)
            contents, theirs = snapshot.contents(), snapshot.key_groups
            for name, form in contents.tables.items():
                self._restore_table(name, form, theirs, bodies[Section(SectionKind.TABLE, name)])
            for name in contents.timers:
                known = timers.setdefault(name, {})
                _drop(known, theirs)
                known.update(bodies[Section(SectionKind.TIMERS, name)])
            columns = {
                name: ColumnarSnapshot(
                    *form[:-1], _joined(bodies[Section(SectionKind.COLUMNS, name)]), form.pickled
                )
                for name, form in contents.columns.items()
            }
            self._columnar.restore(columns, theirs, self.key_groups)
        if checkpoint_id is not None:
            self._known = deque([checkpoint_id], maxlen=_MOST_KNOWN)
        assign = KeyGroupAssigner(self.max_parallelism, self.hash_of)
        for name, of_queue in timers.items():
            queue = self.timer_queue(name)
            for group, payloads in of_queue.items():
                for payload in payloads:
                    restored = read_timers(name, payload)
                    keys = [key for _, key, _ in restored]
                    check_key_groups(f"a timer of {name!r}", keys, group, assign)
                    for timestamp, key, namespace in restored:
                        queue.add(timestamp, as_key(key), namespace)

    def _own_bodies(self, snapshot: SnapshotStream) -> dict[Section, _Groups]:
        """Return the payloads of a snapshot that are in this subtask's key groups.
        They are in lists by section and key group.
        The payloads are not joined, since a joined copy may not fit into memory."""
        bodies: dict[Section, _Groups] = defaultdict(dict)
        for group, section, payload in snapshot.bodies():
            if group in self.key_groups:
                bodies[section].setdefault(group, []).append(payload)
        return bodies

    def _restore_table(
        self, name: str, form: TableForm, theirs: KeyGroupRange, groups: _Groups
    ) -> None:
        known = self._restored.setdefault(name, _Restored(form.kind, form.namespaced))
        check_keys(name, form.serializer)
        known.serializers.append(form.serializer)
        if form.whole:
            _drop(known.groups, theirs)
        for group, payloads in groups.items():
            known.groups.setdefault(group, []).extend(payloads)


def _joined(groups: _Groups) -> dict[int, bytes]:
    return {group: b"".join(payloads) for group, payloads in groups.items()}


def _drop(groups: dict[int, Any], key_groups: KeyGroupRange) -> None:
    for group in [group for group in groups if group in key_groups]:
        del groups[group]
