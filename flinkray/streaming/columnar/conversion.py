"""From Python values to Arrow, where an operator or a sink wants columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation

SCALAR_COLUMN = "value"
"""The column's name where values are bare."""


def block_to_batch(block: Block, type_info: TypeInformation | None = None) -> pa.RecordBatch:
    """The values as a record batch.

    Rows and dictionaries have a column for each name, tuples f0, f1, …, and other values one
    column, ``value``.  Types are those of *type_info*, or else found from the values.

    Raises:
        StreamError: values that no column can hold, or that differ in type.
    """
    values = block.values
    wanted = None if type_info is None else type_info.to_arrow()
    names, columns = _columns(values)
    try:
        if wanted is not None and pa.types.is_struct(wanted):
            fields = [wanted.field(place) for place in range(wanted.num_fields)]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])
        if wanted is not None and len(columns) == 1:
            return pa.RecordBatch.from_arrays([pa.array(columns[0], wanted)], names=names)
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
        raise StreamError(
            f"values cannot be turned into columns: {error}; declare an output type, or use "
            "values of one type for each field"
        ) from error


def schema_of(kind: pa.DataType) -> pa.Schema:
    """The columns of records of that type."""
    if pa.types.is_struct(kind):
        return pa.schema([kind.field(place) for place in range(kind.num_fields)])
    return pa.schema([(SCALAR_COLUMN, kind)])


def _columns(values: Any) -> tuple[list[str], list[list[Any]]]:
    first = values[0]
    if isinstance(first, Row):
        names = first._fields or [f"f{place}" for place in range(len(first))]
        return list(names), [list(column) for column in zip(*values, strict=True)]
    if isinstance(first, dict):
        return list(first), [[value.get(name) for value in values] for name in first]
    if isinstance(first, tuple):
        names = list(getattr(first, "_fields", ())) or [f"f{n}" for n in range(len(first))]
        return names, [list(column) for column in zip(*values, strict=True)]
    return [SCALAR_COLUMN], [list(values)]


def block_to_columns(block: Block, type_info: TypeInformation | None = None) -> Columns:
    """The same with timestamps and origin."""
    scalar = not isinstance(block.values[0], Row | dict | tuple)
    timestamps = None
    if block.timestamps is not None:
        timestamps = np.asarray(block.timestamps, np.int64)
    return Columns(block_to_batch(block, type_info), timestamps, block.origin, scalar)


def batch_of_type(batch: pa.RecordBatch, type_info: TypeInformation) -> pa.RecordBatch:
    """The batch with the columns of a declared type: those of a row type one after the other, with
    its names; of another type the one column.  As it is where Arrow has no such type.

    Raises:
        StreamError: it has more columns or fewer, or a column holds what is not of its type.
    """
    wanted = type_info.to_arrow()
    if wanted is None:
        return batch
    fields = [pa.field(batch.schema.names[0] if batch.num_columns else "", wanted)]
    if pa.types.is_struct(wanted):
        fields = [wanted.field(place) for place in range(wanted.num_fields)]
    if len(fields) != batch.num_columns:
        raise StreamError(
            f"columns {batch.schema.names} are not those of the declared type {type_info}"
        )
    columns = [
        _cast(batch.schema.names[place], column, fields[place].type)
        for place, column in enumerate(batch.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StreamError(
            f"column {name!r} of type {column.type} cannot be of the declared type {kind}: {error}"
        ) from error
