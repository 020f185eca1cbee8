"""Comma-separated values (PyFlink's ``datastream.formats.csv``)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flinkray.datastream.common.serialization import DeserializationSchema, SerializationSchema
from flinkray.datastream.connectors.file_system import StreamFormat
from flinkray.datastream.formats.csv_text import (
    CsvDialect,
    FieldsToRows,
    RowsToLines,
    first_record,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import RowTypeInfo, TypeInformation, Types
from flinkray.streaming.sinks.file_formats import FileFormat, PartFile, TextPart
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
    """The columns of CSV files, and how they are written.

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
    """Of columns that have one of their own, by place."""
    use_header: bool = False
    strict_headers: bool = False
    skip_first_data_row: bool = False

    @staticmethod
    def builder() -> CsvSchemaBuilder:
        """A builder without columns."""
        return CsvSchemaBuilder()

    def get_type_info(self) -> RowTypeInfo:
        """The type of the rows."""
        return self.row_type

    def size(self) -> int:
        """The number of columns."""
        return len(self.row_type.get_field_names())

    def __len__(self) -> int:
        return self.size()


class CsvSchemaBuilder:
    """Builds a :class:`CsvSchema`.  Where PyFlink has ``DataTypes`` here are ``Types``."""

    def __init__(self) -> None:
        self._columns: list[tuple[str, TypeInformation, str]] = []
        """Name, type, separator of elements (empty: that of the schema)."""
        self._dialect = CsvDialect()
        self._use_header = self._strict_headers = self._skip_first_data_row = False

    def build(self) -> CsvSchema:
        """The schema."""
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
        """A column of lists; of texts by default."""
        self._columns.append((name, Types.LIST(element_type or Types.STRING()), separator))
        return self

    def add_boolean_column(self, name: str) -> CsvSchemaBuilder:
        """A column of ``true`` and ``false``."""
        return self._add(name, Types.BOOLEAN())

    def add_number_column(
        self, name: str, number_type: TypeInformation | None = None
    ) -> CsvSchemaBuilder:
        """A column of numbers; of ``Types.LONG()`` by default."""
        return self._add(name, number_type or Types.LONG())

    def add_string_column(self, name: str) -> CsvSchemaBuilder:
        """A column of texts."""
        return self._add(name, Types.STRING())

    def _add(self, name: str, kind: TypeInformation) -> CsvSchemaBuilder:
        if not isinstance(kind, TypeInformation):
            raise TypeError(
                f"column {name!r} needs one of Types, such as Types.INT(), got {kind!r}"
            )
        self._columns.append((name, kind, ""))
        return self

    def add_columns_from(self, schema: CsvSchema) -> CsvSchemaBuilder:
        """All columns of another schema."""
        pairs = zip(
            schema.row_type.get_field_names(), schema.row_type.get_field_types(), strict=True
        )
        for place, (name, kind) in enumerate(pairs):
            self._columns.append((name, kind, schema.element_separators.get(place, "")))
        return self

    def clear_columns(self) -> CsvSchemaBuilder:
        """No columns."""
        self._columns.clear()
        return self

    def set_allow_comments(self, allow: bool = True) -> CsvSchemaBuilder:
        """Lines that begin with ``#`` are no records."""
        return self._set(allow_comments=allow)

    def set_any_property_name(self, name: str) -> CsvSchemaBuilder:
        """Has no effect: records with more fields than columns are refused, as in Flink."""
        return self

    def disable_array_element_separator(self) -> CsvSchemaBuilder:
        """Fields are not divided into elements, but by their columns' own separators."""
        return self._set(element_separator="")

    def remove_array_element_separator(self, index: int) -> CsvSchemaBuilder:
        """The column has no separator of its own."""
        name, kind, _ = self._columns[index]
        self._columns[index] = name, kind, ""
        return self

    def set_array_element_separator(self, separator: str) -> CsvSchemaBuilder:
        """Between elements, in columns without a separator of their own; ``;`` by default."""
        return self._set(element_separator=separator)

    def set_column_separator(self, char: str) -> CsvSchemaBuilder:
        """Between fields; a comma by default."""
        return self._set(separator=_one_character(char, "a column separator"))

    def disable_escape_char(self) -> CsvSchemaBuilder:
        """No character is escaped, as by default."""
        return self._set(escape=None)

    def set_escape_char(self, char: str) -> CsvSchemaBuilder:
        """In front of a character that means itself."""
        return self._set(escape=_one_character(char, "an escape character"))

    def set_line_separator(self, separator: str) -> CsvSchemaBuilder:
        """At the end of each line that is written; a line feed by default."""
        return self._set(line_end=separator)

    def set_null_value(self, null_value: str) -> CsvSchemaBuilder:
        """What stands for no value.  By default an empty text is written, and nothing is read as
        no value."""
        return self._set(null=null_value)

    def disable_quote_char(self) -> CsvSchemaBuilder:
        """Quotes are nothing special."""
        return self._set(quote=None)

    def set_quote_char(self, char: str) -> CsvSchemaBuilder:
        """Around fields; ``"`` by default."""
        return self._set(quote=_one_character(char, "a quote character"))

    def set_skip_first_data_row(self, skip: bool = True) -> CsvSchemaBuilder:
        """The first record is left out."""
        self._skip_first_data_row = skip
        return self

    def set_strict_headers(self, strict: bool = True) -> CsvSchemaBuilder:
        """The names in the first line have to be those of the columns."""
        self._strict_headers = strict
        return self

    def set_use_header(self, use: bool = True) -> CsvSchemaBuilder:
        """The first line has names."""
        self._use_header = use
        return self

    def _set(self, **changes: Any) -> CsvSchemaBuilder:
        self._dialect = replace(self._dialect, **changes)
        return self

    def size(self) -> int:
        """The number of columns until now."""
        return len(self._columns)

    def __len__(self) -> int:
        return self.size()


class CsvReaderFormat(StreamFormat):
    """Reads CSV files as rows: ``FileSource.for_record_stream_format(format, path)``."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> CsvReaderFormat:
        """For files of these columns."""
        return CsvReaderFormat(_CsvRecords(schema))


class _CsvRecords(RecordFormat):
    def __init__(self, schema: CsvSchema) -> None:
        self._schema = schema
        self._names = schema.row_type.get_field_names()
        self.type_info = schema.row_type

    def read(self, path: str) -> Generator[Row, None, None]:
        schema = self._schema
        rows = FieldsToRows(schema.row_type, schema.dialect, schema.element_separators)
        with open(path, encoding="utf-8", newline="") as file:
            records = schema.dialect.records(file)
            try:
                if schema.use_header:
                    self._check_header(next(records, self._names))
                if schema.skip_first_data_row:
                    next(records, None)
                for fields in records:
                    yield rows.row(fields)
            except ValueError as error:
                line = records.line_number
                raise StreamError(f"{path}, line {line}, cannot be read: {error}") from error

    def _check_header(self, names: list[str]) -> None:
        if self._schema.strict_headers and [name.strip() for name in names] != self._names:
            raise ValueError(f"the columns {self._names} are expected, and the header has {names}")


class CsvBulkWriters:
    """Writes rows as CSV files: ``FileSink.for_bulk_format(folder, writers)``."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> FileFormat:
        """For rows of these columns."""
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


class CsvRowDeserializationSchema(DeserializationSchema):
    """Makes rows of messages that are a record of CSV.

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
        """The row; None: there is none, or it cannot be read and errors are ignored.

        Raises:
            StreamError: it cannot be read.
        """
        try:
            fields = first_record(self._dialect, bytes(message).decode())
            return None if fields is None else self._rows.row(fields)
        except ValueError as error:
            if self._ignore_errors:
                return None
            raise StreamError(f"failed to deserialize CSV row {message!r}: {error}") from error

    def get_produced_type(self) -> RowTypeInfo:
        """The type of the rows."""
        return self._row_type

    class Builder:
        """Builds the schema for rows of a type."""

        def __init__(self, type_info: TypeInformation) -> None:
            self._row_type = _row_type(type_info)
            self._dialect = CsvDialect()
            self._ignore_errors = False

        def set_field_delimiter(self, delimiter: str) -> CsvRowDeserializationSchema.Builder:
            """Between fields; a comma by default."""
            return self._set(separator=_one_character(delimiter, "a field delimiter"))

        def set_allow_comments(self, allow_comments: bool) -> CsvRowDeserializationSchema.Builder:
            """Lines that begin with ``#`` are no records."""
            return self._set(allow_comments=allow_comments)

        def set_array_element_delimiter(
            self, delimiter: str
        ) -> CsvRowDeserializationSchema.Builder:
            """Between elements of arrays and rows in a field; ``;`` by default."""
            return self._set(element_separator=delimiter)

        def set_quote_character(self, c: str) -> CsvRowDeserializationSchema.Builder:
            """Around fields; ``"`` by default."""
            return self._set(quote=_one_character(c, "a quote character"))

        def set_escape_character(self, c: str) -> CsvRowDeserializationSchema.Builder:
            """In front of a character that means itself; none by default."""
            return self._set(escape=_one_character(c, "an escape character"))

        def set_null_literal(self, null_literal: str) -> CsvRowDeserializationSchema.Builder:
            """What stands for no value; nothing by default."""
            return self._set(null=null_literal)

        def set_ignore_parse_errors(
            self, ignore_parse_errors: bool
        ) -> CsvRowDeserializationSchema.Builder:
            """Fields and rows that cannot be read are None."""
            self._ignore_errors = ignore_parse_errors
            return self

        def _set(self, **changes: Any) -> CsvRowDeserializationSchema.Builder:
            self._dialect = replace(self._dialect, **changes)
            return self

        def build(self) -> CsvRowDeserializationSchema:
            """The schema."""
            return CsvRowDeserializationSchema(self._row_type, self._dialect, self._ignore_errors)


class CsvRowSerializationSchema(SerializationSchema):
    """Makes messages of rows, each a line of CSV.

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
        """
        Raises:
            StreamError: it is no row of the type.
        """
        try:
            return self._lines.line(element).encode()
        except (ValueError, TypeError) as error:
            raise StreamError(f"could not serialize row {element!r}: {error}") from error

    class Builder:
        """Builds the schema for rows of a type."""

        def __init__(self, type_info: TypeInformation) -> None:
            self._row_type = _row_type(type_info)
            self._dialect = CsvDialect()

        def set_field_delimiter(self, c: str) -> CsvRowSerializationSchema.Builder:
            """Between fields; a comma by default."""
            return self._set(separator=_one_character(c, "a field delimiter"))

        def set_line_delimiter(self, delimiter: str) -> CsvRowSerializationSchema.Builder:
            """At the end: a line feed (the default), a carriage return, both, or nothing."""
            if delimiter not in ("\n", "\r", "\r\n", ""):
                raise ValueError(
                    f"a line delimiter is \\n, \\r, \\r\\n or empty, got {delimiter!r}"
                )
            return self._set(line_end=delimiter)

        def set_array_element_delimiter(self, delimiter: str) -> CsvRowSerializationSchema.Builder:
            """Between elements of arrays and rows in a field; ``;`` by default."""
            return self._set(element_separator=delimiter)

        def disable_quote_character(self) -> CsvRowSerializationSchema.Builder:
            """No field is put in quotes."""
            return self._set(quote=None)

        def set_quote_character(self, c: str) -> CsvRowSerializationSchema.Builder:
            """Around fields that need it; ``"`` by default."""
            return self._set(quote=_one_character(c, "a quote character"))

        def set_escape_character(self, c: str) -> CsvRowSerializationSchema.Builder:
            """Written twice where a text in quotes has it; none by default."""
            return self._set(escape=_one_character(c, "an escape character"))

        def set_null_literal(self, s: str) -> CsvRowSerializationSchema.Builder:
            """What stands for no value; an empty text by default."""
            return self._set(null=s)

        def _set(self, **changes: Any) -> CsvRowSerializationSchema.Builder:
            self._dialect = replace(self._dialect, **changes)
            return self

        def build(self) -> CsvRowSerializationSchema:
            """The schema."""
            return CsvRowSerializationSchema(self._row_type, self._dialect)
