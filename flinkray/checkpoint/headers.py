"""The beginning of a file of state: magic, version (1 byte), checksum (4), size (4), a record."""

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

_FIRST_READ = 8_192
"""Bytes: most headers are in them."""


def write_header(output: StateOutput, magic: bytes, version: int, record: object) -> int:
    """Its size.  Raises CheckpointStorageError."""
    body = encode_record(record)
    size = len(body).to_bytes(4, "big")
    checksum = zlib.crc32(size + body).to_bytes(4, "big")
    header = b"".join((magic, bytes([version]), checksum, size, body))
    output.write(header)
    return len(header)


def read_header(
    state: StateInput, magic: bytes, version: int, record_type: type[RecordT]
) -> tuple[RecordT, int, bytes]:
    """The record, the size of the header, and the first bytes of the file, which it is in.

    Raises:
        CheckpointStorageError: it is no such file, or it cannot be read.
    """
    first = state.read(0, min(_FIRST_READ, state.size))
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
    try:
        return decode_record(first[begin:end], record_type), end, first
    except StoredFormatError as error:
        raise UnknownCheckpointFormatError(state.name, str(error)) from error
