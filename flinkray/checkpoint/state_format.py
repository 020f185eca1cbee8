"""The formats of files of keyed state and of operator state, with their headers and footers.

A file of keyed state::

    bodies, footer

Bodies are in the order of key groups; each has a checksum. The data of a table (one entry for each
key), of a timer queue, or of a columnar table (arrays of numbers, with one row for each key) for
one key group is one body, or several consecutive bodies. The footer lists the tables, how each was
written, and where the bodies are. The footer is last, so that the writer need not hold all bodies
in memory.

A file of operator state::

    header, elements

The header describes how each state was written. An element consists of its size (4 bytes), a
checksum (4 bytes) and its bytes, so a reader knows where the element ends. The offsets of the
elements are in the handle and not in the file: handles are divided among subtasks by arithmetic,
and each subtask reads the header and its own elements.

Headers and footers::

    header: magic, version (1 byte), checksum (4), size (4), record
    footer: record, checksum (4), size (4), version (1 byte), magic
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from flinkray.checkpoint.errors import CorruptCheckpointError, UnknownCheckpointFormatError
from flinkray.checkpoint.handles import (
    KeyedStateHandle,
    NamedOperatorState,
    OperatorStateHandle,
    OperatorStateMode,
    StateLocation,
)
from flinkray.checkpoint.state_files import (
    StateInput,
    StateOutput,
    check_bytes,
    check_format,
    open_state,
)
from flinkray.core.errors import StoredFormatError
from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.core.message import message
from flinkray.core.records import decode_record, encode_record
from flinkray.core.schema import stored
from flinkray.state.operator_state import OperatorSnapshot, OperatorStateSnapshot
from flinkray.state.snapshots import (
    ColumnarForm,
    Payload,
    Section,
    SerializerSnapshot,
    SnapshotBody,
    SnapshotContents,
    SnapshotStream,
    TableForm,
)

KEYED_MAGIC = b"flinkray keyed state\n"
KEYED_VERSION = 2
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
    """Description of a table (state with an entry for each key) in a snapshot, without contents."""

    name: str
    kind: str
    namespaced: bool
    is_whole: bool
    serializer: SerializerSnapshot


@stored("checkpoint.StoredColumns")
@message
class StoredColumns:
    """Description of a columnar table (arrays with one row for each key), without its contents."""

    name: str
    kind: str
    namespaced: bool
    is_whole: bool
    removed: int | None
    pickled: tuple[str, ...]


def _from_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a header of format version 1 as those of the present version. Version 1
    has one section of columns, which cannot be read any more. If the section has data, the result
    has a table in its place; using this table raises an error."""
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
    """Write the bodies and the footer of a snapshot.

    Return whether the snapshot has any table, timer queue or columnar table.
    """
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
    write_footer(output, KEYED_MAGIC, KEYED_VERSION, header)
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
    header, size = read_footer(state, KEYED_MAGIC, KEYED_VERSION, KeyedStateHeader)
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
    """Yield the stored snapshots from which a subtask with these key groups is restored: for each
    handle its whole snapshot, then its changes. Nothing outside of *key_groups* is read. Raises
    CheckpointStorageError if the state of a handle cannot be read, or was changed."""
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


OPERATOR_MAGIC = b"flinkray operator state\n"
OPERATOR_VERSION = 1
_ELEMENT = 8
"""Bytes before the data of an element: size and checksum."""
_LARGEST_GAP = 65_536
"""Largest gap in bytes between two elements that are still read in one request."""


@stored("checkpoint.StoredOperatorState")
@message
class StoredOperatorState:
    """Says how one operator state in a file was written, by name; the elements are not included."""

    name: str
    serializer: SerializerSnapshot


@stored("checkpoint.OperatorStateHeader")
@message
class OperatorStateHeader:
    """Header of a file of operator state: which states the file has, and how they were written."""

    states: tuple[StoredOperatorState, ...]


def write_operator_state(snapshot: OperatorSnapshot, output: StateOutput) -> OperatorStateHandle:
    """Write a snapshot, finish the output and return the handle. Raises CheckpointStorageError."""
    states = (StoredOperatorState(name, it.serializer) for name, it in snapshot.states.items())
    header = OperatorStateHeader(tuple(states))
    offset = write_header(output, OPERATOR_MAGIC, OPERATOR_VERSION, header)
    named = []
    for name, state in snapshot.states.items():
        offsets = []
        for element in state.elements:
            length = len(element).to_bytes(4, "big")
            output.write(length + zlib.crc32(length + element).to_bytes(4, "big"))
            output.write(element)
            offsets.append(offset)
            offset += _ELEMENT + len(element)
        named.append(NamedOperatorState(name, OperatorStateMode(state.mode), tuple(offsets)))
    return OperatorStateHandle(output.finish(), tuple(named))


def read_operator_state(handles: Iterable[OperatorStateHandle]) -> list[OperatorSnapshot]:
    """Read the operator state that a subtask gets; returns one snapshot for each of *handles*.
    Raises CheckpointStorageError if the state of a handle cannot be read, or was changed."""
    snapshots = []
    for handle in handles:
        with open_state(handle.location) as state:
            snapshots.append(_read(state, handle.states))
    return snapshots


def read_operator_state_header(state: StateInput) -> OperatorStateHeader:
    """Return the header of a file of operator state. Raises CheckpointStorageError."""
    return read_header(state, OPERATOR_MAGIC, OPERATOR_VERSION, OperatorStateHeader)[0]


def _read(state: StateInput, states: Sequence[NamedOperatorState]) -> OperatorSnapshot:
    header, _, first = read_header(state, OPERATOR_MAGIC, OPERATOR_VERSION, OperatorStateHeader)
    serializers = {it.name: it.serializer for it in header.states}
    found = {}
    for named in states:
        if named.name not in serializers:
            raise CorruptCheckpointError(
                state.name, f"its handle names the state {named.name!r}, which is not in it"
            )
        elements = _Elements(state, first).read(named.offsets)
        found[named.name] = OperatorStateSnapshot(
            named.mode.value, tuple(elements), serializers[named.name]
        )
    return OperatorSnapshot(found)


class _Elements:
    """Reads elements of operator state from a file; reads neighbouring elements in one request.
    *first*: the first bytes of the file, which were read with the header."""

    def __init__(self, state: StateInput, first: bytes) -> None:
        self._state = state
        self._begin = 0
        self._data = first

    def read(self, offsets: Sequence[int]) -> list[bytes]:
        """Return the elements that begin at *offsets*, in the same order."""
        ends = _ends_of_runs(offsets)
        return [self._element(offset, ends[offset]) for offset in offsets]

    def _element(self, offset: int, end_of_run: int) -> bytes:
        head = self._bytes(offset, _ELEMENT, end_of_run)
        size = int.from_bytes(head[:4], "big")
        data = self._bytes(offset + _ELEMENT, size, end_of_run)
        check_bytes(self._state.name, head[:4] + data, head[4:])
        return data

    def _bytes(self, offset: int, size: int, end_of_run: int) -> bytes:
        begin = offset - self._begin
        if begin < 0 or begin + size > len(self._data):
            wanted = max(size, end_of_run - offset)
            if offset + size <= self._state.size:
                wanted = min(wanted, self._state.size - offset)
            self._begin, self._data, begin = offset, self._state.read(offset, wanted), 0
        return self._data[begin : begin + size]


def _ends_of_runs(offsets: Sequence[int]) -> dict[int, int]:
    """Return, for each offset of an element, up to where to read if a read begins there.

    The read also covers the elements that follow, as long as the gaps between them are small, so
    that neighbours are read in one request.
    """
    ends: dict[int, int] = {}
    end = following = -1
    for offset in sorted(offsets, reverse=True):
        if end < 0 or following - offset > _LARGEST_GAP:
            end = offset + _ELEMENT
        ends[offset], following = end, offset
    return ends


RecordT = TypeVar("RecordT")

_FEW = 8_192
"""Number of bytes that are read first; most headers and footers fit."""


def write_header(output: StateOutput, magic: bytes, version: int, record: object) -> int:
    """Write a header that describes a state file. Returns the header's size in bytes.
    Raises CheckpointStorageError."""
    body = encode_record(record)
    size = len(body).to_bytes(4, "big")
    checksum = zlib.crc32(size + body).to_bytes(4, "big")
    header = b"".join((magic, bytes([version]), checksum, size, body))
    output.write(header)
    return len(header)


def read_header(
    state: StateInput, magic: bytes, version: int, record_type: type[RecordT]
) -> tuple[RecordT, int, bytes]:
    """Return (record, size of the header, first bytes of the file, which include the header).
    Raises CheckpointStorageError if the file has another format, or cannot be read."""
    first = state.read(0, min(_FEW, state.size))
    check_format(state.name, first, magic, version)
    begin = len(magic) + 1 + 8
    end = begin + int.from_bytes(first[begin - 4 : begin], "big")
    if len(first) < begin or end > state.size:
        raise CorruptCheckpointError(
            state.name, "it is cut short in its header, or changed; restore an earlier checkpoint"
        )
    if end > len(first):
        first += state.read(len(first), end - len(first))
    check_bytes(state.name, first[begin - 4 : end], first[begin - 8 : begin - 4])
    return _decoded(state, first[begin:end], record_type), end, first


def write_footer(output: StateOutput, magic: bytes, version: int, record: object) -> None:
    """Write a footer that describes a state file. Raises CheckpointStorageError."""
    body = encode_record(record)
    rest = len(body).to_bytes(4, "big") + bytes([version]) + magic
    output.write(b"".join((body, zlib.crc32(body + rest).to_bytes(4, "big"), rest)))


def read_footer(
    state: StateInput, magic: bytes, version: int, record_type: type[RecordT]
) -> tuple[RecordT, int]:
    """Return (record, number of bytes before the footer).
    Raises CheckpointStorageError if the file has another format, or cannot be read."""
    begin = max(state.size - _FEW, 0)
    last = state.read(begin, state.size - begin)
    if not last.endswith(magic):
        raise UnknownCheckpointFormatError(
            state.name,
            f"it does not end with {magic!r}: it is cut short, or no such file of flinkray's",
        )
    size_of_rest = 4 + 1 + len(magic)
    if len(last) < 4 + size_of_rest:
        raise CorruptCheckpointError(state.name, "it is cut short; restore an earlier checkpoint")
    rest = last[-size_of_rest:]
    check_format(state.name, magic + rest[4:5], magic, version)
    size = int.from_bytes(rest[:4], "big")
    wanted = size + 4 + size_of_rest
    if wanted > state.size:
        raise CorruptCheckpointError(
            state.name, "it is cut short, or changed in its footer; restore an earlier checkpoint"
        )
    if wanted > len(last):
        last = state.read(state.size - wanted, wanted - len(last)) + last
    body, checksum = last[-wanted : -size_of_rest - 4], last[-size_of_rest - 4 : -size_of_rest]
    check_bytes(state.name, body + rest, checksum)
    return _decoded(state, body, record_type), state.size - wanted


def _decoded(state: StateInput, body: bytes, record_type: type[RecordT]) -> RecordT:
    try:
        return decode_record(body, record_type)
    except StoredFormatError as error:
        raise UnknownCheckpointFormatError(state.name, str(error)) from error
