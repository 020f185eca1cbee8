"""How records become the bytes of a file: text, CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import io
import json
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

from flinkray.streaming.columnar.conversion import batch_of_type, block_to_batch
from flinkray.streaming.columnar.widening import as_wide, wider_schema
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation, stringifier


class FileFormat(ABC):
    """How records become bytes."""

    suffix: str

    def of_type(self, type_info: TypeInformation | None) -> FileFormat:
        """The format for records of that declared type; None: it is not known."""
        return self

    @abstractmethod
    def open(self, path: Path) -> PartFile:
        """Begin a file."""


class OtherColumnsError(Exception):
    """A file cannot hold these records, and another one can."""


class PartFile(ABC):
    """A file that is being written.  Its methods to write raise OtherColumnsError when nothing was
    written, and the records are to begin the next file."""

    @abstractmethod
    def write(self, block: Block) -> None: ...

    @abstractmethod
    def write_columns(self, columns: Columns) -> None: ...

    @abstractmethod
    def size(self) -> int:
        """Bytes, or about as many."""

    @abstractmethod
    def finish(self) -> None:
        """Everything is on the disk."""

    def abandon(self) -> None:
        """The file is going to be removed."""
        self.finish()


class TextPart(PartFile):
    """A file of UTF-8.

    Args:
        encode: makes the text of a record, its line's end included.
        header: the text that the file begins with.
    """

    def __init__(self, path: Path, encode: Callable[[Any], str], header: str = "") -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(header)
        self._encode = encode

    def write(self, block: Block) -> None:
        encode = self._encode
        records = iter(block.values)
        self.reading = block, records  # for error messages
        self._file.write("".join([encode(value) for value in records]))

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
    """A value on a line, as ``print()`` writes it."""

    suffix = "txt"

    def __init__(self, type_info: TypeInformation | None = None) -> None:
        self._type_info = type_info

    def of_type(self, type_info: TypeInformation | None) -> FileFormat:
        return self if type_info is None else TextFormat(type_info)

    def open(self, path: Path) -> PartFile:
        text = stringifier(self._type_info)
        return TextPart(path, lambda value: f"{text(value)}\n")


class JsonFormat(FileFormat):
    """A JSON document on a line.  Rows with names become objects, and other rows and NumPy's arrays
    lists, wherever they are.  Dates, times, decimals and UUIDs become texts."""

    suffix = "json"

    def open(self, path: Path) -> PartFile:
        return TextPart(path, _json_line)


def _json_line(value: Any) -> str:
    """
    Raises:
        StreamError: it, or something in it, has no form in JSON.
    """
    try:
        return json.dumps(value, default=_json_form) + "\n"
    except (TypeError, ValueError) as error:
        raise StreamError(f"{text_of(value)} cannot be written as JSON: {error}") from error


_JSON_TEXTS = (date, time, timedelta, Decimal, UUID, np.datetime64, np.timedelta64)
"""Written as ``str`` does it."""


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
    """Comma-separated values without a line of names; one column for what is no row or tuple.
    Fields are written as ``str`` does it, and what holds other values has no form there."""

    suffix = "csv"

    def open(self, path: Path) -> PartFile:
        return TextPart(path, _csv_line)


_BYTE_ORDER_MARK = "\ufeff"


_WITHOUT_CSV_FORM = (
    *(dict, list, tuple, Row, set, frozenset, np.ndarray),
    *(bytes, bytearray, memoryview),
)
"""Fields that no reader of CSV takes apart again as ``str`` writes them.  Flink and Spark refuse
maps, too."""


def _csv_line(value: Any) -> str:
    """
    Raises:
        StreamError: it, or a field of it, has no form in CSV.
    """
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
    # Outside of quotes it is no part of a file's first field.
    return _csv_record(fields, csv.QUOTE_ALL) if line.startswith(_BYTE_ORDER_MARK) else line


_LINE_END = "\r\n"
"""Fields that have a character of it are put in quotes."""


def _csv_record(fields: Iterable[Any], quoting: Literal[0, 1]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator=_LINE_END, quoting=quoting).writerow(fields)
    return line.getvalue().removesuffix(_LINE_END) + "\n"


class _ParquetPart(PartFile):
    def __init__(self, path: Path, type_info: TypeInformation | None) -> None:
        self._file = path.open("wb")
        self._type_info = type_info
        self._writer: pq.ParquetWriter | None = None
        self._bytes = 0

    def write(self, block: Block) -> None:
        self._write(block_to_batch(block, self._type_info))

    def write_columns(self, columns: Columns) -> None:
        batch, declared = columns.batch, self._type_info
        self._write(batch if declared is None else batch_of_type(batch, declared))

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, batch.schema)
        elif batch.schema != self._writer.schema:
            batch = _fitting(batch, self._writer.schema)
        self._writer.write_batch(batch)
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


def _fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.names != schema.names:
        raise StreamError(
            f"a Parquet file of columns {schema.names} was given columns {batch.schema.names}: "
            "give every batch the same columns, in the same order"
        )
    if wider_schema(schema, batch.schema) != schema:
        raise OtherColumnsError
    return as_wide(batch, schema)


class ParquetFormat(FileFormat):
    """Parquet, with the schema of *type_info*, of the type that the stream is declared to have, or
    else of the file's first batch.  A batch with values of wider types begins another file then."""

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
