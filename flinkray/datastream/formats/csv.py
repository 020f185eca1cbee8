"""Formats and schemas for rows as CSV (PyFlink's ``datastream.formats.csv``)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from flinkray.datastream.connectors.file_system import StreamFormat
from flinkray.datastream.formats.csv_text import (
    CsvDialect,
    FieldsToRows,
    RowsToLines,
    first_record,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.serialization import DeserializationSchema, SerializationSchema
from flinkray.streaming.records.typeinfo import RowTypeInfo, TypeInformation, Types
from flinkray.streaming.sinks.file_formats import FileFormat, PartFile, TextPart
from flinkray.streaming.sources.file_input import (
    Reading,
    check_encoding,
    misread,
    open_text,
    shown,
)
from flinkray.streaming.sources.files import RecordFormat

__all__ = [
    "CsvBulkWriters",
    "CsvReaderFormat",
    "CsvRowDeserializationSchema",
    "CsvRowSerializationSchema",
    "CsvSchema",
    "CsvSchemaBuilder",
]


def _one_character(char: str, what: str) -> str:
    if len(char) != 1:
        raise ValueError(f"{what} must be a single character, got {char!r}")
    return char


@dataclass(frozen=True)
class CsvSchema:
    """Columns of CSV files, and the characters that separate them.

    >>> schema = (
    ...     CsvSchema.builder()
    ...     .add_number_column("id", Types.INT())
    ...     .add_string_column("name")
    ...     .set_column_separator("|")
    ...     .build()
    ... )
    >>> schema.get_type_info()
    RowTypeInfo(id: Integer, name: String)
    """

    row_type: RowTypeInfo
    dialect: CsvDialect
    element_separators: dict[int, str] = field(default_factory=dict)
    """Element separators of the columns that have their own, by position."""
    use_header: bool = False
    strict_headers: bool = False
    skip_first_data_row: bool = False

    @staticmethod
    def builder() -> CsvSchemaBuilder:
        """Return a builder without columns."""
        return CsvSchemaBuilder()

    def get_type_info(self) -> RowTypeInfo:
        """Return the type of the rows."""
        return self.row_type

    def size(self) -> int:
        """Return the number of columns."""
        return len(self.row_type.get_field_names())

    def __len__(self) -> int:
        return self.size()


_Self = TypeVar("_Self", bound="_RowSchemaBuilder")


class CsvSchemaBuilder:
    """Builder of a :class:`CsvSchema`, with ``Types`` in place of PyFlink's ``DataTypes``."""

    def __init__(self) -> None:
        self._columns: list[tuple[str, TypeInformation, str]] = []
        """Name, type and element separator of each column.
        An empty separator means the schema's."""
        self._dialect = CsvDialect()
        self._use_header = self._strict_headers = self._skip_first_data_row = False

    def build(self) -> CsvSchema:
        """Build the schema."""
        names = [name for name, _, _ in self._columns]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"columns with one name: {sorted(twice)}")
        return CsvSchema(
            Types.ROW_NAMED(names, [kind for _, kind, _ in self._columns]),
            self._dialect,
            {place: own for place, (_, _, own) in enumerate(self._columns) if own},
            self._use_header,
            self._strict_headers,
            self._skip_first_data_row,
        )

    def add_array_column(
        self, name: str, separator: str = ";", element_type: TypeInformation | None = None
    ) -> CsvSchemaBuilder:
        """Add a column of lists, by default of texts."""
        self._columns.append((name, Types.LIST(element_type or Types.STRING()), separator))
        return self

    def add_boolean_column(self, name: str) -> CsvSchemaBuilder:
        """Add a column of ``true`` and ``false``."""
        return self._add(name, Types.BOOLEAN())

    def add_number_column(
        self, name: str, number_type: TypeInformation | None = None
    ) -> CsvSchemaBuilder:
        """Add a column of numbers, by default of ``Types.LONG()``."""
        return self._add(name, number_type or Types.LONG())

    def add_string_column(self, name: str) -> CsvSchemaBuilder:
        """Add a column of texts."""
        return self._add(name, Types.STRING())

    def _add(self, name: str, kind: TypeInformation) -> CsvSchemaBuilder:
        if not isinstance(kind, TypeInformation):
            raise TypeError(
                f"column {name!r} needs one of Types, such as Types.INT(), got {kind!r}"
            )
        self._columns.append((name, kind, ""))
        return self

    def add_columns_from(self, schema: CsvSchema) -> CsvSchemaBuilder:
        """Add all columns of another schema."""
        pairs = zip(
            schema.row_type.get_field_names(), schema.row_type.get_field_types(), strict=True
        )
        for place, (name, kind) in enumerate(pairs):
            self._columns.append((name, kind, schema.element_separators.get(place, "")))
        return self

    def clear_columns(self) -> CsvSchemaBuilder:
        """Remove all columns."""
        self._columns.clear()
        return self

    def set_allow_comments(self, allow: bool = True) -> CsvSchemaBuilder:
        """Skip lines that begin with ``#`` when files are read."""
        return self._set(allow_comments=allow)

    def set_any_property_name(self, name: str) -> CsvSchemaBuilder:
        """Do nothing: records with more fields than columns are refused, as in Flink."""
        return self

    def disable_array_element_separator(self) -> CsvSchemaBuilder:
        """Remove the separator of :meth:`set_array_element_separator`: array fields are divided
        only in columns with a separator of their own."""
        return self._set(element_separator="")

    def remove_array_element_separator(self, index: int) -> CsvSchemaBuilder:
        """Remove a column's own element separator."""
        name, kind, _ = self._columns[index]
        self._columns[index] = name, kind, ""
        return self

    def set_array_element_separator(self, separator: str) -> CsvSchemaBuilder:
        """Set the separator of elements, for columns without their own; default ``;``."""
        return self._set(element_separator=separator)

    def set_column_separator(self, char: str) -> CsvSchemaBuilder:
        """Set the separator of fields; default: a comma."""
        return self._set(separator=_one_character(char, "a column separator"))

    def disable_escape_char(self) -> CsvSchemaBuilder:
        """Escape no character (the default)."""
        return self._set(escape=None)

    def set_escape_char(self, char: str) -> CsvSchemaBuilder:
        """Set the character that escapes the following character."""
        return self._set(escape=_one_character(char, "an escape character"))

    def set_line_separator(self, separator: str) -> CsvSchemaBuilder:
        """Set the end of written lines; default: a line feed."""
        return self._set(line_end=separator)

    def set_null_value(self, null_value: str) -> CsvSchemaBuilder:
        """Set the text of a field that means None. By default None is written as an empty field,
        and no field is read as None."""
        return self._set(null=null_value)

    def disable_quote_char(self) -> CsvSchemaBuilder:
        """Treat quotes as ordinary characters."""
        return self._set(quote=None)

    def set_quote_char(self, char: str) -> CsvSchemaBuilder:
        """Set the quote character around fields; default ``"`` (a double quote)."""
        return self._set(quote=_one_character(char, "a quote character"))

    def set_skip_first_data_row(self, skip: bool = True) -> CsvSchemaBuilder:
        """Leave out the first record when files are read."""
        self._skip_first_data_row = skip
        return self

    def set_strict_headers(self, strict: bool = True) -> CsvSchemaBuilder:
        """Require that the names in the first line are those of the columns."""
        self._strict_headers = strict
        return self

    def set_use_header(self, use: bool = True) -> CsvSchemaBuilder:
        """Set whether the first line has the names of the columns."""
        self._use_header = use
        return self

    def _set(self, **changes: Any) -> CsvSchemaBuilder:
        self._dialect = replace(self._dialect, **changes)
        return self

    def size(self) -> int:
        """Return the number of columns so far."""
        return len(self._columns)

    def __len__(self) -> int:
        return self.size()


class CsvReaderFormat(StreamFormat[Row]):
    """Format that reads CSV files as rows.
    Use: ``FileSource.for_record_stream_format(format, path)``."""

    @staticmethod
    def for_schema(schema: CsvSchema, charset_name: str | None = None) -> CsvReaderFormat:
        """Make a format for files with the schema's columns.

        Args:
            charset_name: the encoding of files without a byte order mark; None: UTF-8.
        """
        if charset_name is not None:
            check_encoding(charset_name)
        return CsvReaderFormat(_CsvRecords(schema, charset_name))


class _CsvRecords(RecordFormat):
    def __init__(self, schema: CsvSchema, encoding: str | None) -> None:
        self._schema = schema
        self._encoding = encoding
        self._names = schema.row_type.get_field_names()
        self.type_info = schema.row_type

    def read(self, path: str) -> Generator[Row, None, None]:
        schema = self._schema
        rows = FieldsToRows(schema.row_type, schema.dialect, schema.element_separators)
        with Reading(path, "CSV", self._encoding), open_text(path, self._encoding) as file:
            records = schema.dialect.records(file)
            try:
                if schema.use_header:
                    self._check_header(next(records, self._names))
                if schema.skip_first_data_row:
                    next(records, None)
                for fields in records:
                    yield rows.row(fields)
            except UnicodeDecodeError:
                raise  # Reading finds the place of the record
            except ValueError as error:
                line = records.line_number
                made = misread(path, self._encoding, line)
                raise made(f"{shown(path)}, line {line}, cannot be read: {error}") from error

    def _check_header(self, names: list[str]) -> None:
        if self._schema.strict_headers and [name.strip() for name in names] != self._names:
            raise ValueError(f"the columns {self._names} are expected, and the header has {names}")


class CsvBulkWriters:
    """Factory of the format that writes rows as CSV files.
    Use: ``FileSink.for_bulk_format(folder, writers)``."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> FileFormat:
        """Return a file format for rows with the schema's columns."""
        return _CsvFiles(schema)


class _CsvFiles(FileFormat):
    suffix = "csv"

    def __init__(self, schema: CsvSchema) -> None:
        self._schema = schema

    def open(self, path: Path) -> PartFile:
        schema = self._schema
        lines = RowsToLines(schema.row_type, schema.dialect, schema.element_separators)
        return TextPart(path, lines.line, lines.header() if schema.use_header else "")


def _row_type(type_info: TypeInformation) -> RowTypeInfo:
    if type_info is None:
        raise TypeError("Type information must not be None")
    if not isinstance(type_info, RowTypeInfo):
        raise ValueError(f"the type of rows is needed, got {type_info!r}")
    return type_info


class _RowSchemaBuilder:
    def __init__(self, type_info: TypeInformation) -> None:
        self._row_type = _row_type(type_info)
        self._dialect = CsvDialect()

    def set_array_element_delimiter(self: _Self, delimiter: str) -> _Self:
        """Set the separator of the elements of arrays and rows in a field; default ``;``."""
        return self._set(element_separator=delimiter)

    def set_quote_character(self: _Self, c: str) -> _Self:
        """Set the quote character of fields; default ``"`` (a double quote).
        Only fields that need it are written with quotes."""
        return self._set(quote=_one_character(c, "a quote character"))

    def set_escape_character(self: _Self, c: str) -> _Self:
        """Set the character that escapes the following character when a row is read.
        It is written twice within quoted texts. Default: none."""
        return self._set(escape=_one_character(c, "an escape character"))

    def _set(self: _Self, **changes: Any) -> _Self:
        self._dialect = replace(self._dialect, **changes)
        return self


class CsvRowDeserializationSchema(DeserializationSchema[Row]):
    """Schema that reads each message as a CSV record and makes a row of it.

    >>> schema = (
    ...     CsvRowDeserializationSchema.Builder(
    ...         Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    ...     )
    ...     .set_null_literal("-")
    ...     .build()
    ... )
    >>> schema.deserialize(b"1,-")
    Row(id=1, name=None)
    """

    def __init__(self, row_type: RowTypeInfo, dialect: CsvDialect, ignore_errors: bool) -> None:
        self._row_type = row_type
        self._dialect = dialect
        self._ignore_errors = ignore_errors
        self._rows = FieldsToRows(row_type, dialect, None, ignore_errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._row_type, self._dialect, self._ignore_errors)

    def deserialize(self, message: bytes) -> Row | None:
        """Return the message's row. None: it is empty, or cannot be read and errors are ignored.

        Raises:
            StreamError: the message cannot be read.
        """
        try:
            fields = first_record(self._dialect, bytes(message).decode())
            return None if fields is None else self._rows.row(fields)
        except ValueError as error:
            if self._ignore_errors:
                return None
            raise StreamError(f"failed to deserialize CSV row {message!r}: {error}") from error

    def get_produced_type(self) -> RowTypeInfo:
        """Return the type of the rows."""
        return self._row_type

    class Builder(_RowSchemaBuilder):
        """Builder of the schema for rows of a type."""

        def __init__(self, type_info: TypeInformation) -> None:
            super().__init__(type_info)
            self._ignore_errors = False

        def set_field_delimiter(self, delimiter: str) -> CsvRowDeserializationSchema.Builder:
            """Set the separator of fields; default: a comma."""
            return self._set(separator=_one_character(delimiter, "a field delimiter"))

        def set_allow_comments(self, allow_comments: bool) -> CsvRowDeserializationSchema.Builder:
            """Skip lines that begin with ``#``."""
            return self._set(allow_comments=allow_comments)

        def set_null_literal(self, null_literal: str) -> CsvRowDeserializationSchema.Builder:
            """Set the text of a field that is read as None; default: no text is."""
            return self._set(null=null_literal)

        def set_ignore_parse_errors(
            self, ignore_parse_errors: bool
        ) -> CsvRowDeserializationSchema.Builder:
            """Return None, instead of raising an error, for fields and rows that cannot be read."""
            self._ignore_errors = ignore_parse_errors
            return self

        def build(self) -> CsvRowDeserializationSchema:
            """Build the schema."""
            return CsvRowDeserializationSchema(self._row_type, self._dialect, self._ignore_errors)


class CsvRowSerializationSchema(SerializationSchema):
    """Schema that writes each row as a message with one line of CSV.

    >>> kind = Types.ROW([Types.INT(), Types.STRING(), Types.DOUBLE()])
    >>> CsvRowSerializationSchema.Builder(kind).build().serialize(Row(1, "a, b", None))
    b'1,"a, b",\\n'
    """

    def __init__(self, row_type: RowTypeInfo, dialect: CsvDialect) -> None:
        self._row_type = row_type
        self._dialect = dialect
        self._lines = RowsToLines(row_type, dialect)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._row_type, self._dialect)

    def serialize(self, element: Any) -> bytes:
        """Return the row as CSV.

        Raises:
            StreamError: *element* is no row of the type.
        """
        try:
            return self._lines.line(element).encode()
        except (ValueError, TypeError) as error:
            raise StreamError(f"could not serialize row {element!r}: {error}") from error

    class Builder(_RowSchemaBuilder):
        """Builder of the schema for rows of a type."""

        def set_field_delimiter(self, c: str) -> CsvRowSerializationSchema.Builder:
            """Set the separator of fields; default: a comma."""
            return self._set(separator=_one_character(c, "a field delimiter"))

        def set_line_delimiter(self, delimiter: str) -> CsvRowSerializationSchema.Builder:
            """Set the end of the line: a line feed, a carriage return, both, or nothing.
            Default: a line feed."""
            if delimiter not in ("\n", "\r", "\r\n", ""):
                raise ValueError(
                    f"a line delimiter is \\n, \\r, \\r\\n or empty, got {delimiter!r}"
                )
            return self._set(line_end=delimiter)

        def disable_quote_character(self) -> CsvRowSerializationSchema.Builder:
            """Put no field in quotes."""
            return self._set(quote=None)

        def set_null_literal(self, s: str) -> CsvRowSerializationSchema.Builder:
            """Set the text that is written for None; default: an empty text."""
            return self._set(null=s)

        def build(self) -> CsvRowSerializationSchema:
            """Build the schema."""
            return CsvRowSerializationSchema(self._row_type, self._dialect)
