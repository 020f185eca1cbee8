"""Points in time of keyed state: while they are taken, and as they are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.stored_forms import SerializerSnapshot

Payload = bytes | memoryview


class SectionKind(Enum):
    """What a part of keyed state is."""

    TABLE = "table"
    TIMERS = "timers"
    COLUMNS = "columns"


class Section(NamedTuple):
    """A table, a queue of timers or a columnar table, of one operator's subtask."""

    kind: SectionKind
    name: str


class SnapshotBody(NamedTuple):
    """What a section has of a key group, or a part of it: the parts follow each other."""

    key_group: int
    section: Section
    payload: Payload
    """Frames: :mod:`flinkray.state.serializers`, :mod:`flinkray.state.columnar_snapshots`."""


class TableForm(NamedTuple):
    """A table of a snapshot, without what is in it."""

    kind: str
    namespaced: bool
    whole: bool
    """Everything; else what changed since the snapshot before."""
    serializer: SerializerSnapshot
    """Of its frames."""


class ColumnarForm(NamedTuple):
    """The same of a columnar table."""

    kind: str
    namespaced: bool
    whole: bool
    """Everything; else what changed since the snapshot before."""
    removed: int | None
    """What the snapshots before have of namespaces up to this one is gone (where there are no
    namespaces, everything), before what this one has comes."""
    pickled: tuple[str, ...] = ()
    """Types of keys that nothing but pickle covers."""


class SnapshotContents(NamedTuple):
    """Which sections there are."""

    tables: Mapping[str, TableForm]
    timers: tuple[str, ...]
    """Queues: a snapshot has always all of their timers."""
    columns: Mapping[str, ColumnarForm]

    @property
    def sections(self) -> Iterator[Section]:
        """In their order."""
        yield from (Section(SectionKind.TABLE, name) for name in self.tables)
        yield from (Section(SectionKind.TIMERS, name) for name in self.timers)
        yield from (Section(SectionKind.COLUMNS, name) for name in self.columns)


class SnapshotStream(ABC):
    """A point in time of the keyed state of one subtask, one key group after the other, so that it
    need not be in memory at once."""

    key_groups: KeyGroupRange
    """Those that the subtask had."""

    @abstractmethod
    def bodies(self) -> Iterator[SnapshotBody]:
        """By rising key groups; once.  Whoever stops before the end closes the iterator.

        Raises:
            FlinkRayError: it cannot be read, or not be serialised.
        """

    @abstractmethod
    def contents(self) -> SnapshotContents:
        """Known when there are no more bodies."""


class TableSnapshot(NamedTuple):
    """What one table held, or what had changed in it."""

    kind: str
    namespaced: bool
    whole: bool
    """Everything; else what changed since the snapshot before."""
    groups: Mapping[int, bytes]
    """Key group -> frames (:mod:`flinkray.state.serializers`)."""
    serializer: SerializerSnapshot
    """Of these frames."""


class ColumnarSnapshot(NamedTuple):
    """The same of a columnar table; see :class:`ColumnarForm`."""

    kind: str
    namespaced: bool
    whole: bool
    removed: int | None
    groups: Mapping[int, bytes]
    """Key group -> frames (:mod:`flinkray.state.columnar_snapshots`)."""
    pickled: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeyedSnapshot(SnapshotStream):
    """A point in time of the keyed state of one subtask, in memory."""

    key_groups: KeyGroupRange
    """Those that the subtask had."""
    tables: Mapping[str, TableSnapshot]
    timers: Mapping[str, Mapping[int, bytes]] = field(default_factory=dict)
    """Queue -> key group -> its timers, always all of them."""
    columns: Mapping[str, ColumnarSnapshot] = field(default_factory=dict)
    """By name."""

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
    """A snapshot in memory.  Raises what the stream does."""
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
    """A point in time that is not written yet; the task goes on meanwhile.

    It costs memory for what changes after it, until it is written or released.

    Args:
        is_whole: everything is in it; else what had changed since the capture that was named.
    """

    def __init__(self, is_whole: bool) -> None:
        self.is_whole = is_whole

    @abstractmethod
    def stream(self) -> SnapshotStream:
        """Serialise it; from any thread, once.  It is released when its bodies end."""

    def write(self) -> KeyedSnapshot:
        """The same, in memory."""
        try:
            return collected(self.stream())
        finally:
            self.release()

    @abstractmethod
    def release(self) -> None:
        """Nobody is going to write it; from any thread."""
