"""Rolling sum, minimum and maximum of a column by key, with their state in arrays.

Results are those of the record-at-a-time reduce: for every record, the first row of its key with
the current aggregate. State is a number per key in an array. If the type of a column becomes wider,
all later rows have the wider type. When a stream also brings rows, or the state of subtasks that
have stored rows is restored, the operator continues with rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.kernels.aggregates import (
    extremes_by_group,
    running_extremes,
    running_sums,
    sums_by_group,
)
from flinkray.kernels.numpy_aggregates import Values, start_of
from flinkray.state.columnar_table import ColumnarTable
from flinkray.state.key_numbers import Slots
from flinkray.state.row_table import RowTable
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.keyed import ReduceOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block, Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.widening import as_wide, wider_schema


class KeyedAggregateOperator(ReduceOperator):
    """Rolling sum, minimum or maximum (*how*) of a column by key.
    *reduce*: the equivalent reduce function on rows."""

    def __init__(self, how: str, field: str, reduce: Any, keys: Keys) -> None:
        super().__init__(reduce, keys)
        self._how = how
        self._field = field

    def open(self) -> None:
        super().open()
        assert self.keyed_state is not None
        self._tables = AggregateTables(
            self.keyed_state.columns("aggregates"),
            self.keyed_state.rows("first rows", keys_of=self._keys_of),
        )
        self._columns: AggregateState | None = None
        if len(self._tables.numbers):
            key = self.keys.field
            assert key is not None
            if not len(self._values):
                self._columns = AggregateState.restored(self._how, self._field, key, self._tables)
            if self._columns is None:
                self._leave_columns()

    def _keys_of(self, batch: pa.RecordBatch) -> pa.Array:
        return self.keys.of_columns(Columns(batch))

    def process_block(self, block: Block) -> None:
        self._leave_columns()
        super().process_block(block)

    def process_columns(self, columns: Columns) -> None:
        keys = self.keys.of_columns(columns)
        batch = columns.batch
        if isinstance(self._field, str) and self._field not in batch.schema.names:
            raise StreamError(
                f"there is no column {self._field!r} to {self._how}: {batch.schema.names}"
            )
        state = self._columns
        if keys is None or self._field not in batch.schema.names or self._field == self.keys.field:
            self.process_block(columns.to_block())
            return
        if not len(columns):
            return
        if state is None:
            if len(self._values):  # rows came first
                self.process_block(columns.to_block())
                return
            assert self.keys.field is not None
            state = self._columns = AggregateState(
                self._how, self._field, self.keys.field, batch.schema, self._tables
            )
        fitting = state.fitting(batch)
        if fitting is None:
            self.process_block(columns.to_block())
            return
        self._take_in(state, Columns(fitting, columns.timestamps, columns.origin), keys)

    def _take_in(self, state: AggregateState, columns: Columns, keys: pa.Array) -> None:
        batch = state.aggregate(columns.batch, keys)
        self.output.emit_columns(Columns(batch, columns.timestamps, columns.origin))

    def _leave_columns(self) -> None:
        if len(self._tables.numbers):
            assert self.keys.field is not None
            self._values.put_all(self._tables.rows(self.keys.field, self._field))
            self._tables.clear()
            self._columns = None


class BatchKeyedAggregateOperator(KeyedAggregateOperator):
    """Aggregate in batch mode: puts out the final row of each key at the end of the input."""

    def process_block(self, block: Block) -> None:
        self._leave_columns()
        self.reduce_block(block)

    def _take_in(self, state: AggregateState, columns: Columns, keys: pa.Array) -> None:
        state.add(columns.batch, keys)

    def finish(self) -> None:
        state = self._columns
        if state is not None and not len(self._values):
            times = np.full(len(state), MAX_TIMESTAMP, np.int64)
            result = state.result()
            self._columns = None
            self._tables.clear()
            self.output.emit_columns(Columns(result, times))
            return
        self._leave_columns()
        self.emit_all()


NUMBER = "number"
"""Name of the column of aggregates in the table of numbers."""


class AggregateTables(NamedTuple):
    """The two tables with the state of an :class:`AggregateState`: the first row of each key, and
    its present aggregate. They are in memory, or in a backend."""

    numbers: ColumnarTable
    """The aggregates: one number for each key."""
    first_rows: RowTable
    """The first row of each key, in the order of the slots. The results take their other columns,
    and their types, from these rows. The aggregated column is null."""

    @property
    def keys(self) -> list[Any]:
        """The known keys. The index of a key in this list is its slot."""
        return self.numbers.keys

    def rows(self, key: str, field: str) -> dict[Any, Row]:
        """Return each key's latest result: its first row, with the present aggregate as *field*."""
        result: dict[Any, Row] = {}
        for batch, _ in self.first_rows:
            names = batch.schema.names
            slots = self.slots_of(batch)
            aggregates = self.numbers.values(NUMBER)[slots].tolist()
            first = batch.to_pylist()
            for slot, row, aggregate in zip(slots.tolist(), first, aggregates, strict=True):
                row[key], row[field] = self.keys[slot], aggregate
                result[row[key]] = Row.of(names, [row[name] for name in names])
        return result

    def slots_of(self, batch: pa.RecordBatch) -> Slots:
        """Return, for each row of *batch*, the slot of its key (the index of the key's number).
        *batch* must be one of the batches in *first_rows*."""
        keys_of = self.first_rows.keys_of
        assert keys_of is not None
        return self.numbers.known_slots_of_column(keys_of(batch))

    def clear(self) -> None:
        self.numbers.clear()
        self.first_rows.clear()


class AggregateState:
    """The running sum, minimum or maximum (*how*) of the column *field* for each key.
    *schema*: schema of the first batch or, after a restore, of all restored rows. Raises
    StreamError: the column holds no numbers."""

    def __init__(
        self, how: str, field: str, key: str, schema: pa.Schema, tables: AggregateTables
    ) -> None:
        self._how = how
        self._field = field
        self._key = key
        self._tables = tables
        self._numbers, self._first_rows = tables
        self._others = [name for name in schema.names if name not in (key, field)]
        self._set_schema(schema)

    @classmethod
    def restored(
        cls, how: str, field: str, key: str, tables: AggregateTables
    ) -> AggregateState | None:
        """Return an aggregate that continues with the state in *tables*. None if the columns of the
        stored rows have no common type that keeps every key exact."""
        schemas = [rows.batch.schema for rows in tables.first_rows]
        schema: pa.Schema | None = schemas[0]
        for other in schemas[1:]:
            schema = None if schema is None else wider_schema(schema, other)
        kind = tables.numbers.kind_of(NUMBER)
        if schema is None or kind is None:
            return None
        if how != "sum" or kind.kind == "f":  # integers that are summed up may be narrower
            place, value = schema.get_field_index(field), pa.from_numpy_dtype(kind)
            schema = schema.set(place, pa.field(field, value))
        try:
            tables.first_rows.convert(lambda batch: as_wide(batch, schema, key))
        except pa.ArrowInvalid:  # a key would be rounded
            return None
        rows = tables.first_rows.as_one()
        in_order = pa.array(np.argsort(tables.slots_of(rows)))  # they were stored by key group
        tables.first_rows.convert(lambda batch: batch.take(in_order))
        return cls(how, field, key, schema, tables)

    def _set_schema(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._kind = self._numbers.wide_column(
            NUMBER, self._kind_of(schema), lambda kind: start_of(self._how, kind)
        )
        self.result_schema = self._results_of(schema)
        place = schema.get_field_index(self._field)
        self._row_schema = self.result_schema.set(place, schema.field(place))
        self._first_rows.convert(lambda batch: as_wide(batch, self._row_schema))

    def _kind_of(self, schema: pa.Schema) -> np.dtype[Any]:
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
        """Return *batch* converted to the column types of the state, which become wider first if
        needed. None: no type holds both, so :meth:`aggregate` and :meth:`add` cannot take it."""
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
            self._set_schema(schema)
        return fitting

    def _keeps_keys(self, kind: pa.DataType) -> bool:
        """Return whether all earlier keys stay exact if the key column gets the type *kind*.
        A float cannot hold every integer."""
        was = self.schema.field(self._key).type
        if not (pa.types.is_integer(was) and pa.types.is_floating(kind)):
            return True
        try:
            pa.array(self._tables.keys, kind)
        except pa.ArrowInvalid:
            return False
        return True

    def __len__(self) -> int:
        return len(self._numbers)

    def aggregate(self, batch: pa.RecordBatch, keys: pa.Array) -> pa.RecordBatch:
        """Add a batch to the aggregates. Returns for each record the first row of its key, with the
        aggregate as it is after that record."""
        slots, values = self._prepare(batch, keys)
        state = self._numbers.values(NUMBER)
        if self._how == "sum":
            running = running_sums(slots, values, state)
        else:
            running = running_extremes(self._how, slots, values, state)
        columns = {self._key: batch.column(self._key), self._field: pa.array(running)}
        if self._others:
            rows = pc.take(self._all_first_rows(), pa.array(slots), boundscheck=False)
            columns |= dict(zip(self._others, rows.columns, strict=True))
        return _batch_of(columns, self.result_schema)

    def add(self, batch: pa.RecordBatch, keys: pa.Array) -> None:
        """Add a batch to the aggregates, like :meth:`aggregate`, but without computing rows."""
        slots, values = self._prepare(batch, keys)
        state = self._numbers.values(NUMBER)
        if self._how == "sum":
            state += sums_by_group(slots, values, len(state))
        else:
            extremes_by_group(self._how, slots, values, state)

    def result(self) -> pa.RecordBatch:
        """Return the current row of every key, in the order in which the keys came."""
        keys = pa.array(self._tables.keys, self.result_schema.field(self._key).type)
        numbers = self._numbers.values(NUMBER).copy()  # a copy: the state goes on changing
        columns = {self._key: keys, self._field: pa.array(numbers)}
        if self._others:
            rows = self._all_first_rows()
            columns |= {name: rows.column(name) for name in self._others}
        return _batch_of(columns, self.result_schema)

    def as_results(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return *batch* with the columns and types of results: the results that its records would
        give if each were the first record of its key."""
        value_type = self.result_schema.field(self._field).type
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns[self._field] = columns[self._field].cast(value_type, safe=False)  # as sums wrap
        return _batch_of(columns, self.result_schema)

    def _prepare(self, batch: pa.RecordBatch, keys: pa.Array) -> tuple[Slots, Values]:
        column = batch.column(self._field)
        if column.null_count:
            raise StreamError(
                f"{self._how} of {self._field!r}: {column.null_count} nulls; fill or filter them"
            )
        known = len(self._numbers)
        slots = self._numbers.slots_of_column(keys)
        if len(self._numbers) > known:
            self._keep_first_rows(batch, slots, known)
        values: Values = column.to_numpy(zero_copy_only=False)
        return slots, values

    def _keep_first_rows(self, batch: pa.RecordBatch, slots: Slots, known: int) -> None:
        fresh = np.flatnonzero(slots >= known)[::-1]
        first = np.empty(len(self._numbers) - known, np.intp)
        first[slots[fresh] - known] = fresh  # of several, the last one stays
        rows = batch.take(pa.array(first))
        columns = {name: rows.column(name) for name in (self._key, *self._others)}
        columns[self._field] = pa.nulls(len(first), self._row_schema.field(self._field).type)
        self._first_rows.append(_batch_of(columns, self._row_schema))

    def _all_first_rows(self) -> pa.RecordBatch:
        return self._first_rows.as_one().select(self._others)


def _roomy(kind: pa.DataType) -> pa.DataType:
    """Return a dictionary type with 32-bit indices in place of *kind*, and other types unchanged.
    All batches share one dictionary. It may have more entries than can be numbered by the 8-bit
    indices that batches from pandas have."""
    if pa.types.is_dictionary(kind) and kind.index_type.bit_width < 32:
        return pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
    return kind


def _batch_of(columns: dict[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_as(columns[f.name], f.type) for f in schema], schema=schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    indices = column.indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, column.dictionary, ordered=kind.ordered)
