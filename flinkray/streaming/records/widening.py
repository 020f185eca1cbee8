"""Widens columns whose types differ between batches: integers and floats, nulls and text.

A column gets a type that holds the values of all its batches. Integers of more than 53 bits are
rounded when they become floats, as in NumPy and Arrow. Keys are never rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa

from flinkray.core.arguments import first_twice
from flinkray.streaming.errors import StreamError


def wider_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Return the schema whose types hold the values of both schemas. None: there is none, because
    the columns or kinds of types differ."""
    if one.names != other.names:
        return None
    fields = []
    for mine, its in zip(one, other, strict=True):
        kind = wider_type(mine.type, its.type)
        if kind is None:
            return None
        fields.append(pa.field(mine.name, kind))
    return pa.schema(fields)


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both types. None: no type holds them, or only a type
    of another kind (such as text for numbers), or a type that would round decimals (such as
    floats)."""
    if one == other:
        return one
    if pa.types.is_dictionary(one) != pa.types.is_dictionary(other):
        one, other = (
            kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other)
        )
    pair = (pa.schema([("", one)]), pa.schema([("", other)]))
    try:
        wide = pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    if pa.types.is_decimal(wide):
        return _roomy_decimal(wide, one, other)
    return None if _rounds_decimals(one, wide) or _rounds_decimals(other, wide) else wide


def _roomy_decimal(wide: pa.DataType, one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the decimal type *wide*, which Arrow has chosen for both types, with more digits if
    the integers of one type need them. None: more than 76 digits would be needed."""
    digits = max(
        len(str(2**kind.bit_width - 1)) if pa.types.is_unsigned_integer(kind)
        else len(str(2 ** (kind.bit_width - 1))) if pa.types.is_integer(kind)
        else 0
        for kind in (one, other)
    )  # fmt: skip
    precision = max(wide.precision, digits + wide.scale)
    if precision <= 38 and not pa.types.is_decimal256(wide):
        return pa.decimal128(precision, wide.scale)
    return pa.decimal256(precision, wide.scale) if precision <= 76 else None


def _rounds_decimals(kind: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_floating(wide):
        return bool(pa.types.is_decimal(kind))
    if pa.types.is_struct(kind) and pa.types.is_struct(wide):
        return any(_rounds_decimals(field.type, wide.field(field.name).type) for field in kind)
    if not (pa.types.is_nested(kind) and pa.types.is_nested(wide)):
        return False
    return any(
        _rounds_decimals(kind.field(place).type, wide.field(place).type)
        for place in range(kind.num_fields)
    )


def as_wide(batch: pa.RecordBatch, schema: pa.Schema, key: str | None = None) -> pa.RecordBatch:
    """Return the batch with the types of *schema*, a wider schema with the same columns. Raises
    ArrowInvalid: a value of the column *key* would change, or a value does not fit its new type."""
    if batch.schema == schema:
        return batch
    arrays = [
        _as_wide(column, field.type, field.name != key)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_one_table(
    batches: Sequence[pa.RecordBatch], key: str | None = None, *, may_round: bool = True
) -> pa.Table:
    """Return all rows as one table, of wide enough types. Missing columns are null. Values of the
    column *key* do not change. *may_round*: whether integers of more than 53 bits may be rounded to
    floats. Raises StreamError: no type holds a column of all batches."""
    first = batches[0].schema
    if all(batch.schema == first for batch in batches):
        return pa.Table.from_batches(batches)
    try:
        schema = _schema_of_all([batch.schema for batch in batches])
        wide = [
            pa.table(
                {
                    name: _as_wide(b[name], schema.field(name).type, may_round and name != key)
                    for name in b.schema.names
                }
            )
            for b in batches
        ]
        return pa.concat_tables(wide, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise StreamError(
            f"the columns of a stream's batches do not go together: {error}; cast them before"
        ) from error


def _schema_of_all(schemas: Sequence[pa.Schema]) -> pa.Schema:
    kinds: dict[str, pa.DataType] = {}
    for schema in schemas:
        twice = first_twice(schema.names)
        if twice is not None:
            raise pa.ArrowTypeError(f"two columns of a batch are named {twice!r}")
        for name, kind in zip(schema.names, schema.types, strict=True):
            known = kinds.get(name, kind)
            wide = wider_type(known, kind)
            if wide is None:
                raise pa.ArrowTypeError(f"column {name!r} has {known} and {kind}")
            kinds[name] = wide
    return pa.schema(list(kinds.items()))


def _as_wide(column: pa.Array, kind: pa.DataType, may_round: bool = True) -> pa.Array:
    if column.type == kind:
        return column
    rounds = pa.types.is_integer(column.type) and pa.types.is_floating(kind)
    return column.cast(kind, safe=not (rounds and may_round))


Data = TypeVar("Data", pa.RecordBatch, pa.Table)


def without_views(data: Data) -> Data:
    """Return the rows with Arrow's *view* columns of texts and bytes converted to large texts and
    large bytes."""
    for place, kind in enumerate(data.schema.types):
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            plain = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
            name = data.schema.names[place]
            data = data.set_column(place, name, data.column(place).cast(plain))
    return data
