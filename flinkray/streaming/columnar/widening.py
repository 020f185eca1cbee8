"""Columns whose types differ from batch to batch: integers and then floats, nulls and then text.

A column has the type that holds what all its batches have held.  Whole numbers of more than 53 bits
are rounded where floats come to them, as NumPy and Arrow do; keys never are.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from flinkray.streaming.errors import StreamError


def wider_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """The schema for batches of both; None: their columns differ by more than the width of their
    types."""
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
    """The type that holds the values of both; None: there is none, or only one that none of them
    is near, as text is to numbers."""
    if one == other:
        return one
    if pa.types.is_dictionary(one) != pa.types.is_dictionary(other):
        one, other = (
            kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other)
        )
    pair = (pa.schema([("", one)]), pa.schema([("", other)]))
    try:
        return pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def as_wide(batch: pa.RecordBatch, schema: pa.Schema, key: str | None = None) -> pa.RecordBatch:
    """The batch with the types of a wider schema of the same columns.

    Args:
        key: the column whose values must stay what they are.

    Raises:
        ArrowInvalid: one of them does not, or another value is outside of its type.
    """
    if batch.schema == schema:
        return batch
    arrays = [
        _as_wide(column, field.type, field.name != key)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_one_table(batches: Sequence[pa.RecordBatch], key: str | None) -> pa.Table:
    """All rows, in columns that are wide enough for them; where a batch lacks a column, nulls.

    Args:
        key: the column whose values must stay what they are.

    Raises:
        StreamError: there is no such type for a column.
    """
    first = batches[0].schema
    if all(batch.schema == first for batch in batches):
        return pa.Table.from_batches(batches)
    try:
        schema = pa.unify_schemas([b.schema for b in batches], promote_options="permissive")
        wide = [
            pa.table(
                {
                    name: _as_wide(b[name], schema.field(name).type, name != key)
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


def _as_wide(column: pa.Array, kind: pa.DataType, may_round: bool = True) -> pa.Array:
    if column.type == kind:
        return column
    rounds = pa.types.is_integer(column.type) and pa.types.is_floating(kind)
    return column.cast(kind, safe=not (rounds and may_round))
