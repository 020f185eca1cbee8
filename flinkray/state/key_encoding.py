"""The canonical encoding of keys, which determines which keys are equal.

Two keys are equal if Python says so within one process. The encoding carries this equality to every
other process, Python version and hash seed, and to disk. So ``1``, ``1.0``, ``True``,
``Decimal(1)`` and ``numpy.int64(1)`` are one key, as they are in a dictionary. The same holds for
two texts with the same letters, two instants that differ only in their time zones, and two objects
of a dataclass with equal fields. NaN is one key, as in Flink, though it does not equal itself.

Encoded integers sort as the integers do, and so do encoded texts, bytes and tuples of these.

A value without an equality of its own, or one that may change while state is kept for it, is not a
key (:class:`UnsupportedKeyError`): lists, dictionaries, sets, arrays, objects without ``__eq__``.
"""

from __future__ import annotations

import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.state.errors import StateError

MOST_NESTED = 64
"""Deepest nesting of a key; a value nested more deeply probably refers to itself."""

_NONE, _INTEGER, _FLOAT, _RATIONAL, _COMPLEX, _NAN = 0x01, 0x10, 0x11, 0x12, 0x13, 0x14
_TEXT, _BYTES, _TUPLE, _SET = 0x20, 0x21, 0x30, 0x31
_DATE, _TIME, _DATETIME, _INSTANT, _DURATION, _NO_TIME = 0x40, 0x41, 0x42, 0x43, 0x44, 0x45
_UUID, _ENUM, _NAME, _OBJECT, _LIST, _MAP = 0x50, 0x51, 0x52, 0x60, 0x61, 0x62

_END = 0x00
"""Ends a sequence of parts; lower than the first byte of any part."""
_ESCAPED_ZERO = b"\x00\xff"
_ZERO_SIZE = 0x8000
_MOST_BYTES = 0x7FFF
_MOST_DIGITS = 5_000
"""Largest number of digits before or after the decimal point."""
_SIGN = 1 << 63
_ALL_BITS = (1 << 64) - 1

_EPOCH = datetime.datetime(1970, 1, 1)
_AWARE_EPOCH = _EPOCH.replace(tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "D": 86_400_000_000_000,
    "W": 604_800_000_000_000,
}
_DAY = 86_400_000_000
"""Length of a day in microseconds."""


class UnsupportedKeyError(StateError):
    """A value cannot be a key; the text gives its type, the reason, and a solution."""

    def __init__(self, key_type: str, reason: str) -> None:
        super().__init__(key_type, reason)
        self.key_type = key_type
        """Full name of the type of the value."""
        self.reason = reason

    @classmethod
    def of(cls, key: object, reason: str) -> UnsupportedKeyError:
        """Return the error that *key* cannot be a key, with its type and the *reason*."""
        return cls(_type_name(key), reason)

    def __str__(self) -> str:
        return f"a {self.key_type} cannot be a key: {self.reason}"


def _type_name(key: object) -> str:
    return f"{type(key).__module__}.{type(key).__qualname__}"


class _Encoding(bytearray):
    """The bytes of a key's encoding so far; the parts of the key are appended one after another."""

    has_written_equality = False
    """Whether a part has a user-written equality, so that equal keys may differ in encoding."""


class NaN(float):
    """The NaN that is stored in keys: it equals every other NaN, and dictionaries find it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isnan(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return _NAN


NAN = NaN("nan")


def encode_key(key: Any) -> bytes:
    """Return the canonical encoding of a key: equal keys have the same bytes, in every process.
    Raises UnsupportedKeyError if the value cannot be a key."""
    return encode_to_check(key)[0]


def encode_to_check(key: Any) -> tuple[bytes, bool]:
    """Return (encoding of *key*, whether keys equal to *key* may have other encodings).
    The second part is True if a class in the key has an ``__eq__`` written by a user. Raises
    UnsupportedKeyError if the value cannot be a key."""
    out = _Encoding()
    try:
        _encode(key, out, 0)
    except RecursionError as error:
        raise UnsupportedKeyError.of(key, "it is nested too deeply, or within itself") from error
    except UnsupportedKeyError as error:
        if error.key_type == _type_name(key):
            raise
        raise UnsupportedKeyError.of(key, f"of what is in it, {error}") from error
    return bytes(out), out.has_written_equality


def _encode(key: Any, out: _Encoding, depth: int) -> None:
    encoder = _EXACT.get(type(key))
    if encoder is None:
        encoder = _encoder_of(key)
    if depth > MOST_NESTED:
        raise UnsupportedKeyError.of(key, f"it is nested more than {MOST_NESTED} levels deep")
    encoder(key, out, depth)


# --- numbers --------------------------------------------------------------------------------------


def _encode_integer(key: int, out: _Encoding, depth: int) -> None:
    size = (key.bit_length() + 7) // 8
    if size > _MOST_BYTES:
        raise UnsupportedKeyError.of(key, f"it has {size} bytes, more than {_MOST_BYTES}")
    # The size comes first, inverted for negative numbers, so that greater numbers have greater
    # bytes.
    if key >= 0:
        out += struct.pack(">BH", _INTEGER, _ZERO_SIZE + size)
        out += key.to_bytes(size, "big")
    else:
        out += struct.pack(">BH", _INTEGER, _ZERO_SIZE - 1 - size)
        out += (key + (1 << 8 * size) - 1).to_bytes(size, "big")


def _encode_float(key: float, out: _Encoding, depth: int) -> None:
    if key != key:
        out.append(_NAN)
    elif key.is_integer():  # raises for neither infinity, which is no integer
        _encode_integer(int(key), out, depth)
    else:
        [bits] = struct.unpack(">Q", struct.pack(">d", key))
        out += struct.pack(">BQ", _FLOAT, bits ^ (_ALL_BITS if bits & _SIGN else _SIGN))


def _encode_decimal(key: decimal.Decimal, out: _Encoding, depth: int) -> None:
    if key.is_nan():
        out.append(_NAN)
    elif key.is_infinite():
        _encode_float(math.copysign(math.inf, key), out, depth)
    elif key and abs(key.adjusted()) > _MOST_DIGITS:
        raise UnsupportedKeyError.of(key, f"it has more than {_MOST_DIGITS} digits")
    else:
        _encode_fraction(key.as_integer_ratio(), out)


def _encode_rational(key: fractions.Fraction, out: _Encoding, depth: int) -> None:
    _encode_fraction((key.numerator, key.denominator), out)


def _encode_fraction(ratio: tuple[int, int], out: _Encoding) -> None:
    numerator, denominator = ratio
    if denominator == 1:
        _encode_integer(numerator, out, 0)
        return
    try:
        nearest = numerator / denominator
    except OverflowError:
        nearest = math.inf
    if math.isfinite(nearest) and nearest.as_integer_ratio() == ratio:
        _encode_float(nearest, out, 0)
        return
    out.append(_RATIONAL)
    _encode_integer(numerator, out, 0)
    _encode_integer(denominator, out, 0)


def _encode_complex(key: complex, out: _Encoding, depth: int) -> None:
    if key.imag == 0:
        _encode_float(key.real, out, depth)
        return
    out.append(_COMPLEX)
    _encode_float(key.real, out, depth)
    _encode_float(key.imag, out, depth)


# --- texts and what consists of parts -------------------------------------------------------------


def _encode_text(key: str, out: _Encoding, depth: int) -> None:
    out.append(_TEXT)
    out += key.encode("utf-8", "surrogatepass").replace(b"\x00", _ESCAPED_ZERO)
    out.append(_END)


def _encode_bytes(key: bytes, out: _Encoding, depth: int) -> None:
    out.append(_BYTES)
    out += key.replace(b"\x00", _ESCAPED_ZERO)
    out.append(_END)


def _encode_parts(tag: int, parts: Iterable[Any], out: _Encoding, depth: int) -> None:
    out.append(tag)
    for part in parts:
        _encode(part, out, depth + 1)
    out.append(_END)


def _encode_tuple(key: Sequence[Any], out: _Encoding, depth: int) -> None:
    _encode_parts(_TUPLE, key, out, depth)


def _encode_set(key: Iterable[Any], out: _Encoding, depth: int) -> None:
    parts = []
    for item in key:
        part = _Encoding()
        _encode(item, part, depth + 1)
        out.has_written_equality |= part.has_written_equality
        parts.append(bytes(part))
    out.append(_SET)
    out += b"".join(sorted(parts))
    out.append(_END)


# --- times ----------------------------------------------------------------------------------------


def _encode_date(key: datetime.date, out: _Encoding, depth: int) -> None:
    out.append(_DATE)
    _encode_integer(key.toordinal(), out, depth)


def _encode_datetime(key: datetime.datetime, out: _Encoding, depth: int) -> None:
    if key != key:  # pandas' NaT
        out.append(_NO_TIME)
        return
    is_aware = key.utcoffset() is not None
    zone = key.tzinfo if is_aware else None
    micros = (
        datetime.datetime(*key.timetuple()[:6], key.microsecond, zone, fold=key.fold)
        - (_AWARE_EPOCH if is_aware else _EPOCH)
    ) // _MICROSECOND
    out.append(_INSTANT if is_aware else _DATETIME)
    _encode_integer(micros * 1000 + getattr(key, "nanosecond", 0), out, depth)


def _encode_time(key: datetime.time, out: _Encoding, depth: int) -> None:
    micros = (key.hour * 3600 + key.minute * 60 + key.second) * 1_000_000 + key.microsecond
    offset = key.utcoffset()
    out.append(_TIME)
    _encode_integer(micros - (0 if offset is None else offset // _MICROSECOND), out, depth)
    _encode_integer(0 if offset is None else 1, out, depth)


def _encode_duration(key: datetime.timedelta, out: _Encoding, depth: int) -> None:
    micros = (key.days * 86_400 + key.seconds) * 1_000_000 + key.microseconds
    out.append(_DURATION)
    _encode_integer(micros * 1000 + getattr(key, "nanoseconds", 0), out, depth)


# --- classes --------------------------------------------------------------------------------------


def _encode_uuid(key: uuid.UUID, out: _Encoding, depth: int) -> None:
    out.append(_UUID)
    out += key.bytes


def _encode_enum(key: enum.Enum, out: _Encoding, depth: int) -> None:
    out.append(_ENUM)
    _encode_name(type(key), out, depth)
    # A union of flags has no name in every version of Python.
    _encode(key.value if isinstance(key, enum.Flag) else key.name, out, depth + 1)


def _encode_name(key: Any, out: _Encoding, depth: int) -> None:
    out.append(_NAME)
    _encode_text(key.__module__, out, depth)
    _encode_text(key.__qualname__, out, depth)


def _encode_path(key: PurePosixPath, out: _Encoding, depth: int) -> None:
    """Encode a path by its parts, because its class and its pickled form differ between Python
    versions."""
    out.append(_OBJECT)
    out.append(_NAME)
    _encode_text("pathlib", out, depth)
    _encode_text("PurePosixPath", out, depth)
    _encode_tuple(key.parts, out, depth + 1)
    out.append(_END)


def _encode_numpy(key: np.generic, out: _Encoding, depth: int) -> None:
    if isinstance(key, np.datetime64 | np.timedelta64):
        _encode_numpy_time(key, out)
    elif isinstance(key, np.floating):
        _encode_float(float(key), out, depth)
    elif isinstance(key, np.complexfloating):
        _encode_complex(complex(key), out, depth)
    elif isinstance(key, np.void | np.object_):
        _refuse(key, out, depth)
    else:
        _encode(key.item(), out, depth)


def _encode_numpy_time(key: np.datetime64 | np.timedelta64, out: _Encoding) -> None:
    if np.isnat(key):
        out.append(_NO_TIME)
        return
    is_time = isinstance(key, np.datetime64)
    unit, count = np.datetime_data(key.dtype)
    if unit in ("Y", "M") and is_time:
        key, unit, count = key.astype("datetime64[D]"), "D", 1
    nanos = _NANOSECONDS.get(unit)
    if nanos is None:
        raise UnsupportedKeyError.of(key, f"{key!r} has no length in nanoseconds")
    out.append(_DATETIME if is_time else _DURATION)
    _encode_integer(int(key.astype(np.int64)) * count * nanos, out, 0)


def _encode_arrow(key: pa.Scalar, out: _Encoding, depth: int) -> None:
    kind = key.type
    if key.is_valid and (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)):
        is_time = pa.types.is_timestamp(kind)
        out.append(_DURATION if not is_time else _DATETIME if kind.tz is None else _INSTANT)
        _encode_integer(key.value * _NANOSECONDS[kind.unit], out, depth)
    elif key.is_valid and pa.types.is_time64(kind) and key.value * _NANOSECONDS[kind.unit] % 1000:
        raise UnsupportedKeyError.of(key, "it has nanoseconds; cast it to microseconds")
    else:
        _encode(key.as_py(), out, depth)


def compared_fields(kind: type) -> list[str] | None:
    """Return the fields that the generated ``__eq__`` of a class compares.
    None if the ``__eq__`` was not generated, or it is not known which fields it compares."""
    if dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind) if field.compare]
        twin: Any = dataclasses.make_dataclass("Twin", fields).__eq__
        code: Any = getattr(kind.__eq__, "__code__", None)
        if code is None or code.co_code != twin.__code__.co_code:
            return None
        return fields if code.co_names == twin.__code__.co_names else None
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is None or any(attribute.eq_key is not None for attribute in attributes):
        return None
    made_in: str = getattr(getattr(kind.__eq__, "__code__", None), "co_filename", "")
    return [a.name for a in attributes if a.eq] if made_in.startswith("<attrs generated") else None


def is_of_pandas(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pandas"


def _encoder_of_fields(names: Sequence[str]) -> Encoder:
    def encode(key: Any, out: _Encoding, depth: int) -> None:
        require_equality(key)
        out.append(_OBJECT)
        _encode_name(type(key), out, depth)
        for name in names:
            _encode(getattr(key, name), out, depth + 1)
        out.append(_END)

    return encode


def _encode_pydantic(key: Any, out: _Encoding, depth: int) -> None:
    require_equality(key)
    out.has_written_equality = True
    out.append(_OBJECT)
    _encode_name(type(key), out, depth)
    for values in (key.__dict__, key.__pydantic_private__, key.__pydantic_extra__):
        _encode_part_of_object(values, out, depth + 1)
    out.append(_END)


def _encode_object(key: Any, out: _Encoding, depth: int) -> None:
    """Encode an object by the parts from which pickle rebuilds it.
    Unlike pickle, this keeps no memo of shared parts."""
    require_equality(key)
    out.has_written_equality = True
    try:
        reduced = key.__reduce_ex__(4)
    except TypeError as error:
        raise UnsupportedKeyError.of(key, str(error)) from error
    if isinstance(reduced, str):  # the name of a constant
        out.append(_NAME)
        _encode_text(type(key).__module__, out, depth)
        _encode_text(reduced, out, depth)
        return
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    out.append(_OBJECT)
    _encode_name(type(key), out, depth)
    if function is not copyreg.__newobj__:  # type: ignore[attr-defined]
        _encode_name(function, out, depth)
    for part in (arguments, state, items and list(items), pairs and dict(pairs)):
        _encode_part_of_object(part, out, depth + 1)
    out.append(_END)


def _encode_part_of_object(part: Any, out: _Encoding, depth: int) -> None:
    """Encode a part of an object that is a key. Unlike a key, a part may be of a type such as a
    list."""
    kind = type(part)
    if kind is dict:
        encoded = []
        for name, value in part.items():
            pair = _Encoding()
            _encode_part_of_object(name, pair, depth + 1)
            _encode_part_of_object(value, pair, depth + 1)
            out.has_written_equality |= pair.has_written_equality
            encoded.append(bytes(pair))
        out.append(_MAP)
        out += b"".join(sorted(encoded))
        out.append(_END)
    elif kind is list or kind is tuple:
        if depth > MOST_NESTED:
            raise UnsupportedKeyError.of(part, f"it is nested more than {MOST_NESTED} levels deep")
        out.append(_LIST if kind is list else _TUPLE)
        for item in part:
            _encode_part_of_object(item, out, depth + 1)
        out.append(_END)
    elif kind is set:
        _encode_set(part, out, depth)
    elif kind is bytearray:
        _encode_bytes(bytes(part), out, depth)
    elif isinstance(part, type):
        _encode_name(part, out, depth)
    else:
        _encode(part, out, depth)


def require_equality(key: Any) -> None:
    kind = type(key)
    if kind.__hash__ is None:
        raise UnsupportedKeyError.of(
            key, "it may change, and has no hash; use a tuple, a frozen dataclass or a text"
        )
    equality: Any = kind.__eq__
    if equality is object.__eq__:
        raise UnsupportedKeyError.of(
            key,
            "it has no equality of its own, so that two copies of it are two keys; "
            "use one of its fields, or give the class __eq__ and __hash__",
        )


def _refuse_missing(key: Any, out: _Encoding, depth: int) -> None:
    raise UnsupportedKeyError.of(
        key, "it stands for a value that is missing, and equals nothing, itself included; use None"
    )


def _refuse(key: Any, out: _Encoding, depth: int) -> None:
    raise UnsupportedKeyError.of(
        key, "it may change while state is kept for it; use a tuple, bytes or a frozenset"
    )


Encoder = Callable[[Any, _Encoding, int], None]

_EXACT: dict[type, Encoder] = {
    type(None): lambda key, out, depth: out.append(_NONE),
    bool: lambda key, out, depth: _encode_integer(int(key), out, depth),
    int: _encode_integer,
    float: _encode_float,
    NaN: lambda key, out, depth: out.append(_NAN),
    decimal.Decimal: _encode_decimal,
    fractions.Fraction: _encode_rational,
    complex: _encode_complex,
    str: _encode_text,
    bytes: _encode_bytes,
    tuple: _encode_tuple,
    frozenset: _encode_set,
    datetime.datetime: _encode_datetime,
    datetime.date: _encode_date,
    datetime.time: _encode_time,
    datetime.timedelta: _encode_duration,
    uuid.UUID: _encode_uuid,
    PurePosixPath: _encode_path,
    list: _refuse,
    dict: _refuse,
    set: _refuse,
    bytearray: _refuse,
    np.ndarray: _refuse,
    memoryview: lambda key, out, depth: _encode_bytes(bytes(key), out, depth),
}
"""Encoders by type; also used for subclasses that inherit the type's equality."""

_FOUND: dict[type, Encoder] = {}
"""Encoders of other classes, added when a class is first met."""


def _encoder_of(key: Any) -> Encoder:
    kind = type(key)
    found = _FOUND.get(kind)
    if found is None:
        found = _FOUND[kind] = _find_encoder(key, kind)
    return found


def _find_encoder(key: Any, kind: type) -> Encoder:
    if isinstance(key, np.generic):
        return _encode_numpy
    if isinstance(key, pa.Scalar):
        return _encode_arrow
    for base, encoder in _EXACT.items():
        if isinstance(key, base) and (
            (kind.__eq__ is base.__eq__ and kind.__hash__ is base.__hash__)
            or (issubclass(base, datetime.datetime | datetime.timedelta) and is_of_pandas(kind))
        ):
            return encoder
    if is_of_pandas(kind) and kind.__name__ == "NAType":
        return _refuse_missing
    equality: Any = kind.__eq__
    if isinstance(key, enum.Enum) and equality is object.__eq__:
        return _encode_enum
    if isinstance(key, type):
        return _encode_name
    names = compared_fields(kind)
    if names is not None:
        return _encoder_of_fields(names)
    if hasattr(kind, "__pydantic_fields__"):
        return _encode_pydantic
    return _encode_object


def is_number_or_text(encoded: bytes) -> bool:
    """Return whether the encoding is that of a Python number or text."""
    return encoded[0] in (_INTEGER, _FLOAT, _NAN, _TEXT)


class EqualityChecks:
    """Finds keys that are equal in Python but have different encodings, and so would have different
    state. Remembers a bounded number of earlier keys."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._encodings: dict[Any, bytes] = {}

    def has_to_look_at(self, key: Any) -> bool:
        """Check that earlier keys equal to *key* have the same encoding. Returns whether an equal
        key could have another encoding, so that every further equal key has to be checked, too;
        False: it cannot. Raises UnsupportedKeyError if an earlier key equals *key* and has another
        encoding."""
        encoded, is_possible = encode_to_check(key)
        if is_possible:
            known = self._encodings.get(key)
            if known is None:
                if len(self._encodings) >= self._limit:
                    self._encodings.clear()
                self._encodings[key] = encoded
            elif known != encoded:
                raise UnsupportedKeyError.of(
                    key,
                    f"{key!r} equals an earlier key and consists of other parts, so that another "
                    "process could not know that they are equal; use what makes them equal as the "
                    "key",
                )
        return is_possible


# --- decoding -------------------------------------------------------------------------------------


def decode_key(encoded: bytes) -> Any:
    """Return a key equal to the encoded one, such as ``1`` for ``True``; a time is in UTC.
    Raises ValueError if the bytes are not one key, or the key is an object of a class."""
    key, end = decode_first_key(encoded, 0)
    if end != len(encoded):
        raise ValueError(f"{len(encoded) - end} bytes follow the encoded key")
    return key


def decode_first_key(encoded: bytes, at: int) -> tuple[Any, int]:
    """Return (the key whose encoding begins at *at*, the position after the encoding).
    Raises ValueError if the bytes are not a key, or the key is an object of a class."""
    try:
        return _decode(encoded, at)
    except (IndexError, struct.error, UnicodeDecodeError, ZeroDivisionError) as error:
        raise ValueError(f"this is no encoded key: {error}") from error


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise ValueError(f"byte {at} of the encoded key, 0x{tag:02x}, begins no key")
    return decoder(data, at + 1)


def _decode_integer(data: bytes, at: int) -> tuple[int, int]:
    [size] = struct.unpack_from(">H", data, at)
    is_negative = size < _ZERO_SIZE
    size = _ZERO_SIZE - 1 - size if is_negative else size - _ZERO_SIZE
    end = at + 2 + size
    if end > len(data):
        raise ValueError(f"the encoded key ends within an integer of {size} bytes")
    value = int.from_bytes(data[at + 2 : end], "big")
    return value - (1 << 8 * size) + 1 if is_negative else value, end


def _decode_float(data: bytes, at: int) -> tuple[float, int]:
    [bits] = struct.unpack_from(">Q", data, at)
    bits ^= _SIGN if bits & _SIGN else _ALL_BITS
    [value] = struct.unpack(">d", struct.pack(">Q", bits))
    return value, at + 8


def _decode_rational(data: bytes, at: int) -> tuple[fractions.Fraction, int]:
    numerator, at = _decode(data, at)
    denominator, at = _decode(data, at)
    return fractions.Fraction(numerator, denominator), at


def _decode_complex(data: bytes, at: int) -> tuple[complex, int]:
    real, at = _decode(data, at)
    imaginary, at = _decode(data, at)
    return complex(real, imaginary), at


def _decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(_END, at)
    while end >= 0 and data[end + 1 : end + 2] == _ESCAPED_ZERO[1:]:
        end = data.find(_END, end + 2)
    if end < 0:
        raise ValueError("the encoded key ends within a text")
    return data[at:end].replace(_ESCAPED_ZERO, b"\x00"), end + 1


def _decode_text(data: bytes, at: int) -> tuple[str, int]:
    encoded, at = _decode_bytes(data, at)
    return encoded.decode("utf-8", "surrogatepass"), at


def _decode_parts(data: bytes, at: int) -> tuple[list[Any], int]:
    parts = []
    while data[at] != _END:
        part, at = _decode(data, at)
        parts.append(part)
    return parts, at + 1


def _decode_tuple(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    parts, at = _decode_parts(data, at)
    return tuple(parts), at


def _decode_set(data: bytes, at: int) -> tuple[frozenset[Any], int]:
    parts, at = _decode_parts(data, at)
    return frozenset(parts), at


def _decode_date(data: bytes, at: int) -> tuple[datetime.date, int]:
    ordinal, at = _decode(data, at)
    return datetime.date.fromordinal(ordinal), at


def _decode_datetime(data: bytes, at: int) -> tuple[Any, int]:
    nanos, at = _decode(data, at)
    return _time_of(nanos, _EPOCH, pa.timestamp("ns")), at


def _decode_instant(data: bytes, at: int) -> tuple[Any, int]:
    nanos, at = _decode(data, at)
    return _time_of(nanos, _AWARE_EPOCH, pa.timestamp("ns", "UTC")), at


def _time_of(nanos: int, zero: Any, kind: pa.DataType) -> Any:
    """Return the time *nanos* nanoseconds after *zero*, as a Python value if that can hold the
    time, else as an Arrow scalar. So equal times become equal values. *kind*: the Arrow type."""
    try:
        if nanos % 1000 == 0:
            return zero + _MICROSECOND * (nanos // 1000)
        return pa.scalar(nanos, kind)
    except OverflowError as error:
        raise UnsupportedKeyError.of(nanos, f"{nanos} ns are out of the range of {kind}") from error


def _decode_time(data: bytes, at: int) -> tuple[datetime.time, int]:
    micros, at = _decode(data, at)
    is_aware, at = _decode(data, at)
    local = min(max(micros, 0), _DAY - 1)  # an aware time may be on another day in UTC
    moment = (_EPOCH + _MICROSECOND * local).time()
    if not is_aware:
        return moment, at
    zone = datetime.timezone(_MICROSECOND * (local - micros))
    return moment.replace(tzinfo=zone), at


def _decode_duration(data: bytes, at: int) -> tuple[Any, int]:
    nanos, at = _decode(data, at)
    return _time_of(nanos, datetime.timedelta(0), pa.duration("ns")), at


def _decode_uuid(data: bytes, at: int) -> tuple[uuid.UUID, int]:
    return uuid.UUID(bytes=data[at : at + 16]), at + 16


NO_TIME = np.datetime64("NaT", "ns")
"""The single object that stands for NumPy's and pandas' NaT, which do not equal themselves."""

_DECODERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    _NONE: lambda data, at: (None, at),
    _INTEGER: _decode_integer,
    _FLOAT: _decode_float,
    _RATIONAL: _decode_rational,
    _COMPLEX: _decode_complex,
    _NAN: lambda data, at: (NAN, at),
    _TEXT: _decode_text,
    _BYTES: _decode_bytes,
    _TUPLE: _decode_tuple,
    _SET: _decode_set,
    _DATE: _decode_date,
    _TIME: _decode_time,
    _DATETIME: _decode_datetime,
    _INSTANT: _decode_instant,
    _DURATION: _decode_duration,
    _NO_TIME: lambda data, at: (NO_TIME, at),
    _UUID: _decode_uuid,
}
