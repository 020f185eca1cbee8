"""Key groups: which subtask a key belongs to. Every process computes the same key group for a key.

``key_group = murmur(hash(key)) % max_parallelism`` with Flink's own murmur and Java's hash codes
(MathUtils, KeyGroupRangeAssignment). Python's ``hash`` is randomised for texts, and never used.

Equal keys have the same group (:mod:`flinkray.state.key_encoding` defines which keys are equal). So
an integer hashes as a Java ``long``, whatever the width of its column, and ``1.0`` and ``True``
hash as ``1`` does. Texts and other floats hash as in Java, all other keys by their encoding. Keys
with a declared type all hash as Java's values of that type: see :class:`KeyKind`.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.kernels import keys as compiled
from flinkray.state.key_encoding import (
    NAN,
    EqualityChecks,
    NaN,
    UnsupportedKeyError,
    decode_key,
    encode_key,
    is_number_or_text,
)
from flinkray.state.value_columns import ArrayColumn, ValueColumn, values_of

_MASK = 0xFFFFFFFF


def _signed(value: int) -> int:
    value &= _MASK
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def hash_long(value: int) -> int:
    """Return Java's ``Long.hashCode``: exclusive or of the upper and the lower half."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return _signed(value ^ (value >> 32))


def hash_text(value: str) -> int:
    """Return Java's ``String.hashCode``: ``31 * h + unit`` over UTF-16 units."""
    result = 0
    if value.isascii():
        for unit in value.encode("ascii"):
            result = (31 * result + unit) & _MASK
    else:
        for unit in np.frombuffer(value.encode("utf-16-le", "surrogatepass"), "<u2").tolist():
            result = (31 * result + unit) & _MASK
    return _signed(result)


def hash_double(value: float) -> int:
    """Return Java's ``Double.hashCode``; both zeros have one hash, and so have all NaNs."""
    if value != value:
        return hash_long(0x7FF8_0000_0000_0000)
    return hash_long(struct.unpack(">q", struct.pack(">d", value or 0.0))[0])


def hash_float(value: float) -> int:
    """Return Java's ``Float.hashCode``: the 32 bits of the number."""
    if value != value:
        return 0x7FC0_0000
    bits: int = struct.unpack(">i", struct.pack(">f", value or 0.0))[0]
    return bits


def hash_boolean(value: bool) -> int:
    """Return Java's ``Boolean.hashCode``."""
    return 1231 if value else 1237


def _hash_integer(value: int) -> int:
    if -(1 << 63) <= value < 1 << 63:
        return hash_long(value)
    return _hash_encoded(encode_key(value))


def _hash_number(value: float) -> int:
    return _hash_integer(int(value)) if value.is_integer() else hash_double(value)


def _hash_encoded(encoded: bytes) -> int:
    return _signed(zlib.crc32(encoded))


_EXACT: dict[type, Callable[[Any], int]] = {
    int: _hash_integer,
    bool: hash_long,
    float: _hash_number,
    NaN: hash_double,
    str: hash_text,
}

KeyHash = Callable[[Any], int]
"""Type of functions that compute the hash of a key: a signed 32-bit number."""


def stable_hash(key: Any) -> int:
    """Return a signed 32-bit hash, which is equal for equal keys, in every process and version.
    Raises UnsupportedKeyError if the value cannot be a key."""
    known = _EXACT.get(type(key))
    if known is not None:
        return known(key)
    encoded = encode_key(key)
    if is_number_or_text(encoded):
        plain = decode_key(encoded)
        known = _EXACT.get(type(plain))
        if known is not None:
            return known(plain)
    return _hash_encoded(encoded)


def murmur(code: int) -> int:
    """Return Flink's ``MathUtils.murmurHash`` of a signed 32-bit hash; never negative."""
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


# --- keys of a declared type ----------------------------------------------------------------------


@dataclass(frozen=True)
class KeyKind:
    """A declared key type: converts keys to the type, and computes the hashes that Flink has for
    it."""

    name: str
    type: type
    arrow: pa.DataType
    hash_of: KeyHash
    convert: Callable[[Any], Any]
    """Converts a key; raises ValueError, TypeError or OverflowError if the key does not fit."""

    def value_of(self, key: Any) -> Any:
        """Return the key converted to the declared key type.
        Raises UnsupportedKeyError if the key does not fit."""
        try:
            value = self.convert(key)
        except (ValueError, TypeError, OverflowError) as error:
            raise UnsupportedKeyError.of(
                key, f"{key!r} is no {self.name}, which is the declared type of the keys"
            ) from error
        return value


def _whole(bits: int) -> Callable[[Any], int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(key: Any) -> int:
        if not low <= key <= high or int(key) != key:
            raise ValueError(key)
        return int(key)

    return convert


def _boolean(key: Any) -> bool:
    if key not in (False, True):
        raise ValueError(key)
    return bool(key)


def _double(key: Any) -> float:
    if isinstance(key, str | bytes):
        raise TypeError(key)
    value = float(key)
    return value if value == value else NAN


def _single(key: Any) -> float:
    value: float = struct.unpack(">f", struct.pack(">f", _double(key)))[0]
    return value if value == value else NAN


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(key)
    return str(key)


KEY_KINDS = {
    kind.name: kind
    for kind in (
        KeyKind("BOOLEAN", bool, pa.bool_(), hash_boolean, _boolean),
        KeyKind("BYTE", int, pa.int8(), int, _whole(8)),
        KeyKind("SHORT", int, pa.int16(), int, _whole(16)),
        KeyKind("INT", int, pa.int32(), int, _whole(32)),
        KeyKind("LONG", int, pa.int64(), hash_long, _whole(64)),
        KeyKind("FLOAT", float, pa.float32(), hash_float, _single),
        KeyKind("DOUBLE", float, pa.float64(), hash_double, _double),
        KeyKind("STRING", str, pa.large_string(), hash_text, _text),
    )
}
"""Key types, by their names in ``Types``."""

_NAMES_BY_HASH = {kind.hash_of: name for name, kind in KEY_KINDS.items()}


def key_type_of(hash_of: KeyHash) -> str | None:
    """Return the name of the declared key type whose hash is *hash_of*.
    None if *hash_of* is the hash for keys without a declared type."""
    return _NAMES_BY_HASH.get(hash_of)


# --- key groups -----------------------------------------------------------------------------------


def key_group_of(key: Any, max_parallelism: int, hash_of: KeyHash = stable_hash) -> int:
    return murmur(hash_of(key)) % max_parallelism


# --- whole columns --------------------------------------------------------------------------------

Int32s = npt.NDArray[np.int32]


def murmur_array(codes: npt.NDArray[Any]) -> Int32s:
    """Return :func:`murmur` of each hash."""
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
    """Return whether the keys are integers that fit into a ``long``, without nulls."""
    kind = keys.type
    return pa.types.is_integer(kind) and keys.null_count == 0 and not pa.types.is_uint64(kind)


def _hash_integers(keys: npt.NDArray[Any]) -> Int32s:
    longs = keys.astype(np.int64, copy=False).view(np.uint64)
    folded: Int32s = (longs ^ (longs >> np.uint64(32))).astype(np.uint32).view(np.int32)
    return folded


def key_groups_of_integers(keys: npt.NDArray[Any], max_parallelism: int) -> Int32s:
    """Return the key group of each integer; see :func:`is_plain_integer`."""
    groups: Int32s = murmur_array(_hash_integers(keys)) % np.int32(max_parallelism)
    return groups


def hash_array(keys: pa.Array, hash_of: KeyHash = stable_hash) -> Int32s:
    """Return the hash of every value of a column, nulls included. Not for dictionaries."""
    if is_plain_integer(keys) and hash_of in (stable_hash, hash_long):
        return _hash_integers(keys.to_numpy(zero_copy_only=False))
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(keys, null_encoding="encode")
    unique = _hash_texts(encoded.dictionary) if hash_of in (stable_hash, hash_text) else None
    if unique is None:
        unique = np.fromiter(
            map(hash_of, encoded.dictionary.to_pylist()), np.int32, len(encoded.dictionary)
        )
    of_rows: Int32s = unique[encoded.indices.to_numpy(zero_copy_only=False)]
    return of_rows


_FEW = 32
"""Number of texts below which hashing one by one is faster."""


def _hash_texts(keys: pa.Array) -> Int32s | None:
    """Return :func:`hash_text` of each text, computed letter by letter for all texts at once.
    None if there are fewer than ``_FEW`` texts, or not all values are ASCII texts."""
    kind, number = keys.type, len(keys)
    is_large = pa.types.is_large_string(kind)
    if number < _FEW or keys.null_count or not (is_large or pa.types.is_string(kind)):
        return None
    _, ends, letters = keys.buffers()
    offsets = np.frombuffer(ends, np.int64 if is_large else np.int32)
    offsets = offsets[keys.offset : keys.offset + number + 1].astype(np.intp)
    units = np.frombuffer(letters or b"", np.uint8)
    if units[offsets[0] : offsets[-1]].max(initial=0) > 127:
        return None
    lengths = np.diff(offsets)
    if number and lengths[0] and (lengths == lengths[0]).all():
        return _hash_of_one_length(units[offsets[0] : offsets[-1]].reshape(number, lengths[0]))
    order = np.argsort(-lengths, kind="stable")  # the longest first
    places, lengths = offsets[:-1][order], lengths[order]
    hashes = np.zeros(number, np.uint32)
    left = number
    for place in range(lengths[0]):
        if lengths[left - 1] <= place:
            left = int(np.searchsorted(-lengths, -place, "left"))
        part = hashes[:left]
        part *= np.uint32(31)
        part += units[places[:left] + place]
    result = np.empty(number, np.uint32)
    result[order] = hashes
    hashed: Int32s = result.view(np.int32)
    return hashed


def _hash_of_one_length(letters: npt.NDArray[np.uint8]) -> Int32s:
    """Return :func:`hash_text` of ASCII texts of equal length, given as a matrix *letters*.
    The matrix has a row of letters for each text. Few NumPy calls are made, since each releases
    the interpreter's lock."""
    weights = np.ones(letters.shape[1], np.uint32)
    weights[:-1] = np.multiply.accumulate(np.full(len(weights) - 1, 31, np.uint32))[::-1]
    parts = range(0, len(letters), _PORTION)
    hashes = [letters[begin : begin + _PORTION].astype(np.uint32) @ weights for begin in parts]
    hashed: Int32s = np.concatenate(hashes).view(np.int32)
    return hashed


def owners_of_keys(keys: pa.Array, owners: Int32s, hash_of: KeyHash = stable_hash) -> Int32s | None:
    """Return ``owners[key group]`` for every value of a column of texts, or of integers that fit
    into a ``long``. There are as many key groups as *owners*. None: other keys, another hash, or
    there are no compiled kernels."""
    is_text = pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)
    if hash_of not in (stable_hash, hash_text if is_text else hash_long):
        return None
    return compiled.owners_of_keys(keys, owners, lambda: key_group_of(None, len(owners), hash_of))


def _compiled_groups(keys: pa.Array, max_parallelism: int, hash_of: KeyHash) -> Int32s | None:
    return owners_of_keys(keys, np.arange(max_parallelism, dtype=np.int32), hash_of)


def key_groups_of_array(
    keys: pa.Array, max_parallelism: int, hash_of: KeyHash = stable_hash
) -> Int32s:
    """Return the key group of every value of a column."""
    if pa.types.is_dictionary(keys.type):
        of_entries = key_groups_of_array(keys.dictionary, max_parallelism, hash_of)
        indices = keys.indices
        if keys.null_count:
            of_entries = np.append(of_entries, key_group_of(None, max_parallelism, hash_of))
            indices = indices.fill_null(len(keys.dictionary))
        of_rows: Int32s = of_entries.take(indices.to_numpy(zero_copy_only=False))
        return of_rows
    found = _compiled_groups(keys, max_parallelism, hash_of)
    if found is not None:
        return found
    groups: Int32s = murmur_array(hash_array(keys, hash_of)) % np.int32(max_parallelism)
    return groups


_PORTION = 1 << 16
"""Number of keys that are converted to a column at once."""
_COLUMNS = {str: pa.large_string(), int: pa.int64()}


class KeyGroupAssigner:
    """Computes key groups of keys. Remembers the key groups of a bounded number of keys, to save
    time."""

    __slots__ = ("_checks", "_known", "_limit", "hash_of", "max_parallelism")

    def __init__(
        self, max_parallelism: int, hash_of: KeyHash = stable_hash, limit: int = 1 << 16
    ) -> None:
        self.max_parallelism = max_parallelism
        self.hash_of = hash_of
        self._known: dict[Any, int] = {}
        self._checks = EqualityChecks(limit)
        self._limit = limit

    def __call__(self, key: Any) -> int:
        """Return the key group of a key.
        Raises UnsupportedKeyError if an equal key has another encoding."""
        group = self._known.get(key)
        if group is None:
            group = murmur(self.hash_of(key)) % self.max_parallelism
            if type(key) in _EXACT or not self._checks.has_to_look_at(key):
                if len(self._known) >= self._limit:
                    self._known.clear()
                self._known[key] = group
        return group

    def of_all(self, keys: Sequence[Any]) -> Int32s:
        """Return the key groups of keys that are all different.
        Texts and integers are converted to columns, and their groups are not remembered."""
        parts = range(0, len(keys), _PORTION)
        found = [self._of_portion(keys[begin : begin + _PORTION]) for begin in parts]
        return np.concatenate(found) if found else np.empty(0, np.int32)

    def _of_portion(self, keys: Sequence[Any]) -> Int32s:
        kinds = set(map(type, keys))
        if len(kinds) == 1 and not kinds.isdisjoint(_COLUMNS):
            try:
                column = pa.array(keys, _COLUMNS[kinds.pop()])
            except (UnicodeEncodeError, OverflowError, pa.ArrowInvalid):  # no column of Arrow's
                pass
            else:
                return self.of_array(column)
        return np.fromiter(map(self, keys), np.int32, len(keys))

    def of_array(self, keys: pa.Array) -> Int32s:
        """Return the key groups of a column of texts or of 64-bit integers."""
        found = _compiled_groups(keys, self.max_parallelism, self.hash_of)
        if found is not None:
            return found
        is_text = self.hash_of in (stable_hash, hash_text)
        hashes = _hash_texts(keys) if is_text else None
        if hashes is None:
            hashes = hash_array(keys, self.hash_of)
        groups: Int32s = murmur_array(hashes) % np.int32(self.max_parallelism)
        return groups

    def of_column(self, keys: ValueColumn) -> Int32s:
        """Return the key groups of a column of any keys."""
        if isinstance(keys, ArrayColumn) and keys.array.type in _COLUMNS.values():
            return self.of_array(keys.array)
        return self.of_all(values_of(keys))

    def remembers(self, key: Any) -> bool:
        """Return whether the key group of *key* is remembered."""
        return key in self._known


if sys.byteorder != "little":  # pragma: no cover - numpy views above assume it
    raise ImportError("flinkray.state.key_group_assignment needs a little-endian machine")
