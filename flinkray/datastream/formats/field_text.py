"""Conversion of values of declared types to text and back, by Java's rules."""

from __future__ import annotations

import base64
import datetime
import decimal
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.number_text import (
    java_double,
    java_float,
    java_time,
    java_timestamp,
)
from flinkray.streaming.records.typeinfo import TypeInformation, Types

Parse = Callable[[str], Any]
ToText = Callable[[Any], str]

BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
"""Type of ``bytes``, whose text is Base64."""

TEXTS = frozenset({Types.STRING(), Types.CHAR()})
BITS = {Types.BYTE(): 8, Types.SHORT(): 16, Types.INT(): 32, Types.LONG(): 64}
NUMBERS = frozenset(
    {*BITS, Types.FLOAT(), Types.DOUBLE(), Types.BIG_INT(), Types.BIG_DEC(), Types.BOOLEAN()}
)
"""Types whose values are never quoted."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"([+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))[dDfF]?", re.A)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.A)
_DATE = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_TIME = r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,9}))?"
_DATE_ALONE = re.compile(_DATE, re.A)
_TIME_ALONE = re.compile(f"{_TIME}Z?", re.A)
_TIMESTAMP = re.compile(f"{_DATE}[ T]{_TIME}Z?", re.A)


def no_such_type(kind: TypeInformation) -> StreamError:
    """Return an error which says that a format cannot write values of a type as text."""
    return StreamError(f"values of {kind!r} have no text in this format")


def _matched(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no {what}")
    return match


def parse_boolean(text: str) -> bool:
    """Parse a boolean: all texts but ``true`` are false, as for Java's ``Boolean.parseBoolean``."""
    return text.strip().lower() == "true"


def _parse_integer(text: str) -> int:
    return int(_matched(_INTEGER, text.strip(), "integer")[0])


def in_range(value: int, bits: int) -> int:
    """Return *value* if it fits into an integer of *bits* bits. Raises ValueError: it does not."""
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"{value} is no integer of {bits} bits")
    return value


def _integer_parser(bits: int) -> Parse:
    return lambda text: in_range(_parse_integer(text), bits)


def _parse_double(text: str) -> float:
    return float(_matched(_FLOAT, text.strip(), "number")[1])


def as_float(value: float) -> float:
    """Return the float of 32 bits that is nearest to *value*."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _parse_decimal(text: str) -> decimal.Decimal:
    return decimal.Decimal(_matched(_DECIMAL, text.strip(), "number")[0])


def _parse_date(text: str) -> datetime.date:
    year, month, day = map(int, _matched(_DATE_ALONE, text, "date").groups())
    return datetime.date(year, month, day)


def _microseconds(fraction: str | None) -> int:
    return int((fraction or "").ljust(6, "0")[:6])


def _parse_time(text: str) -> datetime.time:
    *parts, fraction = _matched(_TIME_ALONE, text, "time").groups()
    hour, minute, second = map(int, parts)
    return datetime.time(hour, minute, second, _microseconds(fraction))


def _parse_timestamp(text: str) -> datetime.datetime:
    *parts, fraction = _matched(_TIMESTAMP, text, "date and time").groups()
    year, month, day, hour, minute, second = map(int, parts)
    return datetime.datetime(year, month, day, hour, minute, second, _microseconds(fraction))


def _parse_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_PARSERS: dict[TypeInformation, Parse] = {
    **dict.fromkeys(TEXTS, str),
    Types.BOOLEAN(): parse_boolean,
    **{kind: _integer_parser(bits) for kind, bits in BITS.items()},
    Types.FLOAT(): lambda text: as_float(_parse_double(text)),
    Types.DOUBLE(): _parse_double,
    Types.BIG_INT(): _parse_integer,
    Types.BIG_DEC(): _parse_decimal,
    Types.SQL_DATE(): _parse_date,
    Types.SQL_TIME(): _parse_time,
    Types.SQL_TIMESTAMP(): _parse_timestamp,
    BYTES: _parse_bytes,
}


def parser_of(kind: TypeInformation) -> Parse | None:
    """Return the function that parses texts of a type. The function raises ValueError for a text
    that is no value of the type. None: values of the type consist of several values, such as rows.
    """
    return _PARSERS.get(kind)


_TEXTS: dict[TypeInformation, ToText] = {
    **dict.fromkeys(TEXTS, str),
    Types.BOOLEAN(): lambda value: "true" if value else "false",
    **{kind: (lambda value: str(int(value))) for kind in (*BITS, Types.BIG_INT())},
    Types.FLOAT(): java_float,
    Types.DOUBLE(): java_double,
    Types.BIG_DEC(): lambda value: str(decimal.Decimal(value)),
    Types.SQL_DATE(): lambda value: f"{value:%Y-%m-%d}",
    Types.SQL_TIME(): java_time,
    Types.SQL_TIMESTAMP(): java_timestamp,
    BYTES: lambda value: base64.b64encode(value).decode(),
}


def text_of(kind: TypeInformation) -> ToText | None:
    """Return the function that converts a value of the type to text. None: values of the type
    consist of several values, such as rows."""
    return _TEXTS.get(kind)
