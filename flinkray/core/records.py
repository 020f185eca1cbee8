"""Converts stored records to bytes and back.

The form is msgpack. It begins with a table of the types that occur in the record, each with the
name and version of its schema and the names of its fields. Then comes the record, in which types
are numbers of that table. No module or class is named, and the order of fields has no effect.

A record may hold None, bool, int (64 bit), float, str, bytes, tuples and lists (read as tuples),
dicts with str keys, and instances of types that are declared with
:func:`flinkray.core.schema.stored`. Subclasses of str that are not declared are read as str.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, TypeVar

import msgpack

from flinkray.core.errors import FlinkRayError, StoredFormatError
from flinkray.core.ids import AbstractID
from flinkray.core.schema import Schema, is_retired, schema_named, schema_of, stored_fields

RecordT = TypeVar("RecordT")

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})

StoredType = tuple[str, int, tuple[str, ...] | None]
"""(name of a schema, version, names of the fields).
The names are None if the type is not a dataclass."""


def encode_record(record: object) -> bytes:
    """Return a record as bytes, for storage; :func:`decode_record` is the inverse. Raises
    StoredFormatError: the record holds an undeclared type, or an int of more than 64 bits."""
    table: dict[type, int] = {}
    try:
        body = msgpack.packb(_lower(record, table))
    except (OverflowError, ValueError, RecursionError) as error:
        raise StoredFormatError(f"cannot store a {type(record).__name__}: {error}") from error
    return msgpack.packb([[_described(cls) for cls in table], body])  # type: ignore[no-any-return]


def decode_record(data: bytes, record_type: type[RecordT]) -> RecordT:
    """Return the record in *data*, converted to the current versions of its types.
    Raises StoredFormatError: the bytes cannot be read; the text says why and names the schema."""
    types, body = _parts(data)
    readers: list[_Reader] = []
    for name, version, names in types:
        readers.append(_reader(name, version, names))
    try:
        record = msgpack.unpackb(
            body, use_list=False, strict_map_key=False, object_hook=lambda it: _raise(it, readers)
        )
    except FlinkRayError:
        raise
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise StoredFormatError(f"it cannot be decoded: {error!r}") from error
    if not isinstance(record, record_type):
        raise StoredFormatError(
            f"it holds a {_name_of(type(record))}, not a {_name_of(record_type)}"
        )
    return record


def stored_types(data: bytes) -> tuple[StoredType, ...]:
    """Return the types that occur in a stored record, as they were when it was written.
    Raises StoredFormatError: *data* is not a stored record."""
    return _parts(data)[0]


# --- writing ----------------------------------------------------------------------------------


def _lower(value: Any, table: dict[type, int]) -> Any:
    cls = type(value)
    if cls in _PLAIN:
        return value
    if cls is tuple or cls is list:
        return [_lower(item, table) for item in value]
    if cls is dict:
        for key in value:
            if type(key) is not str:
                raise StoredFormatError(
                    f"cannot store a dict with a key of type {type(key).__name__}: keys must be str"
                )
        return {key: _lower(item, table) for key, item in value.items()}
    number = table.get(cls)
    if number is None:
        if schema_of(cls) is None:
            if isinstance(value, str) and not isinstance(value, Enum):
                return str.__str__(value)  # an undeclared str, such as a process name
            raise StoredFormatError(
                f"cannot store a {cls.__name__}: declare it with flinkray.core.schema.stored"
            )
        number = table[cls] = len(table)
    if is_dataclass(cls):
        return {number: [_lower(getattr(value, name), table) for name in stored_fields(cls)]}
    return {number: _payload(value)}


def _payload(value: Any) -> str | bytes:
    if isinstance(value, AbstractID):
        return value.value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return str(value)
    raise StoredFormatError(
        f"cannot store a {type(value).__name__}: it is no dataclass, id, enum or str"
    )


def _described(cls: type) -> StoredType:
    schema = schema_of(cls)
    assert schema is not None
    return schema.name, schema.version, stored_fields(cls) if is_dataclass(cls) else None


# --- reading ----------------------------------------------------------------------------------

_Reader = Callable[[Any], Any]


def _parts(data: bytes) -> tuple[tuple[StoredType, ...], bytes]:
    try:
        types, body = msgpack.unpackb(data, use_list=False)
        table = []
        for name, version, names in types:
            if not isinstance(name, str) or not isinstance(version, int) or version < 1:
                raise ValueError(f"no type: {name!r}, {version!r}")
            table.append((name, version, None if names is None else tuple(map(str, names))))
        return tuple(table), bytes(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoredFormatError(f"it is no stored record: {error!r}") from error


def _raise(value: dict[Any, Any], readers: list[_Reader]) -> Any:
    if len(value) == 1:
        ((key, payload),) = value.items()
        if type(key) is int:
            if not 0 <= key < len(readers):
                raise StoredFormatError(f"it names type {key} of {len(readers)}")
            return readers[key](payload)
    if not all(type(key) is str for key in value):
        raise StoredFormatError("it holds a map with keys that are not str")
    return value


def _reader(name: str, version: int, names: tuple[str, ...] | None) -> _Reader:
    if is_retired(name):
        return lambda payload: None
    schema = schema_named(name)
    if schema is None:
        raise StoredFormatError(
            f"it holds a {name} (version {version}), which this flinkray does not know"
        )
    if version > schema.version:
        raise StoredFormatError(
            f"it holds {name} version {version}, and this flinkray reads versions up to "
            f"{schema.version}: a newer flinkray wrote it, and can read it"
        )
    if is_dataclass(schema.type) is not (names is not None):
        raise StoredFormatError(f"it holds {name} in a shape that is not this flinkray's")
    if names is None:
        return lambda payload: _simple(schema, _migrated(schema, version, payload))
    return lambda payload: _dataclass(
        schema, _migrated(schema, version, dict(zip(names, payload, strict=True)))
    )


def _migrated(schema: Schema, version: int, stored: Any) -> Any:
    for past in range(version, schema.version):
        stored = schema.migrations[past](stored)
    return stored


def _dataclass(schema: Schema, values: dict[str, Any]) -> Any:
    unknown = values.keys() - stored_fields(schema.type)
    if unknown:
        raise StoredFormatError(
            f"it holds {schema.name} version {schema.version} with fields that this flinkray does "
            f"not know: {', '.join(sorted(unknown))}"
        )
    try:
        return schema.type(**values)
    except (TypeError, ValueError) as error:
        raise StoredFormatError(f"its {schema.name} cannot be made: {error}") from error


def _simple(schema: Schema, payload: Any) -> Any:
    try:
        if issubclass(schema.type, Enum):
            return schema.type[payload]
        make: Callable[[Any], Any] = schema.type
        return make(payload)
    except (KeyError, TypeError, ValueError) as error:
        raise StoredFormatError(f"it holds no {schema.name}: {payload!r}") from error


def _name_of(cls: type) -> str:
    schema = schema_of(cls)
    return cls.__name__ if schema is None else schema.name
