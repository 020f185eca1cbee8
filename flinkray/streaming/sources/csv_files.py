"""Reads CSV files as batches of columns, with the schema of their source."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
import pyarrow.csv as pa_csv

from flinkray.core.arguments import first_twice
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.sources.csv_columns import (
    NOTHING,
    TEXT,
    Classes,
    cast,
    classes_of,
    converted,
    declared,
    type_of,
)
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
    """Return the column names of a file. None: the file is empty.

    Raises:
        StreamError: two columns have the same name, or the file is not text.
    """
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
    """Find the classes of all fields of a file.

    Args:
        found: classes by column. Is added to.
        most: bytes after which the search may stop. None: search the whole file.

    Returns:
        The number of bytes searched.
    """
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
    """Return the schema of a source, with columns in the order in which they were found."""
    declared_types = options.column_types
    return pa.schema(
        [(name, declared_types.get(name, type_of(classes))) for name, classes in found.items()]
    )


# --- reading --------------------------------------------------------------------------------------


def read_csv(
    path: str, schema: pa.Schema, options: CsvOptions, is_of_all: bool
) -> Iterator[pa.RecordBatch]:
    """Read the rows with the columns of the source's schema. Missing columns are null.

    Args:
        is_of_all: all fields of the file were examined when the schema was found.

    Raises:
        StreamError: the file is not CSV, has other columns, or has a field that does not fit its
            column's type.
    """
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
    """Return the error for the first field that does not fit its column's type."""
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
    """Read the rows, with all columns as text.
    If a row does not fit into a block, larger blocks are used from that row on."""
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
    """Return an error that names the line with too many or few fields, or the bytes that are no
    text. Other errors are returned unchanged."""
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
