"""Operators that handle a batch as one Arrow batch: functions of batches, and reshaping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

from flinkray.core.arguments import first_twice
from flinkray.state.key_numbers import Slots
from flinkray.state.key_values import can_change
from flinkray.streaming.columnar.conversion import block_to_batch, block_to_columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import BatchContext, KeyedBatchFunction
from flinkray.streaming.operators.operator import FunctionOperator, StreamOperator
from flinkray.streaming.operators.timestamps import column_as_timestamps
from flinkray.streaming.records.arrow_bytes import serialized
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Barrier, Block, Columns, Origin
from flinkray.streaming.records.keying import Keys, functions_of
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.records.widening import without_views
from flinkray.streaming.time.time_service import ScheduledCallback

TIMESTAMPS = "$timestamp"
"""Name of the column that gives functions the timestamps of the rows, in milliseconds."""


class MapBatchesOperator(FunctionOperator):
    """Calls a function with each record batch. The function returns batches, tables, or None.
    If rows have timestamps, these are in the last column, ``$timestamp``. The timestamps of the
    results are taken from that column of the returned batch; without it the results have none."""

    def __init__(self, function: Any, input_type: TypeInformation | None = None) -> None:
        super().__init__(function)
        self._input_type = input_type

    def open(self) -> None:
        super().open()
        self._map_batch = self.method("map_batch")

    def process_block(self, block: Block) -> None:
        if len(block):
            self.process_columns(block_to_columns(block, self._input_type))

    def process_columns(self, columns: Columns) -> None:
        self._emit(with_timestamps(columns), columns.origin)

    def _emit(self, batch: pa.RecordBatch, origin: Origin | None) -> None:
        for result in batches_of(self._map_batch(batch)):
            if result.num_rows:
                self.output.emit_columns(without_timestamps(result, origin))


class GatherBatchesOperator(MapBatchesOperator):
    """Gathers rows from several batches before it calls the function, until there are *max_size*
    rows, or the first of them has waited for *max_delay* milliseconds. Watermarks wait with the
    rows before them. Rows that wait are processed before a checkpoint's barrier, so the operator
    has no state."""

    def __init__(
        self,
        function: Any,
        max_size: int,
        max_delay: int,
        input_type: TypeInformation | None = None,
    ) -> None:
        super().__init__(function, input_type)
        self._max_size = max_size
        self._max_delay = max_delay

    def open(self) -> None:
        super().open()
        self._waiting: list[pa.RecordBatch] = []
        """Batches of one schema, as the function gets them."""
        self._number = 0
        self._origin: Origin | None = None
        self._watermark: int | None = None
        """Watermark behind the rows that wait."""
        self._timer: ScheduledCallback | None = None

    def process_columns(self, columns: Columns) -> None:
        batch = with_timestamps(columns)
        if self._waiting and self._waiting[0].schema != batch.schema:
            self._call_with_all()
        if not self._waiting:
            self._origin = columns.origin
        self._waiting.append(batch)
        self._number += batch.num_rows
        if self._number >= self._max_size:
            self._call_with_full_batches(columns.origin)
        if self._number and self._max_delay == 0:
            self._call_with_all()
        elif self._number and self._timer is None:
            times = self.context.time_service
            self._timer = times.schedule(times.now() + self._max_delay, self._delay_is_over)

    def process_watermark(self, timestamp: int) -> None:
        if self._number:
            self._watermark = timestamp
        else:
            self.output.emit_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self._call_with_all()
        self.output.emit_status(idle)

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        self._call_with_all()

    def finish(self) -> None:
        self._call_with_all()

    def _delay_is_over(self, timestamp: int) -> None:
        self._timer = None
        self._call_with_all()

    def _call_with_all(self) -> None:
        if self._number:
            self._emit(self._take(), self._origin)
        self._nothing_waits()

    def _call_with_full_batches(self, origin: Origin | None) -> None:
        gathered, begin = self._take(), 0
        while gathered.num_rows - begin >= self._max_size:
            self._emit(gathered.slice(begin, self._max_size), self._origin)
            begin += self._max_size
        self._nothing_waits()
        rest = gathered.slice(begin)
        if rest.num_rows:  # of the last batch, which came after the watermark
            self._waiting, self._number, self._origin = [rest], rest.num_rows, origin

    def _take(self) -> pa.RecordBatch:
        waiting, self._waiting, self._number = self._waiting, [], 0
        if len(waiting) == 1:
            return waiting[0]
        (batch,) = pa.Table.from_batches(waiting).combine_chunks().to_batches()
        return batch

    def _nothing_waits(self) -> None:
        """Stop the timer, and put out the watermark that waited behind the rows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        watermark, self._watermark = self._watermark, None
        if watermark is not None:
            self.output.emit_watermark(watermark)


def with_timestamps(columns: Columns) -> pa.RecordBatch:
    """Return the batch as functions get it: timestamps, if any, as last column ``$timestamp``."""
    batch = columns.batch
    if columns.timestamps is None:
        return batch
    if TIMESTAMPS in batch.schema.names:
        raise StreamError(
            f"the records have a column {TIMESTAMPS!r} of their own, where a map_batches function "
            "is given their timestamps: give it another name"
        )
    return batch.append_column(TIMESTAMPS, pa.array(columns.timestamps))


def without_timestamps(batch: pa.RecordBatch, origin: Origin | None) -> Columns:
    """Return what a function has returned as columns: its column ``$timestamp`` becomes the
    timestamps. Without this column there are none."""
    place = batch.schema.get_field_index(TIMESTAMPS)
    if place < 0:
        return Columns(batch, None, origin)
    times = column_as_timestamps(batch, TIMESTAMPS)
    others = [name for name in range(batch.num_columns) if name != place]
    return Columns(batch.select(others), times, origin)


def batches_of(result: Any) -> Iterable[pa.RecordBatch]:
    if result is None:
        return ()
    if isinstance(result, pa.RecordBatch):
        twice = first_twice(result.schema.names)
        if twice is not None:
            raise StreamError(
                f"a map_batches function returned two columns named {twice!r}: rename one"
            )
        return (without_views(result),)
    if isinstance(result, pa.Table):
        return batches_of(result.combine_chunks().to_batches())
    if isinstance(result, list | tuple | Iterator):
        return (batch for part in result for batch in batches_of(part))
    raise StreamError(
        "a map_batches function returns an Arrow RecordBatch, a Table, several, or None; got "
        f"{type(result).__name__}{_WAYS_OUT.get(type(result).__name__, '')}"
    )


_WAYS_OUT = {
    "DataFrame": ": pyarrow.RecordBatch.from_pandas(frame) makes one of it",
    "dict": ": pyarrow.record_batch(columns) makes one of it",
}


_NO_SLOTS: Slots = np.empty(0, np.int32)


class KeyedBatchOperator(FunctionOperator):
    """Calls a :class:`KeyedBatchFunction` with each batch and, for each row, the slot of the row's
    key: the index at which arrays of state hold the key's number."""

    gives_slots = True

    def __init__(
        self, function: KeyedBatchFunction, keys: Keys, input_type: TypeInformation | None = None
    ) -> None:
        super().__init__(function)
        self._keys = keys
        self._input_type = input_type

    @property
    def selectors(self) -> Sequence[Any]:
        return self._keys.functions

    def open(self) -> None:
        assert self.keyed_state is not None
        self._table = self.keyed_state.columns()
        self._context = _Context(self._table.keys, self.context.own)
        super().open()

    def process_block(self, block: Block) -> None:
        if len(block):
            slots = self._table.slots_of(self._keys.of_block(block))
            self._process(block_to_columns(block, self._input_type), slots)

    def process_columns(self, columns: Columns) -> None:
        if not len(columns):
            return
        keys = self._keys.of_columns(columns)
        if keys is None:
            slots = self._table.slots_of(self._keys.of_block(columns.to_block()))
        else:
            slots = self._table.slots_of_column(keys)
        self._process(columns, slots)

    def _process(self, columns: Columns, slots: Slots) -> None:
        self._context.slots = slots
        results = self.function.process_batch(with_timestamps(columns), self._context)
        self._put_out(results, columns.origin)

    def _put_out(self, results: Any, origin: Origin | None) -> None:
        for batch in batches_of(results):
            if batch.num_rows:
                self.output.emit_columns(without_timestamps(batch, origin))

    def process_watermark(self, timestamp: int) -> None:
        self._context.watermark = timestamp
        self._context.slots = _NO_SLOTS
        self._put_out(self.function.on_watermark(timestamp, self._context), None)
        self.output.emit_watermark(timestamp)


class _OwnedKeys(Sequence[Any]):
    """A sequence that returns copies of the keys in *keys*, because user code could change keys of
    mutable types."""

    def __init__(self, keys: Sequence[Any], own: Callable[[Any], Any]) -> None:
        self._keys = keys
        self._own = own

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        found = self._keys[place]
        return list(map(self._own, found)) if isinstance(place, slice) else self._own(found)

    def __len__(self) -> int:
        return len(self._keys)


class _Context(BatchContext):
    def __init__(self, keys: Sequence[Any], own: Callable[[Any], Any]) -> None:
        self._keys = keys
        self._owned = _OwnedKeys(keys, own)
        self._looked_at = 0
        """Number of keys, from the first one, that are known to be immutable."""
        self.watermark = MIN_TIMESTAMP
        self.slots = _NO_SLOTS

    @property
    def keys(self) -> Sequence[Any]:
        if can_change(self._keys[self._looked_at :]):
            return self._owned
        self._looked_at = len(self._keys)
        return self._keys

    def current_watermark(self) -> int:
        return self.watermark


MOST_BYTES = 2**20
"""Most bytes of the rows in one value, which must fit into a message beside other content."""


class SerializeBatchesOperator(StreamOperator):
    """Turns each record batch into bytes in Arrow's format. Large batches become several values.
    Streams of Python values are turned into columns first. Timestamps are left out."""

    def __init__(self, input_type: TypeInformation | None = None) -> None:
        self._input_type = input_type

    def process_block(self, block: Block) -> None:
        if len(block):
            self._emit(block_to_batch(block, self._input_type))

    def process_columns(self, columns: Columns) -> None:
        self._emit(columns.batch)

    def _emit(self, batch: pa.RecordBatch) -> None:
        portions = max(1, -(-batch.nbytes // MOST_BYTES))
        rows = max(1, -(-batch.num_rows // portions))
        values = [serialized(batch.slice(begin, rows)) for begin in range(0, batch.num_rows, rows)]
        if values:
            self.output.emit(Block(values))


class KeyAndValueOperator(StreamOperator):
    """Turns each record into a record of two columns: ``f0`` is its key, ``f1`` the record.
    A record with fields becomes a struct. Records that come as Arrow columns are not converted to
    Python values, nor are their keys if these are a column."""

    def __init__(self, keys: Keys, value_type: TypeInformation | None) -> None:
        self._keys = keys
        self._value_type = value_type

    @property
    def selectors(self) -> Sequence[Any]:
        return functions_of(self._keys)

    def process_block(self, block: Block) -> None:
        if len(block):
            keys = self._column_of(self._keys.of_block(block))
            self._emit(keys, block_to_columns(block, self._value_type))

    def process_columns(self, columns: Columns) -> None:
        if not len(columns):
            return
        keys = self._keys.of_columns(columns)
        if keys is None:
            keys = self._column_of(self._keys.of_block(columns.to_block()))
        self._emit(keys, columns)

    def _column_of(self, keys: Sequence[Any]) -> pa.Array:
        return _in_one(block_to_columns(Block(list(keys)), self._keys.key_type))

    def _emit(self, keys: pa.Array, values: Columns) -> None:
        batch = pa.RecordBatch.from_arrays([keys, _in_one(values)], names=["f0", "f1"])
        self.output.emit_columns(Columns(batch, values.timestamps, values.origin))


def _in_one(columns: Columns) -> pa.Array:
    batch = columns.batch
    if columns.scalar:
        return batch.column(0)
    return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
