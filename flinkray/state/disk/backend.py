"""A backend that keeps keyed state on a local disk, for state that is larger than memory.

Values, lists, maps and timers are on the disk, with a cache; columnar tables are in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state.backend import KeyedStateBackend, Schedule
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.disk.capture import CapturedQueue, CapturedTable, DiskCapture
from flinkray.state.disk.changes import DiskStore
from flinkray.state.disk.restored_frames import Spool, SpooledFrames, SpooledTable
from flinkray.state.disk.rocksdb import (
    Engine,
    EngineMemory,
    StateStorageError,
    load_module,
    new_state_folder,
)
from flinkray.state.disk.tables import DiskListTable, DiskMapTable, DiskTable, DiskValueTable
from flinkray.state.disk.timers import MOST_IN_MEMORY, DiskTimerQueue
from flinkray.state.key_group_assignment import KeyGroupAssigner, KeyHash, stable_hash
from flinkray.state.key_values import as_places
from flinkray.state.snapshots import (
    ColumnarSnapshot,
    Section,
    SectionKind,
    SnapshotStream,
    StateCapture,
    drop_groups,
)
from flinkray.state.state_serializer import (
    Frame,
    StateSerializer,
    check_key_groups,
    check_keys,
)
from flinkray.state.table import TimerQueue

if TYPE_CHECKING:
    import rocksdict

_SHAPES: dict[str, type[DiskTable[Any]]] = {
    "value": DiskValueTable,
    "reducing": DiskValueTable,
    "aggregating": DiskValueTable,
    "list": DiskListTable,
    "map": DiskMapTable,
}
"""Table classes, by the descriptor's kind."""

_LARGEST_BATCH = 1 << 20
"""Number of bytes that a restore writes at once."""


class DiskKeyedStateBackend(KeyedStateBackend[DiskTable[Any], SpooledTable]):
    """Keeps keyed state on a local disk; see the module's docstring. All methods, and those of the
    tables, raise StateStorageError if the disk fails. Raises StateError: RocksDB is not installed.
    """

    def __init__(
        self,
        max_parallelism: int = 128,
        key_groups: KeyGroupRange | None = None,
        now: Callable[[], int] | None = None,
        schedule: Schedule | None = None,
        hash_of: KeyHash = stable_hash,
        settings: DiskSettings | None = None,
    ) -> None:
        super().__init__(max_parallelism, key_groups, now, schedule, hash_of)
        self._settings = settings or DiskSettings()
        self._store = DiskStore(self._open_engine, self._settings.cache_bytes)
        self._assign = KeyGroupAssigner(max_parallelism, hash_of)
        self._queues: dict[str, DiskTimerQueue] = {}
        self._next_number = 0
        self._spool: Spool | None = None
        self._known: dict[int, int] = {}
        """By id of a capture to which later captures can refer: first epoch of the changes after
        it."""

    def _open_engine(self) -> Engine:
        load_module()
        directories = self._settings.directories
        # Subtasks use the directories in turn: the turn follows from the key groups.
        turn = self.key_groups.first // (self.key_groups.last - self.key_groups.first + 1)
        directory = directories[turn % len(directories)] if directories else None
        try:
            folder = new_state_folder(directory)
        except OSError as error:
            raise StateStorageError(
                f"there is no place for state in {directory or 'the temporary directory'}: "
                f"{error}; name another directory by state.backend.rocksdb.localdir"
            ) from error
        settings = self._settings
        return Engine(folder, EngineMemory(settings.memory_bytes, settings.write_buffer_ratio))

    # --- states -------------------------------------------------------------------------------

    def _make_table(
        self, descriptor: StateDescriptor, namespaced: bool, restored: SpooledTable | None
    ) -> DiskTable[Any]:
        table = _SHAPES[descriptor.kind](
            descriptor, namespaced, self._number(), self._store, self._assign
        )
        if restored is not None:
            self._take_over(table, restored)
        self._store.add(table)
        return table

    def _number(self, count: int = 1) -> int:
        number = self._next_number
        self._next_number += count
        return number

    def timer_queue(self, name: str) -> TimerQueue:
        queue = self._queues.get(name)
        if queue is None:
            number = self._number(2)
            queue = DiskTimerQueue(
                number, self._store, self._assign, self._settings.timers_in_memory
            )
            self._queues[name] = queue
        return queue

    def close(self) -> None:
        self._store.close()

    # --- captures -----------------------------------------------------------------------------

    def capture(self, checkpoint_id: int | None = None, since: int | None = None) -> StateCapture:
        store = self._store
        store.flush()
        if store.has_too_many_notes:
            self._known.clear()
        begin = None if since is None else self._known.get(since)
        if begin is not None:
            self._known = {known: at for known, at in self._known.items() if at >= begin}
        is_whole = begin is None
        epochs: range | None = None
        if begin is not None:
            assert store.epoch is not None
            epochs = range(begin, store.epoch + 1)
        capture = DiskCapture(
            self.key_groups,
            KeyGroupAssigner(self.max_parallelism, self.hash_of),
            self.now(),
            store.engine.snapshot() if store.is_open else None,
            epochs,
            [CapturedTable(table, self._codec_assign()) for table in self._tables.values()],
            [
                CapturedQueue(name, queue, queue.capture(), self._codec_assign())
                for name, queue in self._queues.items()
            ],
            self._columnar.capture(checkpoint_id, None if is_whole else since),
            self._spool,
            dict(self._restored) if is_whole else {},
            dict(self._columnar.restored) if is_whole else {},
        )
        store.next_epoch(min(self._known.values(), default=None))
        if checkpoint_id is not None:
            assert store.epoch is not None
            self._known[checkpoint_id] = store.epoch
        return capture

    def _codec_assign(self) -> KeyGroupAssigner:
        return KeyGroupAssigner(self.max_parallelism, self.hash_of, 1)

    # --- restore ------------------------------------------------------------------------------

    def restore(
        self, snapshots: Iterable[SnapshotStream], checkpoint_id: int | None = None
    ) -> None:
        self._check_unused()
        timers: dict[str, SpooledTable] = {}
        for snapshot in snapshots:
            self._spool_snapshot(snapshot, timers)
        if checkpoint_id is not None:
            self._store.next_epoch(None)
            assert self._store.epoch is not None
            self._known = {checkpoint_id: self._store.epoch}
        for name, restored in timers.items():
            assert self._spool is not None
            groups, spool = sorted(restored.groups), self._spool
            self._restore_timers(
                name, ((group, it) for group in groups for it in restored.frames(spool, group))
            )

    def _spool_snapshot(self, snapshot: SnapshotStream, timers: dict[str, SpooledTable]) -> None:
        if self._spool is None:
            self._spool = Spool(self._store.engine.path)
        spool = self._spool
        tables: dict[Section, dict[int, list[SpooledFrames]]] = defaultdict(dict)
        columns: dict[str, dict[int, list[bytes]]] = {}
        for group, section, payload in snapshot.bodies():
            if group not in self.key_groups:
                continue
            if section.kind is SectionKind.COLUMNS:
                groups = columns.setdefault(section.name, {})
                groups.setdefault(group, []).append(bytes(payload))
            else:
                tables[section].setdefault(group, []).append(spool.add(payload))
        contents = snapshot.contents()
        for name, form in contents.tables.items():
            check_keys(name, form.serializer)
            known = self._restored.setdefault(name, SpooledTable(form.kind, form.namespaced))
            known.add(form, snapshot.key_groups, tables[Section(SectionKind.TABLE, name)])
        for name in contents.timers:
            queue = timers.setdefault(name, SpooledTable("timers", True))
            drop_groups(queue.groups, snapshot.key_groups)
            queue.groups.update(tables[Section(SectionKind.TIMERS, name)])
        self._columnar.restore(
            {
                name: ColumnarSnapshot(
                    form.kind,
                    form.namespaced,
                    form.whole,
                    form.removed,
                    {group: b"".join(parts) for group, parts in columns.get(name, {}).items()},
                    form.pickled,
                )
                for name, form in contents.columns.items()
            },
            snapshot.key_groups,
            self.key_groups,
        )

    def _take_over(self, table: DiskTable[Any], restored: SpooledTable) -> None:
        """Write the restored contents of a table to the disk, because the program requests the
        table. Raises StateMigrationError if the contents cannot be read as this table."""
        serializer: StateSerializer = table.serializer
        for snapshot in restored.serializers:
            serializer.check(snapshot)
        assert self._spool is not None
        name = table.descriptor.name
        batch = self._store.engine.batch()
        for group in sorted(restored.groups):
            is_first = True
            for payload in restored.frames(self._spool, group):
                for frame in serializer.read(payload):
                    check_key_groups(f"state {name!r}", frame.keys, group, self._assign)
                    if not is_first:
                        batch = self._written(batch)
                        self._remove_rows(table, frame)
                    for places, contents in _portions(frame):
                        encoded = table.codec.encode_all(places)
                        for place, row_key, held in zip(places, encoded, contents, strict=True):
                            table.put_restored(batch, place, row_key, held)
                        if batch.size_in_bytes() > _LARGEST_BATCH:
                            batch = self._written(batch)
                    is_first = False
        self._written(batch)

    def _written(self, batch: rocksdict.WriteBatch) -> rocksdict.WriteBatch:
        if len(batch):
            self._store.engine.write(batch)
        return self._store.engine.batch()

    def _remove_rows(self, table: DiskTable[Any], frame: Frame) -> None:
        """Delete the rows of all places (key, or key and window) that occur in a restored *frame*.
        The frame replaces their contents, or says that they are empty."""
        places = [
            *as_places(frame.removed_keys, frame.removed_namespaces),
            *as_places(frame.keys, frame.namespaces),
        ]
        engine = self._store.engine
        batch, reader = engine.batch(), engine.reader()
        for encoded in table.codec.encode_all(list(dict.fromkeys(places))):
            for row_key, _ in reader.scan_place(encoded):
                batch.delete(row_key)
        self._written(batch)


def _portions(frame: Frame, size: int = 1000) -> Iterator[tuple[list[Any], list[Any]]]:
    places = list(as_places(frame.keys, frame.namespaces))
    for begin in range(0, len(places), size):
        yield places[begin : begin + size], frame.contents[begin : begin + size]


@dataclass(frozen=True)
class DiskSettings:
    """Settings of all disk backends of a process."""

    directories: tuple[str, ...] = ()
    """Directories for folders of state, in turn; empty: the machine's temporary directory."""
    memory_bytes: int = 128 << 20
    """Memory of RocksDB in the process, in bytes: read blocks and tables being filled."""
    write_buffer_ratio: float = 0.5
    """Largest share of ``memory_bytes`` for tables that are being filled."""
    cache_bytes: int = 64 << 20
    """Memory for decoded values in each subtask of an operator, in bytes; approximate."""
    timers_in_memory: int = MOST_IN_MEMORY
    """Largest number of timers in memory, for each queue."""
