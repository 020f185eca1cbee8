"""The first half of aggregates by key, or by key and window, before the exchange by key.

A task sends one row for each key (or key and pane), instead of every record. A pane is put out when
the watermark passes its end, before that watermark, because the operator behind the exchange does
not need it earlier while it waits for this task's watermark. Once this task was idle, it cannot
know what that operator waits for, and puts everything out after each batch. Everything is put out
before a barrier, so there is no state. If a sample shows that keys hardly repeat, batches are
passed on as they come (as in Flink's SQL: ``table.exec.local-hash-agg.adaptive.enabled``).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from flinkray.state.columnar_table import ColumnarTable
from flinkray.state.row_table import RowTable
from flinkray.streaming.columnar.keyed_aggregate import AggregateState, AggregateTables
from flinkray.streaming.columnar.panes import ColumnAggregate, Panes, PaneTimes
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Barrier,
    Block,
    Columns,
)
from flinkray.streaming.records.keying import Keys

SAMPLE = 500_000
"""Records in the sample (Flink: ``table.exec.local-hash-agg.adaptive.sampling-threshold``)."""
MOST_DISTINCT = 0.5
"""Most keys per record of the sample; Flink's default of
``table.exec.local-hash-agg.adaptive.distinct-value-rate-threshold``."""
MOST_KEYS = 1 << 20
"""Most keys that a task remembers, so that its memory is bounded."""


class LocalAggregateOperator(StreamOperator):
    """Aggregates columns by key before the exchange of records by key; other records are passed on
    as they are. After *sample* records it decides, from how often keys repeat, whether to aggregate
    further records. As soon as it has more than *most_keys* keys, it puts out a row for each key
    and begins anew."""

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


MOST_NUMBERS = 1 << 20
"""Most numbers (keys times panes) that a task remembers, so that its memory is bounded."""


class LocalWindowAggregateOperator(StreamOperator):
    """Aggregates columns by key and pane before the exchange of records by key. Records that are
    Python rows are passed on as they are. After *sample* records it decides, from how often keys
    repeat, whether to aggregate further records. As soon as it has more than *most_numbers*
    numbers, it puts out a row for each key and pane and begins anew."""

    def __init__(
        self,
        times: PaneTimes,
        aggregates: Sequence[ColumnAggregate],
        keys: Keys,
        sample: int = SAMPLE,
        most_numbers: int = MOST_NUMBERS,
    ) -> None:
        self._times = times
        self._aggregates = tuple(aggregates)
        self._keys = keys
        self._sample = sample
        self._most_numbers = most_numbers

    def open(self) -> None:
        super().open()
        self._begin_anew()
        self._watermark = MIN_TIMESTAMP
        self._records_in = self._rows_out = 0
        self._is_passing_on = False
        self._was_idle = False

    def _begin_anew(self) -> None:
        table = ColumnarTable(namespaced=True)
        self._panes = Panes(self._times, self._aggregates, self._keys, table, self.context.name)

    def process_block(self, block: Block) -> None:
        self.output.emit(block)

    def process_columns(self, columns: Columns) -> None:
        times = columns.timestamps
        if self._is_passing_on or times is None or not len(times):
            self.output.emit_columns(columns)
            return
        self._panes.add(columns, times)
        self._records_in += len(times)
        table = self._panes.table
        if len(table) * len(table.namespaces) > self._most_numbers:
            self._put_out_all()
            self._begin_anew()
        elif self._was_idle:  # the operator behind the exchange may be ahead
            self._put_out_all()
        elif int(times.min()) <= self._watermark:  # behind the exchange it may be in time
            self._put_out_up_to(self._watermark)

    def process_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        self._put_out_up_to(timestamp)
        self.output.emit_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        if idle:  # time goes on without this task
            self._was_idle = True
            self._put_out_all()
        self.output.emit_status(idle)

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        self._put_out_all()

    def finish(self) -> None:
        self._put_out_all()

    def _put_out_all(self) -> None:
        self._put_out_up_to(MAX_TIMESTAMP)

    def _put_out_up_to(self, timestamp: int) -> None:
        panes = self._panes.table.namespaces
        ended = sorted(pane for pane in panes if self._times.begin_of(pane + 1) - 1 <= timestamp)
        if not ended:
            return
        part = self._panes.part(ended)
        self._panes.table.remove_up_to(ended[-1])
        self._rows_out += len(part)
        self.output.emit_columns(part)
        if self._is_passing_on or self._records_in < self._sample:
            return
        if self._rows_out > MOST_DISTINCT * self._records_in:
            self._is_passing_on = True
            self._put_out_all()
            self._begin_anew()
