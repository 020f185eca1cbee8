"""Operator state in a file, element by element.

::

    header, elements

The header (:mod:`flinkray.checkpoint.headers`) describes how each state was written. An element
consists of its size (4 bytes), a checksum (4 bytes) and its bytes, so a reader knows where it ends.
The offsets of the elements are in the handle and not in the file: handles are divided among
subtasks by arithmetic, and each subtask reads the header and its own elements.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from flinkray.checkpoint.errors import CorruptCheckpointError
from flinkray.checkpoint.handles import (
    NamedOperatorState,
    OperatorStateHandle,
    OperatorStateMode,
)
from flinkray.checkpoint.headers import read_header, write_header
from flinkray.checkpoint.state_files import StateInput, StateOutput, check_bytes, open_state
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.state.operator_state import OperatorSnapshot, OperatorStateSnapshot
from flinkray.state.stored_forms import SerializerSnapshot

MAGIC = b"flinkray operator state\n"
VERSION = 1
_ELEMENT = 8
"""Bytes before the data of an element: size and checksum."""
_LARGEST_GAP = 65_536
"""Largest gap in bytes between two elements that are still read in one request."""


@stored("checkpoint.StoredOperatorState")
@message
class StoredOperatorState:
    """Name and serializer of a state in a snapshot, without its elements."""

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
    offset = write_header(output, MAGIC, VERSION, header)
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
    return read_header(state, MAGIC, VERSION, OperatorStateHeader)[0]


def _read(state: StateInput, states: Sequence[NamedOperatorState]) -> OperatorSnapshot:
    header, _, first = read_header(state, MAGIC, VERSION, OperatorStateHeader)
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
    *first*: the first bytes of the file, which were read with the header.
    """

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
    """Return, for each offset of an element, where a read that begins at this offset should end.
    A read also covers the following elements in *offsets* if the gaps between them are small."""
    ends: dict[int, int] = {}
    end = following = -1
    for offset in sorted(offsets, reverse=True):
        if end < 0 or following - offset > _LARGEST_GAP:
            end = offset + _ELEMENT
        ends[offset], following = end, offset
    return ends
