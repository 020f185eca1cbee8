"""Reads Parquet files as batches of columns, with the schema of their source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flinkray.core.arguments import first_twice
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.records.widening import wider_type
from flinkray.streaming.sources.file_input import Reading, is_packed, shown, unpacked

_BATCH_ROWS = 1 << 16
"""Rows of a batch. Offsets of splits count batches of this size."""


def _opened(source: Any, int96_unit: str = "us") -> pq.ParquetFile:
    return pq.ParquetFile(source, coerce_int96_timestamp_unit=int96_unit)


def _source(path: str) -> Any:
    return unpacked(path) if is_packed(path) else pa.OSFile(os.fsencode(path))


def parquet_schema(path: str) -> pa.Schema:
    """Return the columns of a file.
    Raises StreamError: the file is not Parquet, or two columns have the same name."""
    with Reading(path, "Parquet"), _source(path) as source, _opened(source) as file:
        schema = file.schema_arrow
    twice = first_twice(schema.names)
    if twice is not None:
        raise StreamError(
            f"{shown(path)} has more than one column named {text_of(twice)}, of which one would "
            "be lost: write it with a name for each column"
        )
    return schema


def add_columns(
    schema: pa.Schema, other: pa.Schema, path: str, declared: Mapping[str, pa.DataType]
) -> pa.Schema:
    """Return *schema* (of earlier files) widened by the schema *other* of the file at *path*.
    Raises StreamError: no type holds a column of both."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for name, kind in zip(other.names, other.types, strict=True):
        known = kinds.get(name, kind)
        wide = declared.get(name) or wider_type(known, kind)
        if wide is None:
            raise StreamError(
                f"{shown(path)} has a column {name!r} of type {kind}, and files before it of type "
                f"{known}: declare its type, as in column_types={{{name!r}: Types.STRING()}}, or "
                "read the files with sources of their own"
            )
        kinds[name] = wide
    return pa.schema(list(kinds.items()))


def read_parquet(
    path: str, schema: pa.Schema, declared: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of the source's schema. Missing columns are null.
    Raises StreamError: the file is not Parquet, has other columns, or has a value that does not fit
    its column's type."""
    mine = parquet_schema(path)
    for name in mine.names:
        if name not in schema.names:
            raise StreamError(
                f"{shown(path)} has a column {name!r} that no file had when the source found its "
                f"columns, {schema.names}: declare it as one of column_types"
            )
    with (
        Reading(path, "Parquet"),
        _source(path) as source,
        _opened(source, "ns") as of_ns,
        _opened(source) as file,
    ):
        other = of_ns.schema_arrow
        of_96 = [name for name in mine.names if mine.field(name).type != other.field(name).type]
        rows = 0
        exact = of_ns.iter_batches(_BATCH_ROWS, columns=of_96) if of_96 else iter(())
        for batch in file.iter_batches(_BATCH_ROWS):
            if of_96:
                batch = _with_nanoseconds(path, rows, batch, next(exact), declared)
            yield _of_schema(path, rows, batch, schema)
            rows += batch.num_rows


def _with_nanoseconds(
    path: str,
    rows: int,
    batch: pa.RecordBatch,
    exact: pa.RecordBatch,
    declared: Mapping[str, pa.DataType],
) -> pa.RecordBatch:
    """Return the batch with 96-bit timestamps in microseconds, or in nanoseconds if that is
    declared. *batch*: has them in microseconds. *exact*: has the same columns in nanoseconds, which
    overflow without an error. Raises StreamError for a time that the unit does not hold."""
    for name in exact.schema.names:
        place = batch.schema.get_field_index(name)
        micros, nanos = batch.column(place), exact[name]
        kind = declared.get(name)
        if kind is not None and pa.types.is_timestamp(kind) and kind.unit == "ns":
            if any(map(_is_outside, _times_in(micros))):
                raise StreamError(
                    f"{shown(path)}: column {name!r} is declared as {kind}, and one of the rows "
                    f"{rows} to {rows + len(batch)} has a time that nanoseconds do not reach"
                )
            batch = batch.set_column(place, name, nanos)
        elif any(map(_has_rest, _times_in(micros), _times_in(nanos))):
            raise StreamError(
                f"{shown(path)}: column {name!r} is read in microseconds, and one of the rows "
                f"{rows} to {rows + len(batch)} has nanoseconds: declare the column, as in "
                f"column_types={{{name!r}: pa.timestamp('ns')}}, if its times are of the years 1678"
                " to 2261"
            )
    return batch


def _times_in(array: pa.Array) -> list[pa.Array]:
    """Return the arrays of timestamps in *array*: itself, or those in its lists, structs, maps."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return [array]
    if pa.types.is_struct(kind):
        return [times for field in array.flatten() for times in _times_in(field)]
    if pa.types.is_map(kind):
        return [*_times_in(array.keys), *_times_in(array.items)]
    return _times_in(array.flatten()) if pa.types.is_nested(kind) else []


_MOST_MICROS = (1 << 63) // 1000


def _is_outside(micros: pa.Array) -> bool:
    span = pc.min_max(micros.cast(pa.int64()))
    least, most = span["min"].as_py(), span["max"].as_py()
    return least is not None and (least <= -_MOST_MICROS or most >= _MOST_MICROS)


def _has_rest(micros: pa.Array, nanos: pa.Array) -> bool:
    """Return whether some times are finer than microseconds. Correct even where the nanoseconds
    have overflowed."""
    both = (pc.fill_null(array.cast(pa.int64()), 0).to_numpy() for array in (micros, nanos))
    of_micros, of_nanos = (numbers.view(np.uint64) for numbers in both)
    return bool((of_nanos - of_micros * np.uint64(1000)).any())


def _of_schema(path: str, rows: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        place = batch.schema.get_field_index(name)
        if place < 0:
            arrays.append(pa.nulls(batch.num_rows, kind))
            continue
        column = batch.column(place)
        try:
            arrays.append(column if column.type == kind else column.cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise StreamError(
                f"{shown(path)}: column {name!r} of type {column.type} has a value in the rows "
                f"{rows} to {rows + batch.num_rows} that its type in the source, {kind}, does not "
                f"hold: {error}; declare its type, as in column_types={{{name!r}: Types.STRING()}}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
