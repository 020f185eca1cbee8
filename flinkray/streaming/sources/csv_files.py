"""Reads CSV files as batches of columns, and finds the types of the columns from their texts.

Each field has a *class*: integer, number, truth value, date, time, text. A column gets the type
that holds all of its classes, so the order of fields and their division into blocks and files do
not matter. A type that would lose part of a field, such as leading zeros or last digits, is not
used. The column is text then.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from flinkray.core.arguments import first_twice
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.records.number_text import is_exact
from flinkray.streaming.sources.file_input import (
    Reading,
    misread,
    open_as_utf8,
    open_text,
    shown,
    undecodable,
)

csv.field_size_limit(sys.maxsize)  # Python's default limit would refuse fields of more than 128 kB

_BLOCK = 1 << 20
"""Bytes of a block, Arrow's default. Offsets of splits count batches of this size."""

_LARGEST_BLOCK = 64 << 20
"""Bytes. Largest block that is tried if a row does not fit into a smaller one.
Several blocks are in memory at once, and an unclosed quote would take the whole file."""

_PARSE = pa_csv.ParseOptions(newlines_in_values=True)

_TOO_SMALL = ("straddles two block boundaries", "Empty CSV file or block")
"""Arrow's error texts for rows larger than a block, and for a first block without a row."""


@dataclass(frozen=True)
class CsvOptions:
    """The user's options for CSV files."""

    column_names: tuple[str, ...] | None = None
    """Column names of files that begin with a record. None: the first line has the names."""
    encoding: str | None = None
    """Encoding of the files. None: UTF-8, or the encoding of the byte order mark."""
    column_types: dict[str, pa.DataType] = field(default_factory=dict)
    """Types of the columns whose types are declared, by name."""


def names_of(path: str, options: CsvOptions) -> list[str] | None:
    """Return the column names of a file: those of *options*, else of its first line. None: the file
    is empty. Raises StreamError: two columns have the same name, or the file is not text."""
    with (
        Reading(path, "CSV", options.encoding),
        open_text(path, options.encoding) as file,
    ):
        try:
            first = next(filter(None, csv.reader(file)), None)
        except csv.Error as error:
            raise StreamError(f"{shown(path)} cannot be read as CSV: {error}") from None
    if first is None or options.column_names is not None:
        return None if first is None else list(options.column_names or ())
    twice = first_twice(first)
    if twice is not None:
        raise StreamError(
            f"{shown(path)} has more than one column named {text_of(twice)}, of which one would "
            "be lost: give the columns names of their own, or read the file with a CsvReaderFormat"
        )
    return first


# --- types ----------------------------------------------------------------------------------------


def find_classes(
    path: str, options: CsvOptions, found: dict[str, Classes], most: int | None
) -> int:
    """Add the classes (integer, date, text, …) of all fields of a file to *found*, by column.
    Returns the number of bytes searched. *most*: bytes after which the search may stop. None:
    search the whole file."""
    names = names_of(path, options)
    if names is None:
        return 0
    for name in names:
        found.setdefault(name, NOTHING)
    seen = 0
    for batch in _texts(path, names, options):
        for name in names:
            if name not in options.column_types and TEXT not in found[name]:
                found[name] |= classes_of(batch[name], found[name])
        seen += batch.nbytes
        if most is not None and seen >= most:
            break
    return seen


def csv_schema(found: dict[str, Classes], options: CsvOptions) -> pa.Schema:
    """Return the schema of a source: the columns in *found*, in this order, with the declared type
    or the type that follows from the classes of the fields."""
    declared_types = options.column_types
    return pa.schema(
        [(name, declared_types.get(name, type_of(classes))) for name, classes in found.items()]
    )


# --- reading --------------------------------------------------------------------------------------


def read_csv(
    path: str, schema: pa.Schema, options: CsvOptions, is_of_all: bool
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in the source's schema, as batches. Missing columns are null.
    *is_of_all*: the types were found from all fields, so fields are not checked again. Raises
    StreamError: the file is not CSV, has other columns, or a field does not fit its type."""
    names = names_of(path, options)
    if names is None:
        return
    for name in names:
        if name not in schema.names:
            raise StreamError(
                f"{shown(path)}, line 1, has a column {text_of(name)} that no file had when the "
                f"source found its columns, {schema.names}: declare it as one of column_types"
            )
    before = 0
    convert = cast if is_of_all else converted
    for batch in _texts(path, names, options):
        yield _of_schema(path, before, batch, schema, options, convert)
        before += batch.num_rows


def _of_schema(
    path: str,
    before: int,
    batch: pa.RecordBatch,
    schema: pa.Schema,
    options: CsvOptions,
    of_found: Callable[[pa.StringArray, pa.DataType], pa.Array],
) -> pa.RecordBatch:
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, kind))
            continue
        convert = declared if name in options.column_types else of_found
        column = batch[name]
        try:
            arrays.append(convert(column, kind))
        except pa.ArrowInvalid as error:
            raise _misfit(path, before, batch[name], name, kind, convert, options) from error
        except pa.ArrowNotImplementedError as error:
            raise StreamError(
                f"column {name!r} is declared as {kind}, and no field of CSV is that: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _misfit(
    path: str,
    before: int,
    column: pa.StringArray,
    name: str,
    kind: pa.DataType,
    convert: Callable[[pa.StringArray, pa.DataType], pa.Array],
    options: CsvOptions,
) -> StreamError:
    """Return the error for the first field of *column* that does not fit the type *kind*. *before*:
    number of rows before the column's first field. *convert*: converts fields to the type."""
    begin, end = 0, len(column)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            convert(column.slice(begin, middle - begin), kind)
            begin = middle
        except pa.ArrowInvalid:
            end = middle
    text = text_of(column[begin].as_py())
    line, last_line = _lines_of(path, before + begin, options)
    if name in options.column_types:
        reason = f"its column {name!r} is declared as {kind}"
    else:
        reason = (
            f"its column {name!r} was found to be {kind} from what was looked at: declare the "
            "column, as in column_types={" + f"{name!r}: Types.STRING()" + "}"
        )
    made = misread(path, options.encoding, last_line)
    return made(f"{shown(path)}, line {line}: {text} does not fit, since {reason}")


def _lines_of(path: str, row: int, options: CsvOptions) -> tuple[int, int]:
    """Return the numbers of the first and last line, from 1, of row number *row*, from 0."""
    if options.column_names is None:
        row += 1
    with open_text(path, options.encoding) as file:
        reader = csv.reader(file)
        ends = [0]

        def records() -> Iterator[list[str]]:
            for fields in reader:
                if fields:
                    yield fields
                ends[0] = reader.line_num

        next(islice(records(), row, None), None)
        return ends[0] + 1, reader.line_num


def _texts(path: str, names: Sequence[str], options: CsvOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in batches, with all columns as text.
    If a row does not fit into a block of the parser, larger blocks are used from that row on."""
    block, given = _BLOCK, 0
    while True:
        try:
            with Reading(path, "CSV", options.encoding):
                skip = given
                for batch in _batches(path, names, options, block):
                    part = batch.slice(min(skip, batch.num_rows))
                    skip -= batch.num_rows - part.num_rows
                    if part.num_rows:
                        given += part.num_rows
                        yield part
                return
        except StreamError as error:
            if not any(text in str(error) for text in _TOO_SMALL):
                raise _told(path, names, options, error) from None
            if options.column_names is None and not _has_rows(path, options):
                return  # for Arrow, a header line without a line end is not a whole block
            if block >= _LARGEST_BLOCK:
                raise StreamError(
                    f"{shown(path)} cannot be read as CSV: it has a row of more than {block} bytes,"
                    " a quote that is not closed, or as many blank lines before the first row"
                ) from None
            block *= 4


def _has_rows(path: str, options: CsvOptions) -> bool:
    with open_text(path, options.encoding) as file:
        return len(list(islice(filter(None, csv.reader(file)), 2))) > 1


def _batches(
    path: str, names: Sequence[str], options: CsvOptions, block: int
) -> Iterator[pa.RecordBatch]:
    read = pa_csv.ReadOptions(column_names=options.column_names, block_size=block)
    texts = pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    with (
        open_as_utf8(path, options.encoding) as file,
        pa_csv.open_csv(file, read, _PARSE, texts) as batches,
    ):
        yield from batches


def _told(path: str, names: Sequence[str], options: CsvOptions, error: StreamError) -> StreamError:
    """Return a clearer error in place of Arrow's *error*: it names the line with too many or few
    fields, or says that bytes are no text. Other errors are returned unchanged."""
    if "invalid UTF8" in str(error):
        return undecodable(path, options.encoding, "it has bytes that are no text")
    if "Expected " not in str(error):
        return error
    with open_text(path, options.encoding) as file:
        reader, line = csv.reader(file), 1
        for fields in reader:
            if fields and len(fields) != len(names):
                return misread(path, options.encoding, reader.line_num)(
                    f"{shown(path)} cannot be read as CSV: line {line} has {len(fields)} fields, "
                    f"and there are {len(names)} columns: Expected {len(names)} columns"
                )
            line = reader.line_num + 1
    return error


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
    """Return the classes (integer, date, text, …) that occur among the fields of a column. The
    classes in *likely* are tried first, which is faster."""
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
    """Return the classes of texts that look like the class *name*, as their values tell: for
    example, numbers of which a double would lose digits are of class text."""
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
    """Return whether a conversion of these numbers to doubles keeps every digit."""
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
    """Return texts as times of day. Raises ArrowInvalid for a text that is no time."""
    days = pc.binary_join_element_wise("1970-01-01T", texts, "")
    return days.cast(pa.timestamp("us")).cast(pa.time64("us"))


def converted(column: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Return a column of texts as *kind*, a type from :func:`type_of`. Raises ArrowInvalid: a field
    has a class that the type does not hold."""
    if pa.types.is_string(kind):
        return column
    held = next(held for one, held in _TYPES if one == kind)
    if not classes_of(column, held) <= held:
        raise pa.ArrowInvalid(f"a field is not of type {kind}")
    return cast(column, kind)


def cast(column: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Return a column of texts as *kind*, a type that all its fields are known to fit."""
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
    """Return a column of texts as *kind*, a type that the user has declared. Fractions may be
    rounded. Raises ArrowInvalid: a field is no value of the type. ArrowNotImplementedError: the
    type has no text form."""
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
