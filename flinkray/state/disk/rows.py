"""Rows of state on disk: encoding of single values.

::

    flags (1 byte), for each flag (length (4 bytes), exact part), tag (1), value

Only the process that wrote a row reads it, so rows need not say how the state was declared, and are
never migrated.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import Any

import msgpack

from flinkray.state.disk.places import NOTHING, Exact
from flinkray.state.value_encoding import ValueDecoder, ValueEncoder, pack, unpack

_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes})
_HAS_KEY, _HAS_NAMESPACE, _HAS_ENTRY_KEY = 1, 2, 4
_PLAIN, _COLUMN = b"p", b"c"
_TAGS: dict[type, bytes] = {tuple: b"t", list: b"l"}
_COLUMN_TAG, _LIST_TAG = ord("c"), ord("l")
_LENGTH = struct.Struct(">I")
_NO_FLAGS = b"\x00"


class ValueRows:
    """Encodes values one by one; for one thread."""

    def __init__(self) -> None:
        self._pack: Any = msgpack.Packer(unicode_errors="surrogatepass").pack

    def encode(self, value: Any) -> bytes:
        """Encode one value of any type. Raises StateError if the value cannot be stored."""
        kind = type(value)
        encoded: bytes
        try:
            if kind in _PLAIN_TYPES:
                encoded = _PLAIN + self._pack(value)
                return encoded
            if kind in _TAGS and _PLAIN_TYPES.issuperset(map(type, value)):
                encoded = _TAGS[kind] + self._pack(value)
                return encoded
        except OverflowError:  # an integer of more than 64 bits
            self._pack = msgpack.Packer(unicode_errors="surrogatepass").pack
        return _COLUMN + pack(ValueEncoder().encode([value]))


def decode_value(row: bytes, at: int) -> Any:
    """Decode the value that begins at *at*, as a new object. May be called from any thread."""
    tag = row[at]
    if tag == _COLUMN_TAG:
        (column,) = unpack(row[at + 1 :])
        (value,) = ValueDecoder().decode(column)
        return value
    return msgpack.unpackb(
        row[at + 1 :],
        use_list=tag == _LIST_TAG,
        strict_map_key=False,
        unicode_errors="surrogatepass",
    )


def with_exact(exact: Exact, encoded: bytes, entry_key: bytes | None = None) -> bytes:
    """Return the bytes of a row: the exact parts of its place, and an encoded value.
    *entry_key*: the exact key of a map entry, if the row is an entry that needs one."""
    if exact is NOTHING and entry_key is None:
        return _NO_FLAGS + encoded
    parts = (*exact, entry_key)
    flags = sum(1 << place for place, part in enumerate(parts) if part is not None)
    there = [part for part in parts if part is not None]
    sized = chain.from_iterable((_LENGTH.pack(len(part)), part) for part in there)
    return b"".join((bytes((flags,)), *sized, encoded))


def without_exact(row: bytes) -> tuple[Exact, bytes | None, int]:
    """Return (exact parts of the row's place, exact key of the map entry, where the value begins).
    Inverse of :func:`with_exact`; the exact key is None if the row has none."""
    flags = row[0]
    if not flags:
        return NOTHING, None, 1
    parts: list[bytes | None] = [None, None, None]
    at = 1
    for place in range(3):
        if flags & 1 << place:
            (size,) = _LENGTH.unpack_from(row, at)
            parts[place] = row[at + 4 : at + 4 + size]
            at += 4 + size
    return (parts[0], parts[1]), parts[2], at


def encoded_at(row: bytes) -> int:
    """Return the position at which the encoded value of a row begins."""
    return without_exact(row)[2] if row[0] else 1
