"""Packing by msgpack. Packers are used again: to make a packer costs as much as to pack a value."""

from __future__ import annotations

import struct

import msgpack

LARGE = 65_536
"""Bytes above this size are not copied where that can be avoided."""

Packed = bytes | list[bytes]
"""A packed value, or its parts in order."""

LONGEST = 0xFFFF_FFFF
"""The most bytes that msgpack can pack as one value."""

_BIN_32 = struct.Struct(">BI")
_BIN_32_CODE = 0xC6
_HEAD = 8192
"""Bytes within which :func:`unpack_but_last` expects all values but the last."""

_idle: list[msgpack.Packer] = []
"""Packers that are not in use; any thread takes and returns packers."""


def pack(value: object) -> bytes:
    """Return the msgpack form of *value*.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: raised by msgpack.
    """
    try:
        packer = _idle.pop()
    except IndexError:
        packer = msgpack.Packer()
    data: bytes = packer.pack(value)
    if len(data) <= LARGE:  # a packer keeps its buffer
        _idle.append(packer)
    return data


def bytes_head(size: int) -> bytes:
    """Return the msgpack head of *size* bytes (at most :data:`LONGEST`)."""
    return _BIN_32.pack(_BIN_32_CODE, size)


def array_head(count: int) -> bytes:
    """Return the msgpack head of a tuple of *count* values."""
    head: bytes = msgpack.Packer().pack_array_header(count)
    return head


def unpack_but_last(data: bytes | memoryview, count: int) -> tuple[object, ...] | None:
    """Return a packed tuple of *count* values, with the last (bytes) as a view of *data*.

    None: *data* holds something else, or the other values are too long.
    """
    unpacker = msgpack.Unpacker(use_list=False, read_size=_HEAD, max_buffer_size=_HEAD)
    unpacker.feed(data[:_HEAD])
    try:
        if unpacker.read_array_header() != count:
            return None
        parts = [unpacker.unpack() for _ in range(count - 1)]
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return None
    begin = unpacker.tell() + _BIN_32.size
    if len(data) < begin or data[begin - _BIN_32.size : begin] != bytes_head(len(data) - begin):
        return None
    return (*parts, memoryview(data)[begin:])
