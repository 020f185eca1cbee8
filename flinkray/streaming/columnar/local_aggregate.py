"""The first half of an aggregate in batch mode, in the tasks before the exchange by key.

A task sends one row for each key, instead of every record. If a sample shows that keys hardly
repeat, batches are passed on as they come (Flink: ``table.exec.local-hash-agg.adaptive.enabled``).
"""

from __future__ import annotations

import pyarrow as pa

from flinkray.state.columnar_table import ColumnarTable
from flinkray.state.row_table import RowTable
from flinkray.streaming.columnar.aggregate_state import AggregateState, AggregateTables
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.keying import Keys

SAMPLE = 500_000
"""Records in the sample (Flink: ``table.exec.local-hash-agg.adaptive.sampling-threshold``)."""
MOST_DISTINCT = 0.5
"""Most keys per record of the sample; Flink's default of
``table.exec.local-hash-agg.adaptive.distinct-value-rate-threshold``."""
MOST_KEYS = 1 << 20
"""Most keys that a task remembers, so that its memory is bounded."""


class LocalAggregateOperator(StreamOperator):
    """Aggregates columns by key before the exchange; other records are passed on as they are.

    Args:
        how: ``sum``, ``min`` or ``max``.
        field: name of the aggregated column.
        sample: records after which the operator decides whether to aggregate further records.
        most_keys: with more keys, the operator puts out all rows that it has.
    """

    def __init__(
        self, how: str, field: str, keys: Keys, sample: int = SAMPLE, most_keys: int = MOST_KEYS
    ) -> None:
        self._how = how
        self._field = field
        self._keys = keys
        self._sample = sample
        self._most_keys = most_keys

    def open(self) -> None:
        super().open()
        self._state: AggregateState | None = None
        self._records = 0
        self._is_passing_on = False

    def process_block(self, block: Block) -> None:
        self._flush()
        self.output.emit(block)

    def process_columns(self, columns: Columns) -> None:
        keys = self._keys.of_columns(columns)
        names = columns.batch.schema.names
        if keys is None or self._field not in names or self._field == self._keys.field:
            self._flush()
            self.output.emit_columns(columns)
        elif len(columns):
            self._take_in(columns, keys)

    def _take_in(self, columns: Columns, keys: pa.Array) -> None:
        batch = columns.batch
        state = self._state
        fitting = None if state is None else state.fitting(batch)
        if state is None or fitting is None:
            self._flush()
            assert self._keys.field is not None
            tables = AggregateTables(ColumnarTable(), RowTable())
            state = AggregateState(self._how, self._field, self._keys.field, batch.schema, tables)
            self._state = state
        else:
            batch = fitting
        if self._is_passing_on:
            rows = state.as_results(batch)
            self.output.emit_columns(Columns(rows, columns.timestamps, columns.origin))
            return
        state.add(batch, keys)
        before = self._records
        self._records += len(columns)
        if len(state) > self._most_keys:
            self._flush()
        elif before < self._sample <= self._records and len(state) > MOST_DISTINCT * self._records:
            self._is_passing_on = True
            self._flush()

    def finish(self) -> None:
        self._flush()

    def _flush(self) -> None:
        state, self._state = self._state, None
        if state is not None and len(state):
            self.output.emit_columns(Columns(state.result()))
