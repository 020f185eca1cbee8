"""JSON (PyFlink's ``datastream.formats.json``)."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable
from typing import Any

from flinkray.datastream.common.serialization import DeserializationSchema, SerializationSchema
from flinkray.datastream.formats.csv_text import fields_of
from flinkray.datastream.formats.field_text import (
    BITS,
    NUMBERS,
    TEXTS,
    in_range,
    no_such_type,
    parser_of,
    text_of,
)
from flinkray.datastream.formats.json_schema import type_of_json_schema
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.java_text import java_double
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TypeInformation,
    Types,
)

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]

_Convert = Callable[[Any], Any]


class JsonRowDeserializationSchema(DeserializationSchema):
    """Makes rows of messages that are a JSON object.

    >>> kind = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    >>> schema = JsonRowDeserializationSchema.builder().type_info(kind).build()
    >>> schema.deserialize(b'{"id": 1, "more": true}')
    Row(id=1, name=None)
    """

    def __init__(self, row_type: RowTypeInfo, fail_on_missing: bool, ignore_errors: bool) -> None:
        self._row_type = row_type
        self._fail_on_missing = fail_on_missing
        self._ignore_errors = ignore_errors
        self._convert = self._reader(row_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._row_type, self._fail_on_missing, self._ignore_errors)

    @staticmethod
    def builder() -> JsonRowDeserializationSchema.Builder:
        """A builder, to be given a type."""
        return JsonRowDeserializationSchema.Builder()

    def deserialize(self, message: bytes) -> Row | None:
        """The row; None: it is ``null``, or it cannot be read and errors are ignored.

        Raises:
            StreamError: it cannot be read, or a field is missing that must not be.
        """
        try:
            value = json.loads(bytes(message), parse_constant=_no_number)
            row: Row | None = self._convert(value)
        except (ValueError, RecursionError) as error:
            if self._ignore_errors:
                return None
            raise StreamError(f"failed to deserialize JSON {message!r}: {error}") from error
        return row

    def get_produced_type(self) -> RowTypeInfo:
        """The type of the rows."""
        return self._row_type

    def _reader(self, kind: TypeInformation) -> _Convert:
        read = self._reader_of_values(kind)

        def read_or_none(value: Any) -> Any:
            if value is None:
                return None
            try:
                return read(value)
            except ValueError:
                if self._ignore_errors:
                    return None
                raise

        return read_or_none

    def _reader_of_values(self, kind: TypeInformation) -> _Convert:
        if isinstance(kind, RowTypeInfo):
            return self._row_reader(kind)
        parse = parser_of(kind)
        if kind in TEXTS:
            return _as_text
        if kind in (Types.INT(), Types.LONG()):
            bits = BITS[kind]
            return lambda value: _integer(value, bits, parse)
        if parse is not None:
            return lambda value: parse(_scalar_text(value))
        if isinstance(kind, MapTypeInfo):
            read_key, read_value = self._reader(kind.key_type), self._reader(kind.value_type)
            return lambda value: {
                read_key(key): read_value(item) for key, item in _expect(dict, value).items()
            }
        if isinstance(kind, ListTypeInfo):
            element = self._reader(kind.element_type)
            return lambda value: [element(item) for item in _expect(list, value)]
        if isinstance(kind, PickledBytesTypeInfo):
            return lambda value: value
        raise no_such_type(kind)

    def _row_reader(self, kind: RowTypeInfo) -> _Convert:
        names = kind.get_field_names()
        readers = [self._reader(field) for field in kind.get_field_types()]

        def read(value: Any) -> Row:
            given = _expect(dict, value)
            values = []
            for name, reader in zip(names, readers, strict=True):
                if name not in given and self._fail_on_missing:
                    raise ValueError(f"could not find field with name {name!r}")
                try:
                    values.append(reader(given.get(name)))
                except ValueError as error:
                    raise ValueError(f"field {name!r}: {error}") from error
            return Row.of(names, values)

        return read

    class Builder:
        """Builds the schema."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None
            self._fail_on_missing_field = False
            self._ignore_parse_errors = False

        def type_info(self, type_info: TypeInformation) -> JsonRowDeserializationSchema.Builder:
            """The type of the rows, whose names are those of the objects' fields."""
            self._type_info = type_info
            return self

        def json_schema(self, json_schema: str) -> JsonRowDeserializationSchema.Builder:
            """The type of the rows, as a JSON schema.

            Raises:
                ValueError: it allows what no type of rows has.
            """
            if json_schema is None:
                raise TypeError("The json_schema must not be None.")
            self._type_info = type_of_json_schema(json_schema)
            return self

        def fail_on_missing_field(self) -> JsonRowDeserializationSchema.Builder:
            """A field that is missing is an error; it is None by default."""
            self._fail_on_missing_field = True
            return self

        def ignore_parse_errors(self) -> JsonRowDeserializationSchema.Builder:
            """Fields and rows that cannot be read are None."""
            self._ignore_parse_errors = True
            return self

        def build(self) -> JsonRowDeserializationSchema:
            """The schema.

            Raises:
                ValueError: missing fields are to fail, and errors to be ignored.
            """
            if self._ignore_parse_errors and self._fail_on_missing_field:
                raise ValueError(
                    "JSON format doesn't support failOnMissingField and ignoreParseErrors are both "
                    "true."
                )
            return JsonRowDeserializationSchema(
                _row_type(self._type_info), self._fail_on_missing_field, self._ignore_parse_errors
            )


class JsonRowSerializationSchema(SerializationSchema):
    """Makes messages of rows, each a JSON object.

    >>> kind = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    >>> schema = JsonRowSerializationSchema.builder().with_type_info(kind).build()
    >>> schema.serialize(Row(1, None))
    b'{"id":1,"name":null}'
    """

    def __init__(self, row_type: RowTypeInfo) -> None:
        self._row_type = row_type
        self._write = _writer(row_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._row_type,)

    @staticmethod
    def builder() -> JsonRowSerializationSchema.Builder:
        """A builder, to be given a type."""
        return JsonRowSerializationSchema.Builder()

    def serialize(self, element: Any) -> bytes:
        """
        Raises:
            StreamError: it is no row of the type.
        """
        try:
            return self._write(element).encode()
        except (ValueError, TypeError, AttributeError) as error:
            raise StreamError(
                f"could not serialize row {element!r}: {error}; make sure that the schema matches "
                "the input"
            ) from error

    class Builder:
        """Builds the schema."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None

        def with_type_info(self, type_info: TypeInformation) -> JsonRowSerializationSchema.Builder:
            """The type of the rows, whose names are those of the objects' fields."""
            self._type_info = type_info
            return self

        def build(self) -> JsonRowSerializationSchema:
            """The schema."""
            return JsonRowSerializationSchema(_row_type(self._type_info))


def _row_type(type_info: TypeInformation | None) -> RowTypeInfo:
    if type_info is None:
        raise TypeError("Typeinfo should be set.")
    if not isinstance(type_info, RowTypeInfo):
        raise ValueError(f"the type of rows is needed, got {type_info!r}")
    return type_info


# --- reading --------------------------------------------------------------------------------------


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _expect(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        what = "an object" if kind is dict else "an array"
        raise ValueError(f"{what} is expected, got {_as_text(value)}")
    return value


def _as_text(value: Any) -> str:
    """A JSON value where a text is declared."""
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return _scalar_text(value)


def _scalar_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double(value)
    if isinstance(value, dict | list):
        return ""  # which is no value of any other type
    return str(value)


def _integer(value: Any, bits: int, parse: _Convert | None) -> int:
    """A number with a fraction loses it, as in Flink."""
    if isinstance(value, float) and math.isfinite(value):
        return in_range(int(value), bits)
    assert parse is not None
    number: int = parse(_scalar_text(value))
    return number


# --- writing --------------------------------------------------------------------------------------


def _writer(kind: TypeInformation) -> Callable[[Any], str]:
    write = _writer_of_values(kind)
    return lambda value: "null" if value is None else write(value)


def _writer_of_values(kind: TypeInformation) -> Callable[[Any], str]:
    if isinstance(kind, RowTypeInfo):
        return _row_writer(kind)
    text = text_of(kind)
    if kind in (Types.FLOAT(), Types.DOUBLE()):
        assert text is not None
        return lambda value: text(value) if math.isfinite(value) else _quoted(text(value))
    if kind == Types.SQL_TIMESTAMP():
        return lambda value: _quoted(_iso(value))
    if text is not None:
        return text if kind in NUMBERS else lambda value: _quoted(text(value))
    if isinstance(kind, MapTypeInfo):
        write_key, write_item = _key_writer(kind.key_type), _writer(kind.value_type)
        return lambda value: _braces(
            f"{write_key(key)}:{write_item(item)}" for key, item in value.items()
        )
    if isinstance(kind, ListTypeInfo):
        element = _writer(kind.element_type)
        return lambda value: f"[{','.join(map(element, value))}]"
    if isinstance(kind, PickledBytesTypeInfo):
        return lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    raise no_such_type(kind)


def _row_writer(kind: RowTypeInfo) -> Callable[[Any], str]:
    names = kind.get_field_names()
    labels = [f"{_quoted(name)}:" for name in names]
    writers = [_writer(field) for field in kind.get_field_types()]
    return lambda row: _braces(
        label + write(value)
        for label, write, value in zip(labels, writers, fields_of(row, names), strict=True)
    )


def _key_writer(kind: TypeInformation) -> Callable[[Any], str]:
    text = text_of(kind)
    if text is None:
        raise no_such_type(kind)
    return lambda key: _quoted(text(key))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _braces(parts: Any) -> str:
    return f"{{{','.join(parts)}}}"


def _iso(value: datetime.datetime) -> str:
    fraction = f"{value.microsecond:06}".rstrip("0")
    return f"{value:%Y-%m-%dT%H:%M:%S}{'.' if fraction else ''}{fraction}"
