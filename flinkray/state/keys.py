"""Key groups: which subtask a key belongs to, the same in every process and on every path.

``key_group = murmur(hash(key)) % max_parallelism`` with Flink's own murmur and Java's hash codes
(MathUtils, KeyGroupRangeAssignment).  Python's ``hash`` is never used: it is randomised for text.

An integer hashes as a Java ``long``, whatever the width of its Arrow column, because a Python
int has no width; other values hash as their Java counterparts (``str`` by UTF-16 units, ``float``
as ``double``, ``bytes`` and sequences as ``Arrays.hashCode``).  All keys of a stream should be of
one type: ``1``, ``1.0`` and ``True`` are one key to a Python dict and three to a hash.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pickle
import struct
import sys
import uuid
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

UPPER_BOUND_MAX_PARALLELISM = 1 << 15
"""Most key groups a job can have (KeyGroupRangeAssignment)."""

_MASK = 0xFFFFFFFF


def _signed(value: int) -> int:
    value &= _MASK
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def hash_long(value: int) -> int:
    """``Long.hashCode``: upper and lower half, exclusive or."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return _signed(value ^ (value >> 32))


def hash_text(value: str) -> int:
    """``String.hashCode``: ``31 * h + unit`` over UTF-16 units."""
    result = 0
    if value.isascii():
        for unit in value.encode("ascii"):
            result = (31 * result + unit) & _MASK
    else:
        for unit in np.frombuffer(value.encode("utf-16-le", "surrogatepass"), "<u2").tolist():
            result = (31 * result + unit) & _MASK
    return _signed(result)


def _hash_sequence(values: Iterable[Any]) -> int:
    result = 1
    for value in values:
        result = (31 * result + stable_hash(value)) & _MASK
    return _signed(result)


def _hash_double(value: float) -> int:
    if value == 0:
        value = 0.0  # -0.0 equals 0.0, so it must not be another key group
    bits = (
        0x7FF8_0000_0000_0000
        if value != value
        else struct.unpack(">q", struct.pack(">d", value))[0]
    )
    return hash_long(bits)


def _hash_bytes(value: bytes) -> int:
    result = 1
    for byte in value:
        result = (31 * result + (byte - 256 if byte > 127 else byte)) & _MASK
    return _signed(result)


def _hash_int(value: int) -> int:
    if -(1 << 63) <= value < 1 << 63:
        return hash_long(value)
    return _hash_bytes(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


_EXACT: dict[type, Callable[[Any], int]] = {
    int: _hash_int,
    str: hash_text,
    bool: lambda value: 1231 if value else 1237,
    float: _hash_double,
    bytes: _hash_bytes,
    bytearray: lambda value: _hash_bytes(bytes(value)),
    tuple: _hash_sequence,
    list: _hash_sequence,
    type(None): lambda _: 0,
    decimal.Decimal: lambda value: hash_text(str(value.normalize())),
    datetime.date: lambda value: hash_long(value.toordinal()),
    datetime.datetime: lambda value: hash_text(value.isoformat()),
    datetime.time: lambda value: hash_text(value.isoformat()),
    datetime.timedelta: lambda value: hash_long(value // datetime.timedelta(microseconds=1)),
    uuid.UUID: lambda value: _hash_bytes(value.bytes),
    frozenset: lambda value: _signed(sum(stable_hash(item) for item in value)),
}


def stable_hash(key: Any) -> int:
    """A signed 32-bit hash that is the same in every process and Python version.

    Values of other types: enums by name, dataclasses by their fields, subclasses of the types
    above as those, NumPy scalars as the Python value, and anything else by its pickled bytes,
    which is stable as long as the class and its contents are.
    """
    known = _EXACT.get(type(key))
    if known is not None:
        return known(key)
    if isinstance(key, enum.Enum):
        return hash_text(key.name)
    if isinstance(key, np.generic):
        return stable_hash(key.item())
    values = getattr(key, "_values", None)
    if values is not None and hasattr(key, "get_row_kind"):
        return _hash_sequence(values)
    if dataclasses.is_dataclass(key) and not isinstance(key, type):
        return _hash_sequence(getattr(key, field.name) for field in dataclasses.fields(key))
    for base, function in _EXACT.items():
        if isinstance(key, base):
            return function(key)
    return _signed(zlib.crc32(pickle.dumps(key, protocol=4)))


def murmur(code: int) -> int:
    """Flink's ``MathUtils.murmurHash`` of a signed 32-bit hash: not negative."""
    code = (code * 0xCC9E2D51) & _MASK
    code = ((code << 15) | (code >> 17)) & _MASK
    code = (code * 0x1B873593) & _MASK
    code = ((code << 13) | (code >> 19)) & _MASK
    code = (code * 5 + 0xE6546B64) & _MASK
    code ^= 4
    code ^= code >> 16
    code = (code * 0x85EBCA6B) & _MASK
    code ^= code >> 13
    code = (code * 0xC2B2AE35) & _MASK
    code ^= code >> 16
    if code & 0x8000_0000:
        return 0 if code == 0x8000_0000 else 0x1_0000_0000 - code
    return code


def key_group_of(key: Any, max_parallelism: int) -> int:
    return murmur(stable_hash(key)) % max_parallelism


def owner_of(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """The subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


class KeyGroupRange(NamedTuple):
    """Key groups ``first`` to ``last``, both included."""

    first: int
    last: int

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.first <= key_group <= self.last

    def __str__(self) -> str:
        return f"[{self.first}, {self.last}]"


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """The key groups of a subtask.

    Raises:
        ValueError: more subtasks than key groups, or more key groups than there may be.
    """
    if not 0 < parallelism <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ValueError(
            f"parallelism {parallelism} and max parallelism {max_parallelism} do not fit: "
            f"1 <= parallelism <= max parallelism <= {UPPER_BOUND_MAX_PARALLELISM}"
        )
    return KeyGroupRange(
        (subtask * max_parallelism + parallelism - 1) // parallelism,
        ((subtask + 1) * max_parallelism - 1) // parallelism,
    )


def default_max_parallelism(parallelism: int) -> int:
    """Flink's choice where the user makes none."""
    wanted = parallelism + parallelism // 2
    power = 1 << max(wanted - 1, 0).bit_length()
    return min(max(power, 128), UPPER_BOUND_MAX_PARALLELISM)


# --- whole columns --------------------------------------------------------------------------------

Int32s = npt.NDArray[np.int32]


def murmur_array(codes: npt.NDArray[Any]) -> Int32s:
    """:func:`murmur` of many hashes."""
    code = codes.astype(np.int32, copy=False).view(np.uint32)
    code = code * np.uint32(0xCC9E2D51)
    code = (code << np.uint32(15)) | (code >> np.uint32(17))
    code *= np.uint32(0x1B873593)
    code = (code << np.uint32(13)) | (code >> np.uint32(19))
    code = code * np.uint32(5) + np.uint32(0xE6546B64)
    code ^= np.uint32(4)
    code ^= code >> np.uint32(16)
    code *= np.uint32(0x85EBCA6B)
    code ^= code >> np.uint32(13)
    code *= np.uint32(0xC2B2AE35)
    code ^= code >> np.uint32(16)
    signed = code.view(np.int32)
    result: Int32s = np.abs(signed)
    result[signed == np.int32(-(1 << 31))] = 0
    return result


def is_plain_integer(keys: pa.Array) -> bool:
    """Whether the keys are integers that fit into a ``long``, without nulls."""
    kind = keys.type
    return pa.types.is_integer(kind) and keys.null_count == 0 and not pa.types.is_uint64(kind)


def _hash_integers(keys: npt.NDArray[Any]) -> Int32s:
    longs = keys.astype(np.int64, copy=False).view(np.uint64)
    folded: Int32s = (longs ^ (longs >> np.uint64(32))).astype(np.uint32).view(np.int32)
    return folded


def key_groups_of_integers(keys: npt.NDArray[Any], max_parallelism: int) -> Int32s:
    """The key group of each integer; see :func:`is_plain_integer`."""
    groups: Int32s = murmur_array(_hash_integers(keys)) % np.int32(max_parallelism)
    return groups


def hash_array(keys: pa.Array) -> Int32s:
    """:func:`stable_hash` of every value of a column, nulls included."""
    kind = keys.type
    if pa.types.is_dictionary(kind):
        hashes = np.append(hash_array(keys.dictionary), np.int32(0))
        indices = keys.indices.fill_null(len(keys.dictionary))
        spread: Int32s = hashes[indices.to_numpy(zero_copy_only=False)]
        return spread
    if is_plain_integer(keys):
        return _hash_integers(keys.to_numpy(zero_copy_only=False))
    encoded = pc.dictionary_encode(keys, null_encoding="encode")
    unique: Int32s = np.fromiter(
        map(stable_hash, encoded.dictionary.to_pylist()), np.int32, len(encoded.dictionary)
    )
    of_rows: Int32s = unique[encoded.indices.to_numpy(zero_copy_only=False)]
    return of_rows


def key_groups_of_array(keys: pa.Array, max_parallelism: int) -> Int32s:
    """The key group of every value of a column."""
    groups: Int32s = murmur_array(hash_array(keys)) % np.int32(max_parallelism)
    return groups


class KeyGroupAssigner:
    """Remembers the key groups of keys it has seen, a bounded number of them."""

    __slots__ = ("_known", "_limit", "max_parallelism")

    def __init__(self, max_parallelism: int, limit: int = 1 << 16) -> None:
        self.max_parallelism = max_parallelism
        self._known: dict[tuple[type, Any], int] = {}
        self._limit = limit

    def __call__(self, key: Any) -> int:
        # The type belongs to it: 1, 1.0 and True are equal.
        typed = (type(key), key)
        group = self._known.get(typed)
        if group is None:
            group = murmur(stable_hash(key)) % self.max_parallelism
            if len(self._known) >= self._limit:
                self._known.clear()
            self._known[typed] = group
        return group


if sys.byteorder != "little":  # pragma: no cover - numpy views above assume it
    raise ImportError("flinkray.state.keys needs a little-endian machine")
