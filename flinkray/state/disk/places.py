"""Places as ordered bytes, and back.

A row's key is ``number of the table (2 bytes), key group (2), key, namespace``, these two in the
canonical encoding (:mod:`flinkray.state.key_encoding`).  So a snapshot of a key group is a range,
and all rows of a place begin with its bytes.  Only those of a text, or bytes, that go on with a
zero begin with them as well, and have 0xff next: see ``Reader.scan_place``.

The canonical encoding says which keys are equal, not what they are: ``True`` and ``1`` have one, as
a window and a tuple have.  Where a key is not the very value that its encoding gives, the row has
that as well: it is *exact*.
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
"""Of the key, and of the namespace."""

NOTHING: Exact = (None, None)

_PREFIX = struct.Struct(">HH")
_MOST_NAMESPACES = 10_000

_AS_DECODED = frozenset({str, int, bytes, type(None)})
"""Types of which the canonical encoding gives the very values."""


def table_prefix(number: int, group: int | None = None) -> bytes:
    """What the rows of a table, or of a key group in it, begin with."""
    return struct.pack(">H", number) if group is None else _PREFIX.pack(number, group)


def encode_part(part: Any) -> bytes:
    """The canonical encoding, faster for the most common keys."""
    if type(part) is str:
        text = part.encode("utf-8", "surrogatepass")
        if b"\x00" in text:
            text = text.replace(b"\x00", b"\x00\xff")
        return b"\x20" + text + b"\x00"
    return encode_key(part)


def exact_part(part: Any) -> bytes | None:
    """What gives the very value; None: the canonical encoding does."""
    kind = type(part)
    if kind in _AS_DECODED or (kind is tuple and _AS_DECODED.issuperset(map(type, part))):
        return None
    return pack(ValueEncoder().encode([part]))


def part_of(exact: bytes) -> Any:
    """The reverse of :func:`exact_part`."""
    (column,) = unpack(exact)
    (part,) = ValueDecoder(exactly=True).decode(column)
    return part


class PlaceCodec:
    """Of one table; from one thread."""

    def __init__(self, number: int, namespaced: bool, assign: KeyGroupAssigner) -> None:
        self.number = number
        self.namespaced = namespaced
        self._assign = assign
        self._namespaces: dict[Any, tuple[bytes, bytes | None]] = {}
        """Encoded: most places have one of a few."""
        self._exact_namespaces: dict[bytes, Any] = {}

    def encode(self, place: Place) -> bytes:
        """What the rows of the place begin with."""
        return self._encode(place, self._assign(place[0] if self.namespaced else place))

    def encode_all(self, places: Sequence[Place]) -> list[bytes]:
        """The same of many, which differ."""
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
        """What the rows of the place have besides."""
        if not self.namespaced:
            kind = type(place)
            return NOTHING if kind is str or kind is int else (exact_part(place), None)
        key, namespace = place
        exact_key, exact_namespace = exact_part(key), self._namespace(namespace)[1]
        if exact_key is not None and exact_namespace is None:  # where it begins will not be known
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
        """A place, of whose encoding the key begins at *at*."""
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
