"""Rolling sum, minimum and maximum of a column by key: a batch of columns in, a batch out.

Results are those of the record-at-a-time reduce: for every record, the first row of its key with
the current aggregate. State is a number per key in an array. If the type of a column becomes wider,
all later rows have the wider type. When a stream also brings rows, or the state of subtasks that
have stored rows is restored, the operator continues with rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.streaming.columnar.aggregate_state import AggregateState, AggregateTables
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.keyed import ReduceOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block, Columns
from flinkray.streaming.records.keying import Keys


class KeyedAggregateOperator(ReduceOperator):
    """Rolling aggregate of a column by key.

    Args:
        how: ``sum``, ``min`` or ``max``.
        field: name of the aggregated column.
        reduce: the equivalent reduce function on rows.
    """

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
