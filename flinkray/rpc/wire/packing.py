"""Packing by msgpack, with packers that are used again.

Making a packer costs as much as packing a message.
"""

from __future__ import annotations

import struct

import msgpack

LARGE = 65_536
"""Bytes; what is larger is worth an effort not to be copied."""

Packed = bytes | list[bytes]
"""A packed value, or the parts of it in their order."""

LONGEST = 0xFFFF_FFFF
"""Bytes that msgpack can pack as one value."""

_BIN_32 = struct.Struct(">BI")
_BIN_32_CODE = 0xC6
_HEAD = 8192
"""Bytes within which :func:`unpack_but_last` expects all but the last value."""

_idle: list[msgpack.Packer] = []
"""Any thread takes and returns."""


def pack(value: object) -> bytes:
    """The msgpack form of *value*.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: msgpack's.
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
    """What is before so many bytes when they are packed: at most :data:`LONGEST`."""
    return _BIN_32.pack(_BIN_32_CODE, size)


def array_head(count: int) -> bytes:
    """What is before so many values when they are packed as a tuple."""
    head: bytes = msgpack.Packer().pack_array_header(count)
    return head


def unpack_but_last(data: bytes | memoryview, count: int) -> tuple[object, ...] | None:
    """A packed tuple of *count* values, the last of which are bytes and here a view of *data*.

    None: it is something else, or begins with more than is looked at.
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
