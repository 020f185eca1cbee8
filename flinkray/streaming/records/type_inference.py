"""Infers types from type hints and Arrow schemas, so that they need not be declared."""

from __future__ import annotations

import datetime
import decimal
import types
import typing
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flinkray.streaming.records.typeinfo import RowTypeInfo, TypeInformation, Types

_OF_CLASS: dict[Any, Callable[[], TypeInformation]] = {
    str: Types.STRING,
    bool: Types.BOOLEAN,
    int: Types.LONG,
    float: Types.DOUBLE,
    decimal.Decimal: Types.BIG_DEC,
    datetime.date: Types.SQL_DATE,
    datetime.time: Types.SQL_TIME,
    datetime.datetime: Types.SQL_TIMESTAMP,
}


def type_of_hint(hint: Any) -> TypeInformation | None:
    """Return the type for a Python type hint. None if the hint is not specific enough."""
    if hint in _OF_CLASS:
        return _OF_CLASS[hint]()
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        some = [argument for argument in arguments if argument is not type(None)]
        return type_of_hint(some[0]) if len(some) == 1 else None
    parts = [type_of_hint(argument) for argument in arguments if argument is not Ellipsis]
    if not parts or any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if origin is tuple and Ellipsis not in arguments:
        return Types.TUPLE(known)
    if origin is list:
        return Types.LIST(known[0])
    if origin is dict:
        return Types.MAP(known[0], known[1])
    return None


def type_of_result(function: Any) -> TypeInformation | None:
    """Return the type for a function's return hint. None if there is no specific hint."""
    try:
        hint = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return None if hint is None else type_of_hint(hint)


_OF_ARROW: list[tuple[Callable[[pa.DataType], bool], Callable[[], TypeInformation]]] = [
    (pa.types.is_boolean, Types.BOOLEAN),
    (pa.types.is_int8, Types.BYTE),
    (pa.types.is_int16, Types.SHORT),
    (pa.types.is_int32, Types.INT),
    (pa.types.is_integer, Types.LONG),
    (pa.types.is_float32, Types.FLOAT),
    (pa.types.is_floating, Types.DOUBLE),
    (pa.types.is_decimal, Types.BIG_DEC),
    (pa.types.is_date, Types.SQL_DATE),
    (pa.types.is_time, Types.SQL_TIME),
    (pa.types.is_timestamp, Types.SQL_TIMESTAMP),
    (pa.types.is_string, Types.STRING),
    (pa.types.is_large_string, Types.STRING),
    (pa.types.is_duration, Types.PICKLED_BYTE_ARRAY),
    (pa.types.is_binary, Types.PICKLED_BYTE_ARRAY),
    (pa.types.is_large_binary, Types.PICKLED_BYTE_ARRAY),
    (pa.types.is_fixed_size_binary, Types.PICKLED_BYTE_ARRAY),
    (pa.types.is_null, Types.PICKLED_BYTE_ARRAY),
]


def type_of_arrow(kind: pa.DataType) -> TypeInformation:
    """Return the type of the values of an Arrow column.
    If such values become a column again, it has the same Arrow type."""
    for matches, make in _OF_ARROW:
        if matches(kind):
            return make().with_arrow(kind)
    if pa.types.is_dictionary(kind):
        return type_of_arrow(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return Types.LIST(type_of_arrow(kind.value_type))
    if pa.types.is_map(kind):
        return Types.MAP(type_of_arrow(kind.key_type), type_of_arrow(kind.item_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return Types.ROW_NAMED([f.name for f in fields], [type_of_arrow(f.type) for f in fields])
    return Types.PICKLED_BYTE_ARRAY()


def type_of_schema(schema: pa.Schema) -> RowTypeInfo:
    return Types.ROW_NAMED(schema.names, [type_of_arrow(field.type) for field in schema])
