"""Rows of state on disk: encodes places (keys with namespaces) and single values as bytes.

::

    flags (1 byte), for each flag (length (4 bytes), exact part), tag (1), value

Only the process that wrote a row reads it, so rows need not say how the state was declared, and are
never migrated.

A row's key is ``number of the table (2 bytes), key group (2), key, namespace``. Key and namespace
are in the canonical encoding (:mod:`flinkray.state.key_encoding`). So a snapshot of a key group is
a range, and all rows of a place begin with the bytes of that place. Rows of a longer text can have
the same prefix: see ``Reader.scan_place``.

Equal keys have equal canonical encodings, even if they are different values: ``True`` and ``1``, or
a window and a tuple. If the encoding does not give back the very key, the row also stores the key's
*exact* value.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgpack

from flinkray.state.key_encoding import decode_first_key, encode_key
from flinkray.state.key_group_assignment import KeyGroupAssigner
from flinkray.state.key_values import as_key
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
        """Return a value of any type as bytes. Raises StateError if it cannot be stored."""
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
    """Return the value whose bytes begin at *at* in *row*, as a new object. May be called from any
    thread."""
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
    """Return the bytes of a row: the exact key and namespace as far as needed (*exact*), then an
    encoded value. *entry_key*: the exact key of a map entry; None: not needed."""
    if exact is NOTHING and entry_key is None:
        return _NO_FLAGS + encoded
    parts = (*exact, entry_key)
    flags = sum(1 << place for place, part in enumerate(parts) if part is not None)
    there = [part for part in parts if part is not None]
    sized = chain.from_iterable((_LENGTH.pack(len(part)), part) for part in there)
    return b"".join((bytes((flags,)), *sized, encoded))


def without_exact(row: bytes) -> tuple[Exact, bytes | None, int]:
    """Return (exact key and namespace of the row's place as far as stored, exact key of the map
    entry, position at which the value begins). Inverse of :func:`with_exact`; the exact key of the
    entry is None if the row has none."""
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


Place = Any
Exact = tuple[bytes | None, bytes | None]
"""Encoded (exact key, exact namespace); None if the canonical encoding gives the very value."""

NOTHING: Exact = (None, None)

_PREFIX = struct.Struct(">HH")
_MOST_NAMESPACES = 10_000

_AS_DECODED = frozenset({str, int, bytes, type(None)})
"""Types for which the canonical encoding gives back the very values."""


def table_prefix(number: int, group: int | None = None) -> bytes:
    """Return the first bytes of the row keys of a table, or of one key group in the table."""
    return struct.pack(">H", number) if group is None else _PREFIX.pack(number, group)


def encode_part(part: Any) -> bytes:
    """Return the canonical encoding of a key or namespace. Same result as ``encode_key``, but
    faster for texts."""
    if type(part) is str:
        text = part.encode("utf-8", "surrogatepass")
        if b"\x00" in text:
            text = text.replace(b"\x00", b"\x00\xff")
        return b"\x20" + text + b"\x00"
    return encode_key(part)


def exact_part(part: Any) -> bytes | None:
    """Return *part*, a key or namespace, encoded with its exact type. The canonical encoding, for
    example, does not tell ``True`` from ``1``. None: decoding the canonical encoding gives *part*
    itself."""
    kind = type(part)
    if kind in _AS_DECODED or (kind is tuple and _AS_DECODED.issuperset(map(type, part))):
        return None
    return pack(ValueEncoder().encode([part]))


def part_of(exact: bytes) -> Any:
    """Return the key or namespace of which :func:`exact_part` has returned *exact*."""
    (column,) = unpack(exact)
    (part,) = ValueDecoder(exactly=True).decode(column)
    return part


class PlaceCodec:
    """Encodes and decodes the places (key, or key and window) of one table; for one thread."""

    def __init__(self, number: int, namespaced: bool, assign: KeyGroupAssigner) -> None:
        self.number = number
        self.namespaced = namespaced
        self._assign = assign
        self._namespaces: dict[Any, tuple[bytes, bytes | None]] = {}
        """A cache of encoded namespaces, because most places have one of a few namespaces."""
        self._exact_namespaces: dict[bytes, Any] = {}

    def encode(self, place: Place) -> bytes:
        """Return the bytes with which the keys of all rows of a place (key, or key and window)
        begin: table, key group, key and namespace."""
        return self._encode(place, self._assign(place[0] if self.namespaced else place))

    def encode_all(self, places: Sequence[Place]) -> list[bytes]:
        """Return, for each place (key, or key and window), what :meth:`encode` returns. The places
        must all be different."""
        keys = [place[0] for place in places] if self.namespaced else places
        groups = self._assign.of_all(keys).tolist()
        return list(map(self._encode, places, groups))

    def _encode(self, place: Place, group: int) -> bytes:
        prefix = _PREFIX.pack(self.number, group)
        if self.namespaced:
            key, namespace = place
            return prefix + encode_part(key) + self._namespace(namespace)[0]
        return prefix + encode_part(place)

    def exact(self, place: Place) -> Exact:
        """Return (exact key, exact namespace) as far as the rows of a place must store them,
        because decoding the encoded place does not give them. None: this part need not be
        stored."""
        if not self.namespaced:
            kind = type(place)
            return NOTHING if kind is str or kind is int else (exact_part(place), None)
        key, namespace = place
        exact_key, exact_namespace = exact_part(key), self._namespace(namespace)[1]
        if exact_key is not None and exact_namespace is None:  # its position will be unknown
            exact_namespace = pack(ValueEncoder().encode([namespace]))
        return exact_key, exact_namespace

    def _namespace(self, namespace: Any) -> tuple[bytes, bytes | None]:
        found = self._namespaces.get(namespace)
        if found is None:
            if len(self._namespaces) >= _MOST_NAMESPACES:
                self._namespaces.clear()
            found = encode_part(namespace), exact_part(namespace)
            self._namespaces[namespace] = found
        return found

    def decode(self, encoded: bytes, at: int, exact: Exact) -> Place:
        """Return the place (key, or key and window) whose encoding (without table and group) begins
        at *at* in *encoded*. *exact*: the exact key and namespace that one of its rows stores, as
        far as they are needed."""
        exact_key, exact_namespace = exact
        if exact_key is None:
            key, at = decode_first_key(encoded, at)
        else:
            key = as_key(part_of(exact_key))
        if not self.namespaced:
            return key
        if exact_namespace is None:
            return key, decode_first_key(encoded, at)[0]
        namespace = self._exact_namespaces.get(exact_namespace)
        if namespace is None:
            if len(self._exact_namespaces) >= _MOST_NAMESPACES:
                self._exact_namespaces.clear()
            namespace = self._exact_namespaces[exact_namespace] = part_of(exact_namespace)
        return key, namespace
