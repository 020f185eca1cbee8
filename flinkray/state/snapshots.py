"""Captures of keyed state, the snapshots that are made of them, and messages that describe how a
snapshot was written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.core.message import message
from flinkray.core.schema import stored

Payload = bytes | memoryview

PartT = TypeVar("PartT")


class SectionKind(Enum):
    """The kinds of named parts that keyed state consists of: table, timer queue, columnar table."""

    TABLE = "table"
    TIMERS = "timers"
    COLUMNS = "columns"


class Section(NamedTuple):
    """The kind and name of a table, timer queue or columnar table in the state of a subtask."""

    kind: SectionKind
    name: str


class SnapshotBody(NamedTuple):
    """The data of one section (a table, timer queue or columnar table) for one key group, or a part
    of this data. Parts come in order."""

    key_group: int
    section: Section
    payload: Payload
    """Frames: see :mod:`flinkray.state.state_serializer` and :mod:`.columnar_snapshots`."""


class TableForm(NamedTuple):
    """Says what a table in a snapshot is and how it was written, without its contents."""

    kind: str
    namespaced: bool
    whole: bool
    """Whether the snapshot has all contents, or only the changes since the previous snapshot."""
    serializer: SerializerSnapshot
    """How the frames were written."""


class ColumnarForm(NamedTuple):
    """Says what a columnar table in a snapshot is and how it was written, without its contents."""

    kind: str
    namespaced: bool
    whole: bool
    """Whether the snapshot has all contents, or only the changes since the previous snapshot."""
    removed: int | None
    """Contents up to this namespace are removed before this snapshot is applied.
    Without namespaces, all earlier contents are removed. None: nothing is removed."""
    pickled: tuple[str, ...] = ()
    """Types in the keys that were pickled."""


class SnapshotContents(NamedTuple):
    """Describes a snapshot's contents: its tables, timer queues and columnar tables, by name."""

    tables: Mapping[str, TableForm]
    timers: tuple[str, ...]
    """Names of timer queues; a snapshot always has all timers of a queue."""
    columns: Mapping[str, ColumnarForm]

    @property
    def sections(self) -> Iterator[Section]:
        """Yield the kind and name of each section: tables first, then timer queues, then columnar
        tables."""
        yield from (Section(SectionKind.TABLE, name) for name in self.tables)
        yield from (Section(SectionKind.TIMERS, name) for name in self.timers)
        yield from (Section(SectionKind.COLUMNS, name) for name in self.columns)


class SnapshotStream(ABC):
    """A snapshot of the keyed state of one subtask, which is read one key group after another.
    The whole state need not fit into memory."""

    key_groups: KeyGroupRange
    """The key groups of the subtask."""

    @abstractmethod
    def bodies(self) -> Iterator[SnapshotBody]:
        """Yield the bodies (parts of sections), lowest key group first; may be called once. A
        caller that stops early closes the iterator. Raises FlinkRayError if the state cannot be
        read or serialised."""

    @abstractmethod
    def contents(self) -> SnapshotContents:
        """Return the description of the contents; call this after the last body."""


class TableSnapshot(NamedTuple):
    """The contents of a table in a snapshot; if *whole* is False, only what has changed since the
    previous snapshot."""

    kind: str
    namespaced: bool
    whole: bool
    """Whether the snapshot has all contents, or only the changes since the previous snapshot."""
    groups: Mapping[int, bytes]
    """Frames by key group (:mod:`flinkray.state.state_serializer`)."""
    serializer: SerializerSnapshot
    """How the frames were written."""


@dataclass
class RestoredTable(Generic[PartT]):
    """A restored table that the program has not requested yet."""

    kind: str
    namespaced: bool
    serializers: list[SerializerSnapshot] = field(default_factory=list)
    groups: dict[int, list[PartT]] = field(default_factory=dict)
    """Parts of the table by key group, oldest first."""

    def add(
        self, form: TableForm, theirs: KeyGroupRange, groups: Mapping[int, Iterable[PartT]]
    ) -> None:
        """Add the data of a snapshot with the key groups *theirs*, given as parts by key group. A
        whole snapshot replaces what was added before for *theirs*; changes are appended."""
        self.serializers.append(form.serializer)
        if form.whole:
            drop_groups(self.groups, theirs)
        for group, parts in groups.items():
            self.groups.setdefault(group, []).extend(parts)


def drop_groups(groups: dict[int, Any], key_groups: KeyGroupRange) -> None:
    """Remove the entries of *groups* whose key group is in *key_groups*."""
    for group in [group for group in groups if group in key_groups]:
        del groups[group]


class ColumnarSnapshot(NamedTuple):
    """The contents of a columnar table in a snapshot, or (*whole* False) only what has changed
    since the previous snapshot. Fields are those of :class:`ColumnarForm`, and the contents."""

    kind: str
    namespaced: bool
    whole: bool
    removed: int | None
    groups: Mapping[int, bytes]
    """Frames by key group (:mod:`flinkray.state.columnar_snapshots`)."""
    pickled: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeyedSnapshot(SnapshotStream):
    """A snapshot of the keyed state of one subtask, in memory."""

    key_groups: KeyGroupRange
    """The key groups of the subtask."""
    tables: Mapping[str, TableSnapshot]
    timers: Mapping[str, Mapping[int, bytes]] = field(default_factory=dict)
    """Timers by queue and key group; always all timers."""
    columns: Mapping[str, ColumnarSnapshot] = field(default_factory=dict)
    """Columnar tables by name."""

    def bodies(self) -> Iterator[SnapshotBody]:
        groups = [
            *(table.groups for table in self.tables.values()),
            *self.timers.values(),
            *(table.groups for table in self.columns.values()),
        ]
        sections = list(zip(self.contents().sections, groups, strict=True))
        for group in sorted({group for of_section in groups for group in of_section}):
            for section, of_section in sections:
                payload = of_section.get(group)
                if payload is not None:
                    yield SnapshotBody(group, section, payload)

    def contents(self) -> SnapshotContents:
        return SnapshotContents(
            {
                name: TableForm(table.kind, table.namespaced, table.whole, table.serializer)
                for name, table in self.tables.items()
            },
            tuple(self.timers),
            {
                name: ColumnarForm(
                    table.kind, table.namespaced, table.whole, table.removed, table.pickled
                )
                for name, table in self.columns.items()
            },
        )


def collected(stream: SnapshotStream) -> KeyedSnapshot:
    """Read a whole snapshot into memory and return it. Raises the errors of the stream."""
    if isinstance(stream, KeyedSnapshot):
        return stream
    found: dict[Section, dict[int, list[Payload]]] = {}
    for group, section, payload in stream.bodies():
        found.setdefault(section, {}).setdefault(group, []).append(payload)

    def groups_of(kind: SectionKind, name: str) -> dict[int, bytes]:
        groups = found.get(Section(kind, name), {})
        return {group: b"".join(payloads) for group, payloads in groups.items()}

    contents = stream.contents()
    return KeyedSnapshot(
        stream.key_groups,
        {
            name: TableSnapshot(
                table.kind,
                table.namespaced,
                table.whole,
                groups_of(SectionKind.TABLE, name),
                table.serializer,
            )
            for name, table in contents.tables.items()
        },
        {name: groups_of(SectionKind.TIMERS, name) for name in contents.timers},
        {
            name: ColumnarSnapshot(
                table.kind,
                table.namespaced,
                table.whole,
                table.removed,
                groups_of(SectionKind.COLUMNS, name),
                table.pickled,
            )
            for name, table in contents.columns.items()
        },
    )


class StateCapture(ABC):
    """The keyed state of a subtask at one moment, to be written later while the task changes its
    state. Until it is written or released, the old contents of all later changes stay in memory.
    *is_whole*: whether it has the whole state, or only the changes since an earlier capture."""

    def __init__(self, is_whole: bool) -> None:
        self.is_whole = is_whole

    @abstractmethod
    def stream(self) -> SnapshotStream:
        """Return a stream that serialises the capture. Call this once, from any thread.
        The capture is released when the bodies end."""

    def write(self) -> KeyedSnapshot:
        try:
            return collected(self.stream())
        finally:
            self.release()

    @abstractmethod
    def release(self) -> None:
        """Release the capture without writing it; may be called from any thread."""


@stored("state.RecordForm")
@message
class RecordForm:
    """The name and the fields that a class had when values of the class were stored."""

    name: str
    """``module:qualified name``, or the name under which the class was registered."""
    fields: tuple[str, ...]


@stored("state.SerializerSnapshot")
@message
class SerializerSnapshot:
    """Says how a state was written: the information that a reader needs first."""

    name: str
    version: int
    declared: str | None
    """Type and time to live of the state's descriptor, as JSON."""
    keys: tuple[RecordForm, ...] = ()
    """Classes with fields that occur in keys and namespaces."""
    values: tuple[RecordForm, ...] = ()
    """Classes with fields that occur in values."""
    pickled: tuple[str, ...] = ()
    """Types that were pickled, and so cannot be migrated."""
