"""The aggregate of a column for each key, in arrays: one number per key, and the other columns of
each key's first row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.state.key_numbers import KeyNumbers, Slots
from flinkray.streaming.columnar.grouping import (
    Values,
    extremes_by_group,
    running_extremes,
    running_sums,
    start_of,
    sums_by_group,
    ufunc_of,
)
from flinkray.streaming.columnar.widening import as_wide, wider_schema
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.row import Row


class AggregateState:
    """See the module.

    Args:
        how: ``sum``, ``min`` or ``max``.
        field: the aggregated column.
        key: the key column.
        schema: of the first batch.

    Raises:
        StreamError: the column holds no numbers.
    """

    def __init__(self, how: str, field: str, key: str, schema: pa.Schema) -> None:
        self.schema = schema
        self._how = how
        self._field = field
        self._key = key
        self._slots = KeyNumbers()
        self._kind = self._kind_of(schema)
        self._start = start_of(how, self._kind)
        self._ufunc = ufunc_of(how, self._kind)
        self._values: Values = np.full(1024, self._start, self._kind)
        self._others = [name for name in schema.names if name not in (key, field)]
        self._first_rows: list[pa.RecordBatch] = []
        """The other columns, by slot: put together when they are read."""
        self.result_schema = self._results_of(schema)

    def _kind_of(self, schema: pa.Schema) -> np.dtype[Any]:
        """Of the numbers that are kept."""
        given = schema.field(self._field).type
        if not (pa.types.is_integer(given) or pa.types.is_floating(given)):
            raise StreamError(
                f"{self._how} needs a column of numbers; {self._field!r} is of type {given}: "
                "cast it before"
            )
        kind: np.dtype[Any] = np.dtype(given.to_pandas_dtype())
        if self._how == "sum":
            kind = np.dtype(np.float64 if kind.kind == "f" else np.int64)
        return kind

    def _results_of(self, schema: pa.Schema) -> pa.Schema:
        value_type = pa.from_numpy_dtype(self._kind)
        return pa.schema(
            [(f.name, value_type if f.name == self._field else _roomy(f.type)) for f in schema]
        )

    def fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The batch in columns of the state's types, which become wider where they have to; None:
        its columns are others, and :meth:`aggregate` and :meth:`add` cannot take it."""
        if batch.schema == self.schema:
            return batch
        schema = wider_schema(self.schema, batch.schema)
        if schema is None or not self._keeps_keys(schema.field(self._key).type):
            return None
        try:
            fitting = as_wide(batch, schema, self._key)
        except pa.ArrowInvalid:  # a value of the batch is outside of the type, or a key is rounded
            return None
        if schema != self.schema:
            self._widen(schema)
        return fitting

    def _keeps_keys(self, kind: pa.DataType) -> bool:
        """Whether a column of that type holds the keys that came as what they are: a large integer
        may be no float."""
        was = self.schema.field(self._key).type
        if not (pa.types.is_integer(was) and pa.types.is_floating(kind)):
            return True
        try:
            pa.array(self._slots.keys, kind)
        except pa.ArrowInvalid:
            return False
        return True

    def _widen(self, schema: pa.Schema) -> None:
        self.schema = schema
        kind = self._kind_of(schema)
        if kind != self._kind:
            self._kind = kind
            self._start = start_of(self._how, kind)
            self._ufunc = ufunc_of(self._how, kind)
            size = len(self._slots)
            wider: Values = np.full(len(self._values), self._start, kind)
            wider[:size] = self._values[:size]
            self._values = wider
        self.result_schema = self._results_of(schema)
        if self._first_rows:
            others = pa.schema([self.result_schema.field(name) for name in self._others])
            self._first_rows = [as_wide(self._all_first_rows(), others)]

    def __len__(self) -> int:
        """Keys."""
        return len(self._slots)

    def aggregate(self, batch: pa.RecordBatch, keys: pa.Array) -> pa.RecordBatch:
        """Every record's key as it is after the record."""
        slots, values = self._prepare(batch, keys)
        if self._how == "sum":
            running = running_sums(slots, values, self._values)
        else:
            running = running_extremes(slots, values, self._values, self._ufunc)
        columns = {self._key: batch.column(self._key), self._field: pa.array(running)}
        if self._others:
            rows = pc.take(self._all_first_rows(), pa.array(slots), boundscheck=False)
            columns |= dict(zip(self._others, rows.columns, strict=True))
        return self._batch_of(columns)

    def add(self, batch: pa.RecordBatch, keys: pa.Array) -> None:
        """The same without telling of each record."""
        slots, values = self._prepare(batch, keys)
        if self._how == "sum":
            size = len(self._slots)
            self._values[:size] += sums_by_group(slots, values, size)
        else:
            extremes_by_group(slots, values, self._values, self._ufunc)

    def result(self) -> pa.RecordBatch:
        """Every key as it is now, in the order in which the keys came."""
        size = len(self._slots)
        keys = pa.array(self._slots.keys, self.result_schema.field(self._key).type)
        columns = {self._key: keys, self._field: pa.array(self._values[:size])}
        if self._others:
            rows = self._all_first_rows()
            columns |= {name: rows.column(name) for name in self._others}
        return self._batch_of(columns)

    def as_results(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch as it came, as if each of its records were the only one of its key."""
        value_type = self.result_schema.field(self._field).type
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns[self._field] = columns[self._field].cast(value_type, safe=False)  # as sums wrap
        return self._batch_of(columns)

    def rows(self) -> dict[Any, Row]:
        """Key -> the row that was put out for it last."""
        names = list(self.schema.names)
        first = self._all_first_rows().to_pylist() if self._others else []
        values = self._values.tolist()
        result = {}
        for slot, key in enumerate(self._slots.keys):
            known = {**(first[slot] if first else {}), self._key: key, self._field: values[slot]}
            result[key] = Row.of(names, [known[name] for name in names])
        return result

    def _prepare(self, batch: pa.RecordBatch, keys: pa.Array) -> tuple[Slots, Values]:
        column = batch.column(self._field)
        if column.null_count:
            raise StreamError(
                f"{self._how} of {self._field!r}: {column.null_count} nulls; fill or filter them"
            )
        known = len(self._slots)
        slots = self._slots.slots_of(keys)
        if len(self._slots) > known:
            self._grow(len(self._slots))
            if self._others:
                self._keep_first_rows(batch, slots, known)
        values: Values = column.to_numpy(zero_copy_only=False)
        return slots, values

    def _grow(self, needed: int) -> None:
        if needed > len(self._values):
            grown: Values = np.full(max(needed, 2 * len(self._values)), self._start, self._kind)
            grown[: len(self._values)] = self._values
            self._values = grown

    def _keep_first_rows(self, batch: pa.RecordBatch, slots: Slots, known: int) -> None:
        fresh = np.flatnonzero(slots >= known)
        _, first = np.unique(slots[fresh], return_index=True)
        taken = batch.select(self._others).take(pa.array(fresh[first]))
        arrays = [_as(taken[name], self.result_schema.field(name).type) for name in self._others]
        self._first_rows.append(pa.RecordBatch.from_arrays(arrays, self._others))

    def _all_first_rows(self) -> pa.RecordBatch:
        if len(self._first_rows) > 1:
            self._first_rows = pa.Table.from_batches(self._first_rows).combine_chunks().to_batches()
        (rows,) = self._first_rows
        return rows

    def _batch_of(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        schema = self.result_schema
        return pa.RecordBatch.from_arrays(
            [_as(columns[f.name], f.type) for f in schema], schema=schema
        )


def _roomy(kind: pa.DataType) -> pa.DataType:
    """A dictionary that all batches share may have more entries than each of theirs, whose indices
    may be of 8 bits (those of pandas are)."""
    if pa.types.is_dictionary(kind) and kind.index_type.bit_width < 32:
        return pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
    return kind


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    indices = column.indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, column.dictionary, ordered=kind.ordered)
