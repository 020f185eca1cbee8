"""Rolling sum, minimum and maximum of a column by key: a batch of columns in, one out.

Results are those of the record-at-a-time reduce: every record puts out its key's first row with
the aggregated field as it is now.  State is one number per key in an array.  A stream that brings
rows as well is taken over as rows from then on; snapshots are the same in both ways.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.streaming.columnar.grouping import (
    Values,
    extremes_by_group,
    running_extremes,
    running_sums,
    sums_by_group,
)
from flinkray.streaming.columnar.slots import Slots, SlotTable
from flinkray.streaming.elements import MAX_TIMESTAMP, Block, Columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.keying import Keys
from flinkray.streaming.operator import OperatorState
from flinkray.streaming.operators.keyed import ReduceOperator
from flinkray.streaming.row import Row

_START: dict[str, Any] = {
    "sum": lambda kind: 0,
    "min": lambda kind: np.inf if kind.kind == "f" else np.iinfo(kind).max,
    "max": lambda kind: -np.inf if kind.kind == "f" else np.iinfo(kind).min,
}


class KeyedAggregateOperator(ReduceOperator):
    """See the module.

    Args:
        how: ``sum``, ``min`` or ``max``.
        field: the aggregated column.
        reduce: the same on rows.
    """

    def __init__(self, how: str, field: str, reduce: Any, keys: Keys) -> None:
        super().__init__(reduce, keys)
        self._how = how
        self._field = field

    def open(self) -> None:
        super().open()
        self._columns: _ColumnState | None = None

    def process_block(self, block: Block) -> None:
        self._leave_columns()
        super().process_block(block)

    def process_columns(self, columns: Columns) -> None:
        keys = self.keys.of_columns(columns)
        schema = columns.batch.schema
        state = self._columns
        if keys is None or self._field not in schema.names or self._field == self.keys.field:
            self.process_block(columns.to_block())
            return
        if state is None:
            if self._values:  # rows came before
                self.process_block(columns.to_block())
                return
            assert self.keys.field is not None
            state = self._columns = _ColumnState(self._how, self._field, self.keys.field, schema)
        elif schema != state.schema:
            self.process_block(columns.to_block())
            return
        self._take_in(state, columns, keys)

    def _take_in(self, state: _ColumnState, columns: Columns, keys: pa.Array) -> None:
        batch = state.aggregate(columns.batch, keys)
        self.output.emit_columns(Columns(batch, columns.timestamps, columns.origin))

    def _leave_columns(self) -> None:
        if self._columns is not None:
            self._values.update(self._columns.rows())
            self._columns = None

    def snapshot(self, checkpoint_id: int) -> OperatorState:
        state = self._columns
        if state is None:
            return super().snapshot(checkpoint_id)
        self._values.update(state.rows())
        try:
            return super().snapshot(checkpoint_id)
        finally:
            self._values.clear()


class BatchKeyedAggregateOperator(KeyedAggregateOperator):
    """The same in batch mode: the final row of each key, at the end of the input."""

    def process_block(self, block: Block) -> None:
        self._leave_columns()
        self.reduce_block(block)

    def _take_in(self, state: _ColumnState, columns: Columns, keys: pa.Array) -> None:
        state.add(columns.batch, keys)

    def finish(self) -> None:
        self._leave_columns()
        results = list(self._values.values())
        if results:
            self.output.emit(Block(results, [MAX_TIMESTAMP] * len(results)))
        self._values.clear()


class _ColumnState:
    """The aggregate of each key, and what its first row held in the other columns."""

    def __init__(self, how: str, field: str, key: str, schema: pa.Schema) -> None:
        self.schema = schema
        self._how = how
        self._field = field
        self._key = key
        self._slots = SlotTable()
        kind = np.dtype(schema.field(field).type.to_pandas_dtype())
        if kind.kind not in "iuf":
            raise StreamError(
                f"{how} needs a column of numbers; {field!r} is {schema.field(field)}"
            )
        if how == "sum":
            kind = np.dtype(np.float64 if kind.kind == "f" else np.int64)
        self._kind = kind
        self._start = _START[how](kind)
        self._ufunc = np.minimum if how == "min" else np.maximum
        self._values: Values = np.full(1024, self._start, kind)
        self._others = [name for name in schema.names if name not in (key, field)]
        self._first_rows: pa.Table | None = None

    def aggregate(self, batch: pa.RecordBatch, keys: pa.Array) -> pa.RecordBatch:
        """Every record's key as it is after the record."""
        slots, values = self._prepare(batch, keys)
        if self._how == "sum":
            running = running_sums(slots, values, self._values)
        else:
            running = running_extremes(slots, values, self._values, self._ufunc)
        return self._result(batch, slots, running)

    def add(self, batch: pa.RecordBatch, keys: pa.Array) -> None:
        """The same without telling of each record."""
        slots, values = self._prepare(batch, keys)
        if self._how == "sum":
            size = len(self._slots)
            self._values[:size] += sums_by_group(slots, values, size)
        else:
            extremes_by_group(slots, values, self._values, self._ufunc)

    def _prepare(self, batch: pa.RecordBatch, keys: pa.Array) -> tuple[Slots, Values]:
        column = batch.column(self._field)
        if column.null_count:
            raise StreamError(f"{self._how} of {self._field!r}: {column.null_count} nulls")
        known = len(self._slots)
        slots = self._slots.slots_of(keys)
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

    def _keep_first_rows(self, batch: pa.RecordBatch, slots: Any, known: int) -> None:
        fresh = np.flatnonzero(slots >= known)
        if not len(fresh):
            return
        _, first = np.unique(slots[fresh], return_index=True)
        rows = pa.Table.from_batches([batch.select(self._others).take(pa.array(fresh[first]))])
        earlier = self._first_rows
        self._first_rows = (
            rows if earlier is None else pa.concat_tables([earlier, rows]).combine_chunks()
        )

    def _result(self, batch: pa.RecordBatch, slots: Any, running: Values) -> pa.RecordBatch:
        others = None if self._first_rows is None else self._first_rows.take(pa.array(slots))
        columns = []
        for name in self.schema.names:
            if name == self._field:
                columns.append(pa.array(running))
            elif name == self._key or others is None:
                columns.append(batch.column(name))
            else:
                columns.append(others.column(name).combine_chunks())
        return pa.RecordBatch.from_arrays(columns, names=self.schema.names)

    def rows(self) -> dict[Any, Row]:
        """Key -> the row that was put out for it last."""
        names = list(self.schema.names)
        first = [] if self._first_rows is None else self._first_rows.to_pylist()
        values = self._values.tolist()
        result = {}
        for slot, key in enumerate(self._slots.keys):
            known = {**(first[slot] if first else {}), self._key: key, self._field: values[slot]}
            result[key] = Row.of(names, [known[name] for name in names])
        return result
