"""Keyed state in a file, by key group: a restore reads the ranges of its own.

::

    header, bodies

The header (:mod:`flinkray.checkpoint.headers`) says which tables there are, how each was written,
and where the body of each table, queue and column is, for each key group.  Bodies are in the order
of key groups, and each has a checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flinkray.checkpoint.errors import CorruptCheckpointError
from flinkray.checkpoint.handles import KeyedStateHandle, StateLocation
from flinkray.checkpoint.headers import read_header, write_header
from flinkray.checkpoint.state_files import StateInput, StateOutput, check_bytes, open_state
from flinkray.core.key_groups import KeyGroupRange
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.state.serializers import SerializerSnapshot
from flinkray.state.snapshots import ColumnarSnapshot, KeyedSnapshot, TableSnapshot

MAGIC = b"flinkray keyed state\n"
VERSION = 1
_LARGEST_READ = 64 << 20
"""Bytes of one request, but for bodies that are larger."""

_BODY = struct.Struct(">HIQQI")
"""Key group, number of its section, offset behind the header, size, checksum."""


@stored("checkpoint.StoredTable")
@message
class StoredTable:
    """A table of a snapshot, without what is in it."""

    name: str
    kind: str
    namespaced: bool
    is_whole: bool
    serializer: SerializerSnapshot


@stored("checkpoint.StoredColumns")
@message
class StoredColumns:
    """A columnar table of a snapshot, without what is in it."""

    name: str
    kind: str
    namespaced: bool
    is_whole: bool
    removed: int | None
    pickled: tuple[str, ...]


def _from_1(fields: dict[str, Any]) -> dict[str, Any]:
    """There was one section of columns, of a form that is not read any more: if there is anything
    in it, whoever asks for it is told."""
    number = len(fields["tables"]) + len(fields["timers"])
    used = any(entry[1] == number for entry in _BODY.iter_unpack(fields["bodies"]))
    columns = StoredColumns("arrays", "numbers (version 1)", False, True, None, ())
    return {**fields, "columns": (columns,) if used else ()}


@stored("checkpoint.KeyedStateHeader", version=2, migrations={1: _from_1})
@message
class KeyedStateHeader:
    """What is in a file of keyed state, and where.

    Sections are numbered: the tables, then the queues of timers, then the columnar tables.
    """

    first_key_group: int
    last_key_group: int
    tables: tuple[StoredTable, ...]
    timers: tuple[str, ...]
    """Names of queues."""
    columns: tuple[StoredColumns, ...]
    bodies: bytes
    """Entries of 26 bytes, by key group."""

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


def write_keyed_state(snapshot: KeyedSnapshot, output: StateOutput) -> StateLocation:
    """Write a snapshot, and finish the output.  Raises CheckpointStorageError."""
    sections = [
        *(table.groups for table in snapshot.tables.values()),
        *snapshot.timers.values(),
        *(table.groups for table in snapshot.columns.values()),
    ]
    index, payloads, offset = bytearray(), [], 0
    for group in sorted({group for section in sections for group in section}):
        for number, section in enumerate(sections):
            payload = section.get(group)
            if payload is not None:
                checksum = zlib.crc32(payload)
                index += _BODY.pack(group, number, offset, len(payload), checksum)
                payloads.append(payload)
                offset += len(payload)
    tables = (
        StoredTable(name, table.kind, table.namespaced, table.whole, table.serializer)
        for name, table in snapshot.tables.items()
    )
    columns = (
        StoredColumns(name, table.kind, table.namespaced, table.whole, table.removed, table.pickled)
        for name, table in snapshot.columns.items()
    )
    header = KeyedStateHeader(
        snapshot.key_groups.first,
        snapshot.key_groups.last,
        tuple(tables),
        tuple(snapshot.timers),
        tuple(columns),
        bytes(index),
    )
    write_header(output, MAGIC, VERSION, header)
    for payload in payloads:
        output.write(payload)
    return output.finish()


# --- reading ----------------------------------------------------------------------------------


def read_keyed_state_header(state: StateInput) -> KeyedStateHeader:
    """What is in it, without reading that.  Raises CheckpointStorageError."""
    return read_header(state, MAGIC, VERSION, KeyedStateHeader)[0]


def read_keyed_state(
    handles: Iterable[KeyedStateHandle], key_groups: KeyGroupRange
) -> list[KeyedSnapshot]:
    """What a subtask of these key groups is restored from, for its backend, in order.

    Raises:
        CheckpointStorageError: a handle's state cannot be read, or is not what was written.
    """
    snapshots = []
    for handle in handles:
        of_handle = handle.key_groups.intersection(key_groups)
        for part in handle.parts:
            with open_state(part.location) as state:
                snapshots.append(read_keyed_state_part(state, of_handle))
    return snapshots


def read_keyed_state_part(state: StateInput, key_groups: KeyGroupRange) -> KeyedSnapshot:
    """What a snapshot has of these key groups; nothing else is read but the header.

    Raises:
        CheckpointStorageError: it cannot be read, or is not what was written.
    """
    header, begin, _ = read_header(state, MAGIC, VERSION, KeyedStateHeader)
    common = header.key_groups.intersection(key_groups)
    number_of_sections = len(header.tables) + len(header.timers) + len(header.columns)
    sections: list[dict[int, bytes]] = [{} for _ in range(number_of_sections)]
    bodies = [_Body(*entry) for entry in _BODY.iter_unpack(header.bodies)]
    end = begin + max((body.end for body in bodies), default=0)
    if end != state.size:
        raise CorruptCheckpointError(
            state.name,
            f"it has {state.size} bytes, and its header says {end}; restore an earlier checkpoint",
        )
    for run in _runs([body for body in bodies if body.key_group in common]):
        first = run[0].offset
        data = memoryview(state.read(begin + first, run[-1].end - first))
        for body in run:
            payload = data[body.offset - first : body.end - first]
            check_bytes(state.name, payload, body.checksum.to_bytes(4, "big"))
            sections[body.section][body.key_group] = bytes(payload)
    tables = {
        table.name: TableSnapshot(
            table.kind, table.namespaced, table.is_whole, groups, table.serializer
        )
        for table, groups in zip(header.tables, sections, strict=False)
    }
    timers = dict(zip(header.timers, sections[len(tables) :], strict=False))
    columns = {
        table.name: ColumnarSnapshot(
            table.kind, table.namespaced, table.is_whole, table.removed, groups, table.pickled
        )
        for table, groups in zip(header.columns, sections[len(tables) + len(timers) :], strict=True)
    }
    return KeyedSnapshot(common, tables, timers, columns)


def _runs(bodies: list[_Body]) -> Iterator[list[_Body]]:
    """Bodies that lie side by side, to be read at once."""
    run: list[_Body] = []
    for body in bodies:
        if run and (body.offset != run[-1].end or body.end - run[0].offset > _LARGEST_READ):
            yield run
            run = []
        run.append(body)
    if run:
        yield run
