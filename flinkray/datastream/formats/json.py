"""Schemas for messages of JSON and rows (PyFlink's ``datastream.formats.json``), and the row type
that a JSON schema describes."""

from __future__ import annotations

import datetime
import json
import math
import secrets
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from flinkray.datastream.formats.csv_text import fields_of
from flinkray.datastream.formats.field_text import (
    BITS,
    BYTES,
    NUMBERS,
    TEXTS,
    in_range,
    no_such_type,
    parser_of,
    text_of,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.json_text import as_python, parse_exact_json
from flinkray.streaming.records.number_text import java_double
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.serialization import DeserializationSchema, SerializationSchema
from flinkray.streaming.records.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TypeInformation,
    Types,
)

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema", "JsonValueSchema"]

_Convert = Callable[[Any], Any]

_BETWEEN = secrets.token_hex(16)
"""Text that no message contains. It separates messages that are read together."""
_MOST_TOGETHER = 1 << 18
"""Bytes of messages from which on no more are read together: other threads wait meanwhile."""


class JsonValueSchema(SerializationSchema, DeserializationSchema):
    """Schema for messages of JSON and the Python values of ``json.loads`` and ``json.dumps``. It
    reads many short messages in half the time that ``json.loads`` takes for them, one by one. A
    message ``null`` is no value.

    >>> JsonValueSchema().deserialize(b'{"id": 1, "tags": ["a"]}')
    {'id': 1, 'tags': ['a']}
    """

    def deserialize(self, message: bytes) -> Any:
        """Return the message's value. Raises ValueError: the message is not JSON."""
        return json.loads(message)

    def deserialize_all(self, messages: Sequence[bytes]) -> list[Any]:
        """Return the messages' values. Short messages are read together."""
        if type(self).deserialize is not JsonValueSchema.deserialize:
            return super().deserialize_all(messages)
        values: list[Any] = []
        together: list[bytes] = []
        size = 0
        for message in messages:
            together.append(message)
            size += len(message)
            if size >= _MOST_TOGETHER:
                values += self._read_together(together)
                together, size = [], 0
        return values + self._read_together(together)

    def _read_together(self, messages: Sequence[bytes]) -> list[Any]:
        """Return the values of messages that are read as one list, in which a text stands between
        two messages. If each second item is this text, each message is one value: a message that
        opens or closes brackets or quotes of others changes the items, or cannot be read."""
        separator = f',"{_BETWEEN}",'.encode()
        try:
            items: list[Any] = json.loads(str(b"[%b]" % separator.join(messages), "utf-8"))
        except (TypeError, ValueError, RecursionError):
            pass  # a text, another encoding than UTF-8, no JSON, or too deep by one level
        else:
            between = items[1::2]
            if len(items) == 2 * len(messages) - 1 and between.count(_BETWEEN) == len(between):
                return items[::2]
        return [self.deserialize(message) for message in messages]

    def serialize(self, element: Any) -> bytes:
        """Return the value as JSON. Raises TypeError or ValueError: it has no JSON form."""
        return json.dumps(element).encode()


class JsonRowDeserializationSchema(DeserializationSchema[Row]):
    """Schema that reads each message as a JSON object and makes a row of it.

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
        """Return a builder, which needs a type."""
        return JsonRowDeserializationSchema.Builder()

    def deserialize(self, message: bytes) -> Row | None:
        """Return the message's row. None: it is ``null``, or cannot be read and errors are ignored.

        Raises:
            StreamError: the message cannot be read, or a required field is missing.
        """
        try:
            row: Row | None = self._convert(parse_exact_json(bytes(message)))
        except (ValueError, RecursionError) as error:
            if self._ignore_errors:
                return None
            raise StreamError(f"failed to deserialize JSON {message!r}: {error}") from error
        return row

    def get_produced_type(self) -> RowTypeInfo:
        """Return the type of the rows."""
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
        if parse is not None and kind == Types.BIG_DEC():
            return lambda value: value if isinstance(value, Decimal) else parse(_scalar_text(value))
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
            return as_python
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
        """Builder of a :class:`JsonRowDeserializationSchema`."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None
            self._fail_on_missing_field = False
            self._ignore_parse_errors = False

        def type_info(self, type_info: TypeInformation) -> JsonRowDeserializationSchema.Builder:
            """Set the type of the rows. Its field names are those of the JSON objects."""
            self._type_info = type_info
            return self

        def json_schema(self, json_schema: str) -> JsonRowDeserializationSchema.Builder:
            """Set the type of the rows by a JSON schema.

            Raises:
                ValueError: the schema allows values that no row type has.
            """
            if json_schema is None:
                raise TypeError("The json_schema must not be None.")
            self._type_info = type_of_json_schema(json_schema)
            return self

        def fail_on_missing_field(self) -> JsonRowDeserializationSchema.Builder:
            """Raise an error for a missing field; by default the field is None."""
            self._fail_on_missing_field = True
            return self

        def ignore_parse_errors(self) -> JsonRowDeserializationSchema.Builder:
            """Return None, instead of raising an error, for fields and rows that cannot be read."""
            self._ignore_parse_errors = True
            return self

        def build(self) -> JsonRowDeserializationSchema:
            """Build the schema.

            Raises:
                ValueError: both :meth:`fail_on_missing_field` and :meth:`ignore_parse_errors` were
                    called.
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
    """Schema that writes each row as a message with one JSON object.

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
        """Return a builder, which needs a type."""
        return JsonRowSerializationSchema.Builder()

    def serialize(self, element: Any) -> bytes:
        """Return the row as JSON.

        Raises:
            StreamError: *element* is no row of the type.
        """
        try:
            return self._write(element).encode()
        except (ValueError, TypeError, AttributeError) as error:
            raise StreamError(
                f"could not serialize row {element!r}: {error}; make sure that the schema matches "
                "the input"
            ) from error

    class Builder:
        """Builder of a :class:`JsonRowSerializationSchema`."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None

        def with_type_info(self, type_info: TypeInformation) -> JsonRowSerializationSchema.Builder:
            """Set the type of the rows. Its field names become those of the JSON objects."""
            self._type_info = type_info
            return self

        def build(self) -> JsonRowSerializationSchema:
            """Build the schema."""
            return JsonRowSerializationSchema(_row_type(self._type_info))


def _row_type(type_info: TypeInformation | None) -> RowTypeInfo:
    if type_info is None:
        raise TypeError("Typeinfo should be set.")
    if not isinstance(type_info, RowTypeInfo):
        raise ValueError(f"the type of rows is needed, got {type_info!r}")
    return type_info


# --- reading --------------------------------------------------------------------------------------


def _expect(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        what = "an object" if kind is dict else "an array"
        raise ValueError(f"{what} is expected, got {_as_text(value)}")
    return value


def _as_text(value: Any) -> str:
    """Return a JSON value as the text of a field that is declared as text: objects and lists in
    JSON, other values as plain texts."""
    if isinstance(value, dict):
        return _braces(f"{_quoted(name)}:{_json(item)}" for name, item in value.items())
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    return _scalar_text(value)


def _json(value: Any) -> str:
    if isinstance(value, Decimal):
        number = as_python(value)
        return str(number) if isinstance(number, Decimal) else json.dumps(number)
    return (
        _as_text(value) if isinstance(value, dict | list) else json.dumps(value, ensure_ascii=False)
    )


def _scalar_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        number = as_python(value)
        return java_double(number) if isinstance(number, float) else str(number)
    if isinstance(value, dict | list):
        return ""  # no other type has a value with this text
    return str(value)


def _integer(value: Any, bits: int, parse: _Convert | None) -> int:
    """Return a JSON number as an integer of *bits* bits. A fraction is cut off, as in Flink."""
    if isinstance(value, Decimal):
        return in_range(int(value) if value.adjusted() < bits else bits * 10**bits, bits)
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


_UNSUPPORTED = ("allOf", "anyOf", "not", "extends", "disallow")


def type_of_json_schema(json_schema: str) -> TypeInformation:
    """Return the row type that a JSON schema describes.

    Raises:
        ValueError: the text is no JSON, or describes values that have no single type.
    """
    try:
        root = json.loads(json_schema)
    except ValueError as error:
        raise ValueError(f"invalid JSON schema: {error}") from error
    kind = _Converter(root).type_of("<root>", root, ())
    if kind is None:
        raise ValueError("the JSON schema allows nothing but null")
    return kind


class _Converter:
    def __init__(self, root: Any) -> None:
        self._root = root

    def type_of(self, location: str, node: Any, through: tuple[str, ...]) -> TypeInformation | None:
        """Return the type that a schema node describes. None: the node allows only null.
        *through*: the references that were followed to the node, to find cycles."""
        if not isinstance(node, dict):
            raise ValueError(f"an object is expected in node: {location}")
        used = [word for word in _UNSUPPORTED if word in node]
        if used:
            raise ValueError(f"union types and extending ({used[0]}) are not supported: {location}")
        reference = node.get("$ref")
        if isinstance(reference, str) and not {"type", "oneOf"} & node.keys():
            if reference in through:
                raise ValueError(f"cyclic references are not supported: {reference}")
            return self.type_of(reference, self._resolved(reference), (*through, reference))
        found: list[TypeInformation | None] = []
        given = node.get("type", [])
        for name in given if isinstance(given, list) else [given]:
            found.append(self._named(name, location, node, through))
        for place, one in enumerate(node.get("oneOf", [])):
            found.append(self.type_of(f"{location}/oneOf[{place}]", one, through))
        kinds = {kind for kind in found if kind is not None}
        if not found:
            raise ValueError(f"no type could be found in node: {location}")
        if len(kinds) > 1:
            raise ValueError(
                f"union types with more than just a null type are not supported: {location}"
            )
        return next(iter(kinds), None)

    def _resolved(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise ValueError(f"only references in the same document are supported: {reference}")
        node = self._root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or part not in node:
                raise ValueError(f"could not find reference: {reference}")
            node = node[part]
        return node

    def _named(
        self, name: Any, location: str, node: dict[str, Any], through: tuple[str, ...]
    ) -> TypeInformation | None:
        if name == "null":
            return None
        if name == "boolean":
            return Types.BOOLEAN()
        if name in ("number", "integer"):
            return Types.BIG_DEC()
        if name == "string":
            return self._text(location, node)
        if name == "object":
            return self._object(location, node, through)
        if name == "array":
            return self._array(location, node, through)
        raise ValueError(f"unsupported type {name!r} in node: {location}")

    @staticmethod
    def _text(location: str, node: dict[str, Any]) -> TypeInformation:
        if "format" in node:
            formats = {
                "date": Types.SQL_DATE(),
                "time": Types.SQL_TIME(),
                "date-time": Types.SQL_TIMESTAMP(),
            }
            return formats.get(node["format"], Types.STRING())
        if "contentEncoding" in node:
            if node["contentEncoding"] != "base64":
                raise ValueError(
                    f"invalid encoding {node['contentEncoding']!r} in node: {location}"
                )
            return BYTES
        return Types.STRING()

    def _object(
        self, location: str, node: dict[str, Any], through: tuple[str, ...]
    ) -> TypeInformation:
        if node.get("additionalProperties") is True:
            raise ValueError(f"an object must not allow additional properties in node: {location}")
        fields = {
            name: self._field(f"{location}/{name}", child, through)
            for name, child in node.get("properties", {}).items()
        }
        return Types.ROW_NAMED(list(fields), list(fields.values()))

    def _array(
        self, location: str, node: dict[str, Any], through: tuple[str, ...]
    ) -> TypeInformation:
        items = node.get("items")
        if isinstance(items, dict):
            return Types.OBJECT_ARRAY(self._field(f"{location}/items", items, through))
        raise ValueError(f"arrays must specify an 'items' property of one type in node: {location}")

    def _field(self, location: str, node: Any, through: tuple[str, ...]) -> TypeInformation:
        kind = self.type_of(location, node, through)
        if kind is None:
            raise ValueError(f"nothing but null is allowed in node: {location}")
        return kind
