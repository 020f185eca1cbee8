"""What a key is: one canonical encoding, which says which keys are equal.

Two keys are equal if Python says so, in one process; the encoding carries that to every other
process, Python version and hash seed, and to disk.  So ``1``, ``1.0``, ``True``, ``Decimal(1)`` and
``numpy.int64(1)`` are one key, as they are one key of a dictionary, and so are two texts of the
same letters, two instants that differ in their zones only, and two objects of a dataclass with
equal fields.  NaN is one key, as in Flink, though it does not equal itself.

The bytes of integers sort as the integers do, and so do those of texts, bytes and tuples of these.

What has no equality of its own, or may be changed while state is kept for it, is no key
(:class:`UnsupportedKeyError`): lists, dictionaries, sets, arrays, objects without ``__eq__``.
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
from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.state.errors import StateError

MOST_NESTED = 64
"""Levels of a key within a key; what is deeper refers to itself, more likely than not."""

_NONE, _INTEGER, _FLOAT, _RATIONAL, _COMPLEX, _NAN = 0x01, 0x10, 0x11, 0x12, 0x13, 0x14
_TEXT, _BYTES, _TUPLE, _SET = 0x20, 0x21, 0x30, 0x31
_DATE, _TIME, _DATETIME, _INSTANT, _DURATION, _NO_TIME = 0x40, 0x41, 0x42, 0x43, 0x44, 0x45
_UUID, _ENUM, _NAME, _OBJECT, _LIST, _MAP = 0x50, 0x51, 0x52, 0x60, 0x61, 0x62

_END = 0x00
"""After the parts of what has any number of them; less than what any part begins with."""
_ESCAPED_ZERO = b"\x00\xff"
_ZERO_SIZE = 0x8000
_MOST_BYTES = 0x7FFF
_SIGN = 1 << 63
_ALL_BITS = (1 << 64) - 1

_EPOCH = datetime.datetime(1970, 1, 1)
_AWARE_EPOCH = _EPOCH.replace(tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_DAY = 86_400_000_000
"""Microseconds."""


class UnsupportedKeyError(StateError):
    """A value cannot be a key; the text says of which type it is, why, and what to do."""

    def __init__(self, key: object, reason: str) -> None:
        kind = type(key)
        super().__init__(f"a {kind.__module__}.{kind.__qualname__} cannot be a key: {reason}")


def encode_key(key: Any) -> bytes:
    """The canonical encoding.

    Raises:
        UnsupportedKeyError: there is none.
    """
    out = bytearray()
    _encode(key, out, 0)
    return bytes(out)


def _encode(key: Any, out: bytearray, depth: int) -> None:
    encoder = _EXACT.get(type(key))
    if encoder is None:
        encoder = _encoder_of(key)
    if depth > MOST_NESTED:
        raise UnsupportedKeyError(key, f"it is nested more than {MOST_NESTED} levels deep")
    encoder(key, out, depth)


# --- numbers --------------------------------------------------------------------------------------


def _encode_integer(key: int, out: bytearray, depth: int) -> None:
    size = (key.bit_length() + 7) // 8
    if size > _MOST_BYTES:
        raise UnsupportedKeyError(key, f"it has {size} bytes, more than {_MOST_BYTES}")
    # The size comes first, turned round below zero, so that greater numbers have greater bytes.
    if key >= 0:
        out += struct.pack(">BH", _INTEGER, _ZERO_SIZE + size)
        out += key.to_bytes(size, "big")
    else:
        out += struct.pack(">BH", _INTEGER, _ZERO_SIZE - 1 - size)
        out += (key + (1 << 8 * size) - 1).to_bytes(size, "big")


def _encode_float(key: float, out: bytearray, depth: int) -> None:
    if key != key:
        out.append(_NAN)
    elif key.is_integer():  # raises for neither infinity, which is no integer
        _encode_integer(int(key), out, depth)
    else:
        [bits] = struct.unpack(">Q", struct.pack(">d", key))
        out += struct.pack(">BQ", _FLOAT, bits ^ (_ALL_BITS if bits & _SIGN else _SIGN))


def _encode_decimal(key: decimal.Decimal, out: bytearray, depth: int) -> None:
    if key.is_nan():
        out.append(_NAN)
    elif key.is_infinite():
        _encode_float(math.copysign(math.inf, key), out, depth)
    else:
        _encode_fraction(key.as_integer_ratio(), out)


def _encode_rational(key: fractions.Fraction, out: bytearray, depth: int) -> None:
    _encode_fraction((key.numerator, key.denominator), out)


def _encode_fraction(ratio: tuple[int, int], out: bytearray) -> None:
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


def _encode_complex(key: complex, out: bytearray, depth: int) -> None:
    if key.imag == 0:
        _encode_float(key.real, out, depth)
        return
    out.append(_COMPLEX)
    _encode_float(key.real, out, depth)
    _encode_float(key.imag, out, depth)


# --- texts and what consists of parts -------------------------------------------------------------


def _encode_text(key: str, out: bytearray, depth: int) -> None:
    out.append(_TEXT)
    out += key.encode("utf-8", "surrogatepass").replace(b"\x00", _ESCAPED_ZERO)
    out.append(_END)


def _encode_bytes(key: bytes, out: bytearray, depth: int) -> None:
    out.append(_BYTES)
    out += key.replace(b"\x00", _ESCAPED_ZERO)
    out.append(_END)


def _encode_parts(tag: int, parts: Iterable[Any], out: bytearray, depth: int) -> None:
    out.append(tag)
    for part in parts:
        _encode(part, out, depth + 1)
    out.append(_END)


def _encode_tuple(key: Sequence[Any], out: bytearray, depth: int) -> None:
    _encode_parts(_TUPLE, key, out, depth)


def _encode_set(key: Iterable[Any], out: bytearray, depth: int) -> None:
    parts = []
    for item in key:
        part = bytearray()
        _encode(item, part, depth + 1)
        parts.append(bytes(part))
    out.append(_SET)
    out += b"".join(sorted(parts))
    out.append(_END)


# --- times ----------------------------------------------------------------------------------------


def _encode_date(key: datetime.date, out: bytearray, depth: int) -> None:
    out.append(_DATE)
    _encode_integer(key.toordinal(), out, depth)


def _encode_datetime(key: datetime.datetime, out: bytearray, depth: int) -> None:
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


def _encode_time(key: datetime.time, out: bytearray, depth: int) -> None:
    micros = (key.hour * 3600 + key.minute * 60 + key.second) * 1_000_000 + key.microsecond
    offset = key.utcoffset()
    out.append(_TIME)
    _encode_integer(micros - (0 if offset is None else offset // _MICROSECOND), out, depth)
    _encode_integer(0 if offset is None else 1, out, depth)


def _encode_duration(key: datetime.timedelta, out: bytearray, depth: int) -> None:
    micros = (key.days * 86_400 + key.seconds) * 1_000_000 + key.microseconds
    out.append(_DURATION)
    _encode_integer(micros * 1000 + getattr(key, "nanoseconds", 0), out, depth)


# --- classes --------------------------------------------------------------------------------------


def _encode_uuid(key: uuid.UUID, out: bytearray, depth: int) -> None:
    out.append(_UUID)
    out += key.bytes


def _encode_enum(key: enum.Enum, out: bytearray, depth: int) -> None:
    out.append(_ENUM)
    _encode_name(type(key), out, depth)
    # A union of flags has no name in every version of Python.
    _encode(key.value if isinstance(key, enum.Flag) else key.name, out, depth + 1)


def _encode_numpy(key: np.generic, out: bytearray, depth: int) -> None:
    if isinstance(key, np.datetime64 | np.timedelta64):
        if np.isnat(key):
            out.append(_NO_TIME)
            return
        is_time = isinstance(key, np.datetime64)
        whole = int(key.astype("datetime64[ns]" if is_time else "timedelta64[ns]").astype(np.int64))
        out.append(_DATETIME if is_time else _DURATION)
        _encode_integer(whole, out, depth)
    elif isinstance(key, np.longdouble):
        _encode_float(float(key), out, depth)
    elif isinstance(key, np.void | np.object_):
        _refuse(key, out, depth)
    else:
        _encode(key.item(), out, depth)


def _encode_arrow(key: pa.Scalar, out: bytearray, depth: int) -> None:
    _encode(key.as_py(), out, depth)


def _encode_name(key: Any, out: bytearray, depth: int) -> None:
    out.append(_NAME)
    _encode_text(key.__module__, out, depth)
    _encode_text(key.__qualname__, out, depth)


def _encode_fields(names: Callable[[Any], Iterable[str]]) -> Callable[[Any, bytearray, int], None]:
    def encode(key: Any, out: bytearray, depth: int) -> None:
        _require_equality(key)
        out.append(_OBJECT)
        _encode_name(type(key), out, depth)
        for name in names(key):
            _encode(getattr(key, name), out, depth + 1)
        out.append(_END)

    return encode


_encode_dataclass = _encode_fields(
    lambda key: [field.name for field in dataclasses.fields(key) if field.compare]
)
_encode_attrs = _encode_fields(
    lambda key: [field.name for field in type(key).__attrs_attrs__ if field.eq]
)


def _encode_pydantic(key: Any, out: bytearray, depth: int) -> None:
    _require_equality(key)
    out.append(_OBJECT)
    _encode_name(type(key), out, depth)
    for values in (key.__dict__, key.__pydantic_private__, key.__pydantic_extra__):
        _encode_part_of_object(values, out, depth + 1)
    out.append(_END)


def _encode_object(key: Any, out: bytearray, depth: int) -> None:
    """By what it is rebuilt from, as pickle does, but without its memory of shared parts."""
    _require_equality(key)
    reduced = key.__reduce_ex__(4)
    if isinstance(reduced, str):
        _encode_name(key, out, depth)
        return
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    out.append(_OBJECT)
    _encode_name(type(key), out, depth)
    if function is not copyreg.__newobj__:  # type: ignore[attr-defined]
        _encode_name(function, out, depth)
    for part in (arguments, state, items and list(items), pairs and dict(pairs)):
        _encode_part_of_object(part, out, depth + 1)
    out.append(_END)


def _encode_part_of_object(part: Any, out: bytearray, depth: int) -> None:
    """What an object consists of may be such that it could not be a key itself."""
    kind = type(part)
    if kind is dict:
        encoded = []
        for name, value in part.items():
            pair = bytearray()
            _encode_part_of_object(name, pair, depth + 1)
            _encode_part_of_object(value, pair, depth + 1)
            encoded.append(bytes(pair))
        out.append(_MAP)
        out += b"".join(sorted(encoded))
        out.append(_END)
    elif kind is list or kind is tuple:
        if depth > MOST_NESTED:
            raise UnsupportedKeyError(part, f"it is nested more than {MOST_NESTED} levels deep")
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


def _require_equality(key: Any) -> None:
    kind = type(key)
    if kind.__hash__ is None:
        raise UnsupportedKeyError(
            key, "it may change, and has no hash; use a tuple, a frozen dataclass or a text"
        )
    equality: Any = kind.__eq__
    if equality is object.__eq__:
        raise UnsupportedKeyError(
            key,
            "it has no equality of its own, so that two copies of it are two keys; "
            "use one of its fields, or give the class __eq__ and __hash__",
        )


def _refuse(key: Any, out: bytearray, depth: int) -> None:
    raise UnsupportedKeyError(
        key, "it may change while state is kept for it; use a tuple, bytes or a frozenset"
    )


Encoder = Callable[[Any, bytearray, int], None]

_EXACT: dict[type, Encoder] = {
    type(None): lambda key, out, depth: out.append(_NONE),
    bool: lambda key, out, depth: _encode_integer(int(key), out, depth),
    int: _encode_integer,
    float: _encode_float,
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
    list: _refuse,
    dict: _refuse,
    set: _refuse,
    bytearray: _refuse,
    np.ndarray: _refuse,
    memoryview: lambda key, out, depth: _encode_bytes(bytes(key), out, depth),
}
"""By type; what inherits the equality of one of them comes under it."""

_PANDAS_TIMES = (datetime.datetime, datetime.timedelta)
"""The bases of pandas' times, which have equality of their own: the same, and nanoseconds."""


def _encoder_of(key: Any) -> Encoder:
    kind = type(key)
    if isinstance(key, np.generic):
        return _encode_numpy
    if isinstance(key, pa.Scalar):
        return _encode_arrow
    for base, encoder in _EXACT.items():
        if isinstance(key, base) and (
            (kind.__eq__ is base.__eq__ and kind.__hash__ is base.__hash__)
            or (base in _PANDAS_TIMES and kind.__module__.partition(".")[0] == "pandas")
        ):
            return encoder
    if isinstance(key, enum.Enum):
        return _encode_enum
    if isinstance(key, type):
        return _encode_name
    if dataclasses.is_dataclass(kind):
        return _encode_dataclass
    if hasattr(kind, "__attrs_attrs__"):
        return _encode_attrs
    if hasattr(kind, "__pydantic_fields__"):
        return _encode_pydantic
    return _encode_object


def is_number_or_text(encoded: bytes) -> bool:
    """Whether a key of another type with this encoding equals a Python number or text."""
    return encoded[0] in (_INTEGER, _FLOAT, _NAN, _TEXT)


def has_generated_equality(kind: type) -> bool:
    """Whether keys of the type are equal exactly if their encodings are, without anybody's having
    to look: it is one of Python's, or its ``__eq__`` was made from its fields."""
    if kind in _EXACT or not hasattr(kind.__eq__, "__code__"):
        return True
    made_in = kind.__eq__.__code__.co_filename
    return made_in == "<string>" or made_in.startswith(_GENERATED)


_GENERATED = ("<attrs generated", "<frozen ")


# --- decoding -------------------------------------------------------------------------------------


def decode_key(encoded: bytes) -> Any:
    """A key that equals the one that was encoded: ``1`` for ``True`` or ``1.0``, a time in UTC.

    Raises:
        ValueError: these are not the bytes of one key, or of one of a class.
    """
    try:
        key, end = _decode(encoded, 0)
    except (IndexError, struct.error, UnicodeDecodeError, ZeroDivisionError) as error:
        raise ValueError(f"this is no encoded key: {error}") from error
    if end != len(encoded):
        raise ValueError(f"{len(encoded) - end} bytes follow the encoded key")
    return key


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
    if nanos % 1000:
        return np.datetime64(nanos, "ns"), at
    return _EPOCH + _MICROSECOND * (nanos // 1000), at


def _decode_instant(data: bytes, at: int) -> tuple[Any, int]:
    nanos, at = _decode(data, at)
    if nanos % 1000:
        return pa.scalar(nanos, pa.timestamp("ns", "UTC")), at
    return _AWARE_EPOCH + _MICROSECOND * (nanos // 1000), at


def _decode_time(data: bytes, at: int) -> tuple[datetime.time, int]:
    micros, at = _decode(data, at)
    is_aware, at = _decode(data, at)
    local = min(max(micros, 0), _DAY - 1)  # an aware time may be of another day in UTC
    moment = (_EPOCH + _MICROSECOND * local).time()
    if not is_aware:
        return moment, at
    zone = datetime.timezone(_MICROSECOND * (local - micros))
    return moment.replace(tzinfo=zone), at


def _decode_duration(data: bytes, at: int) -> tuple[Any, int]:
    nanos, at = _decode(data, at)
    if nanos % 1000:
        return np.timedelta64(nanos, "ns"), at
    return _MICROSECOND * (nanos // 1000), at


def _decode_uuid(data: bytes, at: int) -> tuple[uuid.UUID, int]:
    return uuid.UUID(bytes=data[at : at + 16]), at + 16


_DECODERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    _NONE: lambda data, at: (None, at),
    _INTEGER: _decode_integer,
    _FLOAT: _decode_float,
    _RATIONAL: _decode_rational,
    _COMPLEX: _decode_complex,
    _NAN: lambda data, at: (math.nan, at),
    _TEXT: _decode_text,
    _BYTES: _decode_bytes,
    _TUPLE: _decode_tuple,
    _SET: _decode_set,
    _DATE: _decode_date,
    _TIME: _decode_time,
    _DATETIME: _decode_datetime,
    _INSTANT: _decode_instant,
    _DURATION: _decode_duration,
    _NO_TIME: lambda data, at: (np.datetime64("NaT"), at),
    _UUID: _decode_uuid,
}
