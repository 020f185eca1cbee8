"""Headers and footers: records at the beginning or end of a file of state that describe the file.

::

    header: magic, version (1 byte), checksum (4), size (4), record
    footer: record, checksum (4), size (4), version (1 byte), magic
"""

from __future__ import annotations

import zlib
from typing import TypeVar

from flinkray.checkpoint.errors import CorruptCheckpointError, UnknownCheckpointFormatError
from flinkray.checkpoint.state_files import (
    StateInput,
    StateOutput,
    check_bytes,
    check_format,
)
from flinkray.core.errors import StoredFormatError
from flinkray.core.records import decode_record, encode_record

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
