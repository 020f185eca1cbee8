"""Converts Arrow columns to Python values as Arrow does, except that maps become dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flinkray.core.arguments import first_twice
from flinkray.streaming.errors import StreamError


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column. A map becomes a dictionary, as for :meth:`Types.MAP`. If its
    keys are structs, lists or maps, which cannot be dictionary keys, it becomes a list of pairs.
    Raises StreamError: a map has a key more than once, or Python's types cannot hold a value."""
    kind = column.type
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise StreamError(
            f"a column of type {kind} has a value that is none of Python's: {error}; use functions "
            "of batches, or cast the column before"
        ) from error
    if pa.types.is_time(kind) and kind.unit == "ns" and _has_more_than_microseconds(column):
        raise StreamError(
            f"a column of type {kind} has a time with nanoseconds, which Python's times do not "
            "hold: use functions of batches, or cast the column before"
        )
    return values if not pa.types.is_nested(kind) else _each(kind, values)


def _has_more_than_microseconds(column: pa.Array) -> bool:
    import pyarrow.compute as pc

    numbers = pc.fill_null(column.cast(pa.int64()), 0)
    return bool(pc.any(pc.not_equal(pc.multiply(pc.divide(numbers, 1000), 1000), numbers)).as_py())


def _each(kind: pa.DataType, values: list[Any]) -> list[Any]:
    convert = _converter(kind)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    if pa.types.is_map(kind):
        return lambda pairs: _dictionary(kind, pairs)
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        if all(_converter(field.type) is None for field in fields):
            return None
        return lambda struct: {
            field.name: _each(field.type, [struct[field.name]])[0] for field in fields
        }
    is_list = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    if is_list and _converter(kind.value_type) is not None:
        return lambda elements: _each(kind.value_type, elements)
    return None


def _dictionary(kind: pa.MapType, pairs: list[tuple[Any, Any]]) -> Any:
    keys = [key for key, _ in pairs]
    items = _each(kind.item_type, [item for _, item in pairs])
    if pa.types.is_nested(kind.key_type):
        return list(zip(keys, items, strict=True))
    found = dict(zip(keys, items, strict=True))
    if len(found) < len(keys):
        raise StreamError(
            f"a map of a column has the key {first_twice(keys)!r} more than once, and a dictionary "
            "cannot: make it a list of structs where it is made"
        )
    return found
