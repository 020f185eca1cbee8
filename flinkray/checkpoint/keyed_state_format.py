"""Keyed state in a file, ordered by key group: a restore reads only the ranges that it needs.

::

    bodies, footer

Bodies are in the order of key groups; each has a checksum. The data of a table, a timer queue or a
columnar table for one key group is one body, or several consecutive bodies. The footer
(:mod:`flinkray.checkpoint.headers`) lists the tables, how each was written, and where the bodies
are. The footer is last, so that the writer need not hold all bodies in memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from flinkray.checkpoint.errors import CorruptCheckpointError
from flinkray.checkpoint.handles import KeyedStateHandle, StateLocation
from flinkray.checkpoint.headers import read_footer, write_footer
from flinkray.checkpoint.state_files import StateInput, StateOutput, check_bytes, open_state
from flinkray.core.key_groups import KeyGroupRange
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.state.snapshots import (
    ColumnarForm,
    Payload,
    Section,
    SnapshotBody,
    SnapshotContents,
    SnapshotStream,
    TableForm,
)
from flinkray.state.stored_forms import SerializerSnapshot

MAGIC = b"flinkray keyed state\n"
VERSION = 2
_LARGEST_READ = 16 << 20
"""Largest number of bytes in one read, unless a single body is larger."""

_WRITTEN_AT_ONCE = 4 << 20
"""Number of bytes collected before a write, unless a single body is larger."""
_PIECE = 5 << 10
"""Number of bytes passed to zlib at once; for more, zlib releases the interpreter's lock."""

_BODY = struct.Struct(">HIQQI")
"""Format of one body in the footer: key group, index of the section, offset, size, checksum."""


@stored("checkpoint.StoredTable")
@message
class StoredTable:
    """Description of a table in a snapshot, without its contents."""

    name: str
    kind: str
    namespaced: bool
    is_whole: bool
    serializer: SerializerSnapshot


@stored("checkpoint.StoredColumns")
@message
class StoredColumns:
    """Description of a columnar table in a snapshot, without its contents."""

    name: str
    kind: str
    namespaced: bool
    is_whole: bool
    removed: int | None
    pickled: tuple[str, ...]


def _from_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Convert the fields of a header in format version 1 to those of the present version.
    Version 1 has one section of columns, which cannot be read any more. If the section has data,
    the result has a table in its place; using this table raises an error."""
    number = len(fields["tables"]) + len(fields["timers"])
    used = any(entry[1] == number for entry in _BODY.iter_unpack(fields["bodies"]))
    columns = StoredColumns("arrays", "numbers (version 1)", False, True, None, ())
    return {**fields, "columns": (columns,) if used else ()}


@stored("checkpoint.KeyedStateHeader", version=2, migrations={1: _from_1})
@message
class KeyedStateHeader:
    """Description of the contents of a file of keyed state, with the positions of all bodies.
    Sections are numbered: the tables, then the queues of timers, then the columnar tables."""

    first_key_group: int
    last_key_group: int
    tables: tuple[StoredTable, ...]
    timers: tuple[str, ...]
    """Names of the timer queues."""
    columns: tuple[StoredColumns, ...]
    bodies: bytes
    """Packed entries of 26 bytes each (``_BODY``), ordered by key group."""

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_key_group, self.last_key_group)


@dataclass(frozen=True)
class _Body:
    key_group: int
    section: int
    offset: int
    size: int
    checksum: int

    @property
    def end(self) -> int:
        return self.offset + self.size


# --- writing ----------------------------------------------------------------------------------


def write_keyed_state(snapshot: SnapshotStream, output: StateOutput) -> StateLocation:
    """Write a snapshot, finish the output and return its location.
    Raises CheckpointStorageError, and the errors of the snapshot."""
    _write(snapshot, output)
    return output.finish()


def write_keyed_state_if_any(snapshot: SnapshotStream, output: StateOutput) -> StateLocation | None:
    """Write keyed state, finish *output* and return the location of the written state.
    If the snapshot contains nothing, return None and leave *output* unfinished."""
    return output.finish() if _write(snapshot, output) else None


def _write(snapshot: SnapshotStream, output: StateOutput) -> bool:
    """Write the bodies and the footer of a snapshot. Returns whether there is any section."""
    entries: list[tuple[int, Section, int, int, int]] = []
    offset = 0
    waiting, size = [], 0
    for group, section, payload in snapshot.bodies():
        if entries and group < entries[-1][0]:
            raise ValueError(f"key group {group} comes after {entries[-1][0]} in a snapshot")
        entries.append((group, section, offset, len(payload), _checksum(payload)))
        offset += len(payload)
        waiting.append(payload)
        size += len(payload)
        if size >= _WRITTEN_AT_ONCE:
            output.write(b"".join(waiting))
            waiting, size = [], 0
    output.write(b"".join(waiting))
    contents = snapshot.contents()
    numbers = {section: number for number, section in enumerate(contents.sections)}
    tables = (
        StoredTable(name, table.kind, table.namespaced, table.whole, table.serializer)
        for name, table in contents.tables.items()
    )
    columns = (
        StoredColumns(name, table.kind, table.namespaced, table.whole, table.removed, table.pickled)
        for name, table in contents.columns.items()
    )
    header = KeyedStateHeader(
        snapshot.key_groups.first,
        snapshot.key_groups.last,
        tuple(tables),
        contents.timers,
        tuple(columns),
        b"".join(_BODY.pack(group, numbers[of], *where) for group, of, *where in entries),
    )
    write_footer(output, MAGIC, VERSION, header)
    return bool(numbers)


def _checksum(payload: Payload) -> int:
    """Return the CRC-32 of a body.
    The CRC-32 is computed in pieces so small that zlib keeps the interpreter's lock. If zlib
    released the lock, another busy thread would take it and delay this one."""
    view, checksum = memoryview(payload), 0
    for begin in range(0, len(view), _PIECE):
        checksum = zlib.crc32(view[begin : begin + _PIECE], checksum)
    return checksum


# --- reading ----------------------------------------------------------------------------------


def read_keyed_state_header(state: StateInput) -> KeyedStateHeader:
    """Return the description of a file of keyed state. Raises CheckpointStorageError."""
    return _read_header(state)[0]


def _read_header(state: StateInput) -> tuple[KeyedStateHeader, list[_Body]]:
    header, size = read_footer(state, MAGIC, VERSION, KeyedStateHeader)
    bodies = [_Body(*entry) for entry in _BODY.iter_unpack(header.bodies)]
    end = bodies[-1].end if bodies else 0
    if end != size:
        raise CorruptCheckpointError(
            state.name,
            f"it has {size} bytes of state, and its footer says {end}; restore an earlier "
            "checkpoint",
        )
    return header, bodies


class StoredSnapshot(SnapshotStream):
    """The stored keyed state of some key groups.

    The footer is read at once, and bodies only when they are requested; nothing is kept in memory.

    Args:
        opened: opens the state; called for each read.
        key_groups: the key groups to read.

    Raises:
        CheckpointStorageError: the state cannot be read, or was changed; also raised by
            :meth:`bodies`.
    """

    def __init__(
        self, opened: Callable[[], AbstractContextManager[StateInput]], key_groups: KeyGroupRange
    ) -> None:
        self._opened = opened
        with opened() as state:
            self._header, self._bodies = _read_header(state)
        self.key_groups = self._header.key_groups.intersection(key_groups)

    def bodies(self) -> Iterator[SnapshotBody]:
        sections = list(self.contents().sections)
        wanted = [body for body in self._bodies if body.key_group in self.key_groups]
        with self._opened() as state:
            for run in _runs(wanted):
                first = run[0].offset
                data = memoryview(state.read(first, run[-1].end - first))
                for body in run:
                    payload = data[body.offset - first : body.end - first]
                    check_bytes(state.name, payload, body.checksum.to_bytes(4, "big"))
                    yield SnapshotBody(body.key_group, sections[body.section], payload)

    def contents(self) -> SnapshotContents:
        header = self._header
        return SnapshotContents(
            {
                table.name: TableForm(
                    table.kind, table.namespaced, table.is_whole, table.serializer
                )
                for table in header.tables
            },
            header.timers,
            {
                table.name: ColumnarForm(
                    table.kind, table.namespaced, table.is_whole, table.removed, table.pickled
                )
                for table in header.columns
            },
        )


def read_keyed_state(
    handles: Iterable[KeyedStateHandle], key_groups: KeyGroupRange
) -> Iterator[StoredSnapshot]:
    """Yield, in order, the snapshots from which a subtask with these key groups is restored.
    Raises CheckpointStorageError if the state of a handle cannot be read, or was changed."""
    for handle in handles:
        of_handle = handle.key_groups.intersection(key_groups)
        for part in handle.parts:
            yield StoredSnapshot(partial(open_state, part.location), of_handle)


def _runs(bodies: list[_Body]) -> Iterator[list[_Body]]:
    """Yield groups of adjacent bodies; each group is read from the file in one request."""
    run: list[_Body] = []
    for body in bodies:
        if run and (body.offset != run[-1].end or body.end - run[0].offset > _LARGEST_READ):
            yield run
            run = []
        run.append(body)
    if run:
        yield run
