"""Packing by msgpack, with packers that are used again.

Making a packer costs as much as packing a message.
"""

from __future__ import annotations

import msgpack

_idle: list[msgpack.Packer] = []
"""Any thread takes and returns."""
_LARGE = 65_536
"""Bytes; a packer that has written more is not kept, for it keeps its buffer."""


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
    if len(data) <= _LARGE:
        _idle.append(packer)
    return data
