"""Encodes places (keys with namespaces) as ordered bytes, and decodes them.

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
from typing import Any

from flinkray.state.key_encoding import decode_first_key, encode_key
from flinkray.state.key_values import as_key
from flinkray.state.keys import KeyGroupAssigner
from flinkray.state.value_encoding import ValueDecoder, ValueEncoder, pack, unpack

Place = Any
Exact = tuple[bytes | None, bytes | None]
"""Encoded (exact key, exact namespace); None if the canonical encoding gives the very value."""

NOTHING: Exact = (None, None)

_PREFIX = struct.Struct(">HH")
_MOST_NAMESPACES = 10_000

_AS_DECODED = frozenset({str, int, bytes, type(None)})
"""Types for which the canonical encoding gives back the very values."""


def table_prefix(number: int, group: int | None = None) -> bytes:
    """Return the prefix of the rows of a table, or of one key group in the table."""
    return struct.pack(">H", number) if group is None else _PREFIX.pack(number, group)


def encode_part(part: Any) -> bytes:
    """Return the canonical encoding of a key or namespace: ``encode_key``, but faster for texts."""
    if type(part) is str:
        text = part.encode("utf-8", "surrogatepass")
        if b"\x00" in text:
            text = text.replace(b"\x00", b"\x00\xff")
        return b"\x20" + text + b"\x00"
    return encode_key(part)


def exact_part(part: Any) -> bytes | None:
    """Return the encoded exact value of *part*, a key or namespace.
    None if decoding the canonical encoding of *part* gives the exact value."""
    kind = type(part)
    if kind in _AS_DECODED or (kind is tuple and _AS_DECODED.issuperset(map(type, part))):
        return None
    return pack(ValueEncoder().encode([part]))


def part_of(exact: bytes) -> Any:
    """Decode an exact value; the inverse of :func:`exact_part`."""
    (column,) = unpack(exact)
    (part,) = ValueDecoder(exactly=True).decode(column)
    return part


class PlaceCodec:
    """Encodes and decodes the places of one table; for one thread."""

    def __init__(self, number: int, namespaced: bool, assign: KeyGroupAssigner) -> None:
        self.number = number
        self.namespaced = namespaced
        self._assign = assign
        self._namespaces: dict[Any, tuple[bytes, bytes | None]] = {}
        """A cache of encoded namespaces, because most places have one of a few namespaces."""
        self._exact_namespaces: dict[bytes, Any] = {}

    def encode(self, place: Place) -> bytes:
        """Return the bytes with which the keys of all rows of a place begin."""
        return self._encode(place, self._assign(place[0] if self.namespaced else place))

    def encode_all(self, places: Sequence[Place]) -> list[bytes]:
        """Return what :meth:`encode` returns for each of many places; no place may occur twice."""
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
        """Return the exact parts of a place: what its rows must store of the key and the namespace.
        A part is None if it can be decoded from the encoded place."""
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
        """Return the place whose encoding (without table and group) begins at *at* in *encoded*.
        *exact*: the exact parts of the place, from one of its rows."""
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
