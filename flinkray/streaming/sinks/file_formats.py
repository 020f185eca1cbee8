"""File formats of sinks: text, CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flinkray.streaming.columnar.conversion import HALF_A_PAIR, batch_of_type, block_to_batch
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.json_text import to_json
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation, stringifier
from flinkray.streaming.records.widening import wider_type


class FileFormat(ABC):
    """Interface of file formats, which turn records into the bytes of files."""

    suffix: str

    def of_type(self, type_info: TypeInformation | None) -> FileFormat:
        """Return a format for records of the declared type: this format, or a variant for that
        type. *type_info* None: the type is unknown."""
        return self

    @abstractmethod
    def open(self, path: Path) -> PartFile:
        """Create the file *path*, and return the object that writes records to it."""


class OtherColumnsError(Exception):
    """A file cannot hold records with these columns; they have to be written to a new file."""


class PartFile(ABC):
    """A file of a sink that is being written. If it cannot hold some records because of their
    columns, the write method writes none of them and raises OtherColumnsError; the sink then
    finishes the file and writes the records to the next one."""

    @abstractmethod
    def write(self, block: Block) -> None: ...

    @abstractmethod
    def write_columns(self, columns: Columns) -> None: ...

    @abstractmethod
    def size(self) -> int:
        """Return the size in bytes, exact or approximate."""

    @abstractmethod
    def finish(self) -> None:
        """Write everything to the disk and close the file, which is complete and durable then."""

    def go_on_from(self, other: PartFile) -> None:  # noqa: B027 - most have nothing to take over
        """Take over the schema of *other*, the file before this one, which was finished because the
        next records have other columns. The schema of this file then has the columns of both.
        Called before anything is written."""

    def abandon(self) -> None:
        """Close the file without completing it, because it will be removed."""
        self.finish()


class TextPart(PartFile):
    """A UTF-8 text file. *encode* converts a record to text, with its line end."""

    def __init__(self, path: Path, encode: Callable[[Any], str], header: str = "") -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(header)
        self._encode = encode

    def write(self, block: Block) -> None:
        encode = self._encode
        records = iter(block.values)
        self.reading = block, records  # for error messages
        text = "".join([encode(value) for value in records])
        try:
            self._file.write(text)
        except UnicodeEncodeError:
            self._refuse_half_pairs(block)
            raise

    def _refuse_half_pairs(self, block: Block) -> None:
        records = iter(block.values)
        self.reading = block, records
        for value in records:
            try:
                self._encode(value).encode()
            except UnicodeEncodeError:
                raise StreamError(f"{text_of(value)} cannot be written: {HALF_A_PAIR}") from None

    def write_columns(self, columns: Columns) -> None:
        self.write(columns.to_block())

    def size(self) -> int:
        return self._file.tell()

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


class TextFormat(FileFormat):
    """Writes one value per line, in Java's notation, as ``stream.print()`` does."""

    suffix = "txt"

    def __init__(self, type_info: TypeInformation | None = None) -> None:
        self._type_info = type_info

    def of_type(self, type_info: TypeInformation | None) -> FileFormat:
        return self if type_info is None else TextFormat(type_info)

    def open(self, path: Path) -> PartFile:
        text = stringifier(self._type_info)
        return TextPart(path, lambda value: f"{text(value)}\n")


class JsonFormat(FileFormat):
    """Writes one JSON document per line. Rows with names become objects. Other rows and NumPy
    arrays become lists, at any depth. Dates, times, decimals and UUIDs become texts."""

    suffix = "json"

    def open(self, path: Path) -> PartFile:
        return TextPart(path, _json_line)


def _json_line(value: Any) -> str:
    try:
        return to_json(value, _json_form) + "\n"
    except (TypeError, ValueError) as error:
        raise StreamError(f"{text_of(value)} cannot be written as JSON: {error}") from error


_JSON_TEXTS = (date, time, timedelta, Decimal, UUID, np.datetime64, np.timedelta64)
"""Types that are written as by ``str``."""


def _json_form(value: Any) -> Any:
    if isinstance(value, Row):
        return list(value) if value._fields is None else value.as_dict()
    if isinstance(value, _JSON_TEXTS):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"{text_of(value)} of type {type(value).__name__} has no form there: map it to a text, "
        "a number, a list or a dictionary before"
    )


class CsvFormat(FileFormat):
    """Writes comma-separated values without a header line. A value that is no row or tuple is a
    single column. Fields are written as by ``str``. Collections and bytes are refused."""

    suffix = "csv"

    def open(self, path: Path) -> PartFile:
        return TextPart(path, _csv_line)


_BYTE_ORDER_MARK = "\ufeff"


_WITHOUT_CSV_FORM = (
    *(dict, list, tuple, Row, set, frozenset, np.ndarray),
    *(bytes, bytearray, memoryview),
)
"""Types of fields whose text CSV readers could not parse; Flink and Spark refuse maps, too."""


def _csv_line(value: Any) -> str:
    fields = value if isinstance(value, Row | tuple | list) else [value]
    for field in fields:
        if isinstance(field, _WITHOUT_CSV_FORM):
            raise StreamError(
                f"{text_of(value)} cannot be written as CSV: {text_of(field)} of type "
                f"{type(field).__name__} has no form there: map each record to a tuple of numbers, "
                "texts and times before, which are its columns in that order, or write 'json' or "
                "'parquet'"
            )
    line = _csv_record(fields, csv.QUOTE_MINIMAL)
    # Without quotes it would not be part of a file's first field.
    return _csv_record(fields, csv.QUOTE_ALL) if line.startswith(_BYTE_ORDER_MARK) else line


_LINE_END = "\r\n"
"""Fields that have one of these characters are quoted."""


def _csv_record(fields: Iterable[Any], quoting: Literal[0, 1]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator=_LINE_END, quoting=quoting).writerow(fields)
    return line.getvalue().removesuffix(_LINE_END) + "\n"


class _ParquetPart(PartFile):
    def __init__(self, path: Path, type_info: TypeInformation | None) -> None:
        self._file = path.open("wb")
        self._type_info = type_info
        self._writer: pq.ParquetWriter | None = None
        self._schema = pa.schema([])
        """Schema of the file.
        While nothing is written: schema of the earlier files that it continues."""
        self._bytes = 0

    def go_on_from(self, other: PartFile) -> None:
        if isinstance(other, _ParquetPart):
            self._schema = other._schema

    def write(self, block: Block) -> None:
        batch = block_to_batch(block, self._type_info)
        is_row = not isinstance(block.values[0], dict)
        if is_row and self._schema.names and set(batch.schema.names) != set(self._schema.names):
            raise StreamError(
                f"a Parquet file of columns {self._schema.names} was given rows of columns "
                f"{batch.schema.names}: give all rows the same fields, or make them dictionaries, "
                "which may lack some"
            )
        self._write(batch)

    def write_columns(self, columns: Columns) -> None:
        batch, declared = columns.batch, self._type_info
        self._write(batch if declared is None else batch_of_type(batch, declared))

    def _write(self, batch: pa.RecordBatch) -> None:
        schema = _with_columns(self._schema, batch.schema)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, schema)
        elif schema != self._schema:
            self._schema = schema
            raise OtherColumnsError
        self._schema = schema
        self._writer.write_batch(_fitting(batch, schema))
        self._bytes += batch.nbytes

    def size(self) -> int:
        return self._bytes

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._file.close()


def _with_columns(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return the schema of a file that holds batches of both schemas.
    It has all columns of both, each with the wider type. Timestamps of two time zones get the zone
    of *other*. Raises StreamError: a column has no common type."""
    if not schema.names or schema == other:
        return other
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for name, kind in zip(other.names, other.types, strict=True):
        known = kinds.get(name, kind)
        wide = wider_type(known, kind)
        if wide is None and pa.types.is_timestamp(known) and pa.types.is_timestamp(kind):
            wide = kind  # another zone: such batches get a file of their own
        if wide is None:
            raise StreamError(
                f"a Parquet file has {known} in column {name!r}, and was given {kind}: make all "
                "values of one kind, or declare the type of the stream"
            )
        kinds[name] = wide
    return pa.schema(list(kinds.items()), schema.metadata)


def _fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema == schema:
        return batch
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        place = batch.schema.get_field_index(name)
        try:
            arrays.append(
                pa.nulls(len(batch), kind) if place < 0 else batch.column(place).cast(kind)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise StreamError(
                f"a Parquet file has {kind} in column {name!r}, which does not hold a value: "
                f"{error}; make all values of one kind, or declare the type of the stream"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class ParquetFormat(FileFormat):
    """Writes Parquet files. The schema is that of *type_info* or, if it is None, of the declared
    type of the stream. If there is no declared type either, the schema follows the batches: a batch
    with other columns or wider types begins a new file, whose schema has the columns of both files.
    """

    suffix = "parquet"

    def __init__(self, type_info: TypeInformation | None = None) -> None:
        self._type_info = type_info

    def of_type(self, type_info: TypeInformation | None) -> FileFormat:
        is_said = self._type_info is not None or type_info is None or type_info.to_arrow() is None
        return self if is_said else ParquetFormat(type_info)

    def open(self, path: Path) -> PartFile:
        return _ParquetPart(path, self._type_info)


FORMATS: dict[str, type[FileFormat]] = {
    "text": TextFormat,
    "json": JsonFormat,
    "csv": CsvFormat,
    "parquet": ParquetFormat,
}
