"""Finds the types of the columns of CSV files from the texts of their fields.

Each field has a *class*: integer, number, truth value, date, time, text. A column gets the type
that holds all of its classes, so the order of fields and their division into blocks and files do
not matter. A type that would lose part of a field, such as leading zeros or last digits, is not
used. The column is text then.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.streaming.records.exact_numbers import is_exact

Classes = frozenset[str]
"""Classes of the fields of a column, without fields that are empty or stand for no value."""

NOTHING: Final[Classes] = frozenset()
INTEGER, LONG, NUMBER, TRUTH, DATE, TIME = "integer", "long", "number", "truth", "date", "time"
"""A long has more digits than a double holds. A number has a fraction, exponent or infinity."""
LOCAL, LOCAL_NS, ZONED, ZONED_NS, FAR, TEXT = (
    "local",
    "local ns",
    "zoned",
    "zoned ns",
    "far",
    "text",
)
"""Timestamps without and with an offset, each also with more than six digits of a fraction ("ns").
FAR: a day outside the range of nanoseconds."""

NULLS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
         "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip
"""Fields that stand for null in columns that are not text, as in Arrow and pandas."""


@cache
def _nulls() -> pa.StringArray:
    return pa.array(NULLS)  # only when needed: it loads pandas


_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
_CLOCK_NS = r"[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{7,9}"
_ZONE = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
_INTEGER = r"^(?:0|-?[1-9][0-9]{0,18})$"
_EXPONENT = r"[eE][+-]?[0-9]+"
_NUMBER = (
    rf"^(?:-0|-?(?:(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:{_EXPONENT})?"
    rf"|(?:0|[1-9][0-9]*){_EXPONENT}|(?i:inf|infinity)))$"
)
_TRUTH = r"^(?:true|True|TRUE|false|False|FALSE)$"
_PATTERNS = {
    NUMBER: _NUMBER,
    INTEGER: _INTEGER,
    TRUTH: _TRUTH,
    DATE: f"^{_DAY}$",
    LOCAL: f"^{_DAY}[ T]{_CLOCK}$",
    ZONED: f"^{_DAY}[ T]{_CLOCK}{_ZONE}$",
    TIME: f"^{_CLOCK}$",
    LOCAL_NS: f"^{_DAY}[ T]{_CLOCK_NS}$",
    ZONED_NS: f"^{_DAY}[ T]{_CLOCK_NS}{_ZONE}$",
}
_NEAR_YEARS = r"^(?:1[7-9]|20|21|22[0-5])"
"""Years that 64-bit nanoseconds cover completely: 1700 to 2259."""

_UTC_US, _UTC_NS = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")
_TYPES: tuple[tuple[pa.DataType, Classes], ...] = (
    (pa.int64(), frozenset({INTEGER, LONG})),
    (pa.float64(), frozenset({INTEGER, NUMBER})),
    (pa.bool_(), frozenset({TRUTH})),
    (pa.date32(), frozenset({DATE, FAR})),
    (pa.time64("us"), frozenset({TIME})),
    (pa.timestamp("us"), frozenset({DATE, LOCAL, FAR})),
    (pa.timestamp("ns"), frozenset({DATE, LOCAL, LOCAL_NS})),
    (_UTC_US, frozenset({ZONED, FAR})),
    (_UTC_NS, frozenset({ZONED, ZONED_NS})),
)
"""Types and the classes that they hold. A column gets the first type that holds all its classes."""

_MOST_EXACT_DIGITS = 15
"""A double gives back any number with so many digits."""
_FIRST, _LAST = (
    int(np_time.astype("int64"))
    for np_time in (np.datetime64("0001-01-01", "us"), np.datetime64("9999-12-31T23:59:59.999999"))
)
"""First and last microsecond since 1970 that Python's datetime holds."""


def type_of(classes: Classes) -> pa.DataType:
    """Return the type of a column: text if no other type holds all classes, or without classes."""
    if not classes:
        return pa.string()
    return next((kind for kind, held in _TYPES if classes <= held), pa.string())


def classes_of(column: pa.StringArray, likely: Classes = NOTHING) -> Classes:
    """Return the classes of the fields of a column, looking for the *likely* classes first."""
    found: Classes = NOTHING
    rest = _with_values(column)
    for is_trimmed in (False, True):
        if is_trimmed:
            rest = _with_values(_trimmed(rest))
        for name in sorted(_PATTERNS, key=lambda name: name not in likely):  # no text fits two
            if not len(rest):
                return found
            matches = pc.match_substring_regex(rest, _PATTERNS[name])
            if pc.any(matches).as_py():
                is_all = pc.all(matches).as_py()
                found |= _exactly(name, rest if is_all else rest.filter(matches))
                if is_all or TEXT in found:
                    return found
                rest = rest.filter(pc.invert(matches))
    return found if not len(rest) else found | {TEXT}


def _with_values(column: pa.StringArray) -> pa.StringArray:
    stands_for_none = pc.is_in(column, value_set=_nulls())
    if not pc.any(stands_for_none).as_py():
        return column
    return column.filter(pc.invert(stands_for_none))


def _trimmed(column: pa.StringArray) -> pa.StringArray:
    return pc.ascii_trim(column, " \t")


def _exactly(name: str, texts: pa.StringArray) -> Classes:
    """Return the classes of texts that look like the class *name*, after a check of their values.
    For example, numbers that a double does not hold exactly are of class text."""
    try:
        if name == INTEGER:
            texts.cast(pa.int64())
            return frozenset({INTEGER} if _are_exact(texts) else {INTEGER, LONG})
        if name == NUMBER:
            return frozenset({NUMBER if _are_exact(texts) else TEXT})
        if name == TIME:
            _times(texts)
        if name in (TRUTH, TIME):
            return frozenset({name})
        is_ns = name in (LOCAL_NS, ZONED_NS)
        zone = "UTC" if name in (ZONED, ZONED_NS) else None
        moments = texts.cast(pa.timestamp("ns" if is_ns else "us", zone))
    except pa.ArrowInvalid:  # 20 digits, the thirteenth month, hour 24
        return frozenset({TEXT})
    if pc.all(pc.match_substring_regex(texts, _NEAR_YEARS)).as_py():
        return frozenset({name})
    if is_ns:
        return frozenset({TEXT})
    span = pc.min_max(moments.cast(pa.int64()))
    is_held = span["min"].as_py() >= _FIRST and span["max"].as_py() <= _LAST
    return frozenset({name, FAR} if is_held else {TEXT})


def _are_exact(texts: pa.StringArray) -> bool:
    """Return whether doubles give back every digit of these numbers."""
    may_differ = pc.or_(
        pc.greater(pc.binary_length(texts), _MOST_EXACT_DIGITS),
        pc.or_(pc.match_substring(texts, "e"), pc.match_substring(texts, "E")),
    )
    if not pc.any(may_differ).as_py():
        return True
    texts = texts.filter(may_differ)
    differ = pc.not_equal(texts.cast(pa.float64()).cast(pa.string()), texts)
    return all(map(is_exact, texts.filter(differ).to_pylist()))


def _times(texts: pa.StringArray) -> pa.Array:
    """Convert texts to times of day. Raises ArrowInvalid for a text that is no time."""
    days = pc.binary_join_element_wise("1970-01-01T", texts, "")
    return days.cast(pa.timestamp("us")).cast(pa.time64("us"))


def converted(column: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Convert a column to a type from :func:`type_of`.

    Raises:
        ArrowInvalid: a field has a class that the type does not hold.
    """
    if pa.types.is_string(kind):
        return column
    held = next(held for one, held in _TYPES if one == kind)
    if not classes_of(column, held) <= held:
        raise pa.ArrowInvalid(f"a field is not of type {kind}")
    return cast(column, kind)


def cast(column: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Convert a column to a type that all its fields are known to have."""
    if pa.types.is_string(kind):
        return column
    convert = _times if pa.types.is_time(kind) else lambda texts: texts.cast(kind)
    texts = pc.if_else(pc.is_in(column, value_set=_nulls()), None, column)
    try:
        return convert(texts)
    except pa.ArrowInvalid:  # perhaps because of spaces around a field
        texts = _trimmed(column)
        return convert(pc.if_else(pc.is_in(texts, value_set=_nulls()), None, texts))


def declared(column: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Convert a column to a type that the user has declared. Fractions may be rounded.

    Raises:
        ArrowInvalid: a field is not a value of the type.
        ArrowNotImplementedError: values of this type have no text form.
    """
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(kind)
    if pa.types.is_decimal(kind):
        return _decimals(column, kind)
    if pa.types.is_integer(kind):
        texts = _trimmed(column)
        texts = pc.if_else(pc.is_in(texts, value_set=_nulls()), None, texts)
        if pc.all(pc.match_substring_regex(texts, r"^[+-]?[0-9]+$")).as_py() is False:
            raise pa.ArrowInvalid("a field is no integer")
        return pc.replace_substring_regex(texts, r"^\+", "").cast(kind)
    if pa.types.is_time(kind):
        return cast(column, pa.time64("us")).cast(kind)
    return cast(column, kind)


def _decimals(column: pa.StringArray, kind: pa.DataType) -> pa.Array:
    texts = [None if text in NULLS else text.strip() for text in _trimmed(column).to_pylist()]
    try:
        numbers = [None if text is None else Decimal(text) for text in texts]
        return pa.array(numbers, kind)
    except InvalidOperation as error:
        raise pa.ArrowInvalid(f"a field is no number: {error}") from None
