"""What the values of an Arrow column are in Python: as Arrow says, but maps are dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flinkray.streaming.errors import StreamError


def python_values(column: pa.Array) -> list[Any]:
    """The values of a column.  A map is a dictionary, as of :meth:`Types.MAP`; where its keys are
    structs, lists or maps, which no dictionary takes, a list of pairs.

    Raises:
        StreamError: a map has a key more than once.
    """
    values: list[Any] = column.to_pylist()
    return values if not pa.types.is_nested(column.type) else _each(column.type, values)


def _each(kind: pa.DataType, values: list[Any]) -> list[Any]:
    convert = _converter(kind)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """None: there are no maps in such values."""
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
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise StreamError(
            f"a map of a column has the key {twice!r} more than once, and a dictionary cannot: "
            "make it a list of structs where it is made"
        )
    return found
