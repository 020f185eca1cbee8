"""Tumbling event-time windows on columns: a join of two streams, and functions of all rows.

When the watermark passes the end of windows, the rows of all of them are processed at once. Late
rows are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.kernels.joins import matching_rows
from flinkray.kernels.numpy_joins import Side
from flinkray.kernels.numpy_panes import Times, runs_of_panes
from flinkray.state.key_group_assignment import KeyHash
from flinkray.state.key_numbers import KeyNumbers, Slots
from flinkray.state.row_table import RowTable
from flinkray.streaming.columnar.arrow_batches import batches_of
from flinkray.streaming.columnar.conversion import block_to_columns
from flinkray.streaming.errors import StreamError, no_timestamps
from flinkray.streaming.operators.operator import (
    FunctionOperator,
    Receiver,
    StreamOperator,
)
from flinkray.streaming.operators.two_inputs import InputPort, TwoInputs
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Block, Columns
from flinkray.streaming.records.keying import Keys, functions_of
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.records.widening import as_one_table

InputTypes = Sequence[TypeInformation | None]
"""The declared type of each input's records; None: the type is found from the records."""


class _BufferedWindows(StreamOperator):
    def __init__(self, size: int, offset: int, keys: Sequence[Keys], types: InputTypes) -> None:
        self._size, self._offset = size, offset
        self._keys = tuple(keys)
        self._types = types

    @property
    def selectors(self) -> Sequence[Any]:
        return functions_of(*self._keys)

    def key_hash(self) -> KeyHash:
        return self._keys[0].hash_of

    def open(self) -> None:
        super().open()
        self._buffers = [
            WindowBuffer(self._size, self._offset, keys.field, self._table_of(place, keys))
            for place, keys in enumerate(self._keys)
        ]
        self._watermark = MIN_TIMESTAMP
        self._late = self.context.metrics.counter("numLateRecordsDropped")

    def _table_of(self, place: int, keys: Keys) -> RowTable:
        def keys_of(batch: pa.RecordBatch) -> pa.Array:
            return keys.of_columns(Columns(batch))

        assert self.keyed_state is not None
        name = f"rows of input {place + 1}"
        return self.keyed_state.rows(name, True, None if keys.field is None else keys_of)

    def _columns(self, place: int, block: Block) -> Columns:
        return block_to_columns(block, self._types[place], self._keys[place].field)

    def _put(self, place: int, columns: Columns, keys: Sequence[Any] | None = None) -> None:
        if len(columns):
            late = self._buffers[place].add(columns, self._watermark, keys)
            if late:
                self._late.inc(late)


class WindowBatchesOperator(_BufferedWindows, FunctionOperator):
    """Calls a function with all rows of a window in this subtask, in one record batch."""

    def __init__(
        self,
        function: Any,
        size: int,
        offset: int,
        keys: Keys,
        input_type: TypeInformation | None = None,
    ) -> None:
        _BufferedWindows.__init__(self, size, offset, [keys], [input_type])
        FunctionOperator.__init__(self, function)

    def open(self) -> None:
        super().open()
        self._of_window: Callable[[pa.RecordBatch], Any] = self.method("map_batch")

    def process_block(self, block: Block) -> None:
        if len(block):
            self._put(0, self._columns(0, block), self._keys_of(block))

    def process_columns(self, columns: Columns) -> None:
        keys = None if self._keys[0].field is not None else self._keys_of(columns.to_block())
        self._put(0, columns, keys)

    def _keys_of(self, block: Block) -> Sequence[Any] | None:
        keys = self._keys[0]
        return None if keys.field is not None else keys.of_block(block)

    def process_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        taken = self._buffers[0].take(timestamp)
        if taken is not None:
            for start, batch in _by_window(*taken):
                for result in batches_of(self._of_window(self._with_window(batch, start))):
                    if result.num_rows:
                        end = np.full(result.num_rows, start + self._size - 1, np.int64)
                        self.output.emit_columns(Columns(result, end))
        self.output.emit_watermark(timestamp)

    def _with_window(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        rows = batch.num_rows
        starts = pa.array(np.full(rows, start, np.int64))
        ends = pa.array(np.full(rows, start + self._size, np.int64))
        return batch.append_column(WINDOW_START, starts).append_column(WINDOW_END, ends)


def _by_window(table: pa.Table, starts: Times) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (window start, rows) of each window, in order of time. Rows keep their order."""
    if int(starts.min()) != int(starts.max()):
        order = np.argsort(starts, kind="stable")
        table, starts = table.take(pa.array(order)), starts[order]
    (batch,) = table.combine_chunks().to_batches()
    bounds = [0, *(np.flatnonzero(starts[1:] != starts[:-1]) + 1).tolist(), len(starts)]
    for begin, end in pairwise(bounds):
        yield int(starts[begin]), batch.slice(begin, end - begin)


class _ColumnsPort(InputPort):
    takes_columns = True

    def process_columns(self, columns: Columns) -> None:
        self._operator.put_columns(self._number, columns)


class WindowJoinOperator(TwoInputs, _BufferedWindows):
    """Joins two inputs: all pairs of rows with equal keys in a window, with both inputs' columns.
    A null key has no partner. The order of the pairs is undefined. *right_suffix* is added to names
    of the second input's columns that the first input has too."""

    def __init__(
        self,
        size: int,
        offset: int,
        left: Keys,
        right: Keys,
        right_suffix: str = "_right",
        input_types: InputTypes = (None, None),
    ) -> None:
        _BufferedWindows.__init__(self, size, offset, [left, right], input_types)
        self._suffix = right_suffix
        if left.field is None or right.field is None:
            raise StreamError("a join of columns needs where and equal_to with names of columns")
        self._left_key, self._right_key = left.field, right.field

    def inputs(self) -> Sequence[Receiver]:
        return (_ColumnsPort(self, 0), _ColumnsPort(self, 1))

    def put_columns(self, place: int, columns: Columns) -> None:
        """Store rows of the input numbered *place* (0 or 1) until their window ends."""
        names = columns.batch.schema.names
        key = self._keys[place].field
        if key not in names:
            raise StreamError(f"there is no column {key!r} to join by: {names}")
        self._put(place, columns)

    def process_first(self, block: Block) -> None:
        if len(block):
            self.put_columns(0, self._columns(0, block))

    def process_second(self, block: Block) -> None:
        if len(block):
            self.put_columns(1, self._columns(1, block))

    def process_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        left, right = (buffer.take(timestamp) for buffer in self._buffers)
        if left is not None and right is not None:
            for batch in self._join(left, right).to_batches(1 << 16):
                starts = batch.column(WINDOW_START).to_numpy()
                self.output.emit_columns(Columns(batch, starts + (self._size - 1)))
        self.output.emit_watermark(timestamp)

    def _join(self, left: tuple[pa.Table, Times], right: tuple[pa.Table, Times]) -> pa.Table:
        """Return all pairs of rows with equal keys and windows, in the order of their windows."""
        (mine, my_starts), (theirs, their_starts) = left, right
        my_keys, their_keys, number = _key_numbers(mine[self._left_key], theirs[self._right_key])
        my_side, my_order = _by_windows(my_starts, my_keys)
        their_side, their_order = _by_windows(their_starts, their_keys)
        lefts, rights = matching_rows(my_side, their_side, number)
        starts = my_side.windows.take(lefts)
        rows = _taken(mine, lefts, my_order)
        others = _taken(theirs.drop_columns([self._right_key]), rights, their_order)
        for name, column in zip(others.column_names, others.columns, strict=True):
            rows = rows.append_column(self._name_beside(rows.column_names, name), column)
        return rows.append_column(WINDOW_START, pa.array(starts)).append_column(
            WINDOW_END, pa.array(starts + self._size)
        )

    def _name_beside(self, names: list[str], name: str) -> str:
        if name not in names:
            return name
        if name + self._suffix in names:
            raise StreamError(
                f"the join would have two columns {name + self._suffix!r}: rename one, or give "
                "another right_suffix"
            )
        return name + self._suffix


Order = npt.NDArray[np.int64]


def _by_windows(starts: Times, keys: Slots) -> tuple[Side, Order | None]:
    """Return the rows in the order of their windows, and this order; None: they are in order."""
    if not (starts[1:] < starts[:-1]).any():
        return Side(starts, keys), None
    order = np.argsort(starts, kind="stable")
    return Side(starts.take(order), keys.take(order)), order


def _taken(table: pa.Table, places: Order, order: Order | None) -> pa.Table:
    """Return the rows at *places*. These count the rows in *order*; None: as the table has them."""
    if order is not None:
        places = order.take(places)
    return pc.take(table.combine_chunks(), pa.array(places), boundscheck=False)


_FEW_NUMBERS = 1 << 16
"""So many numbers an array may always have an item for, however few rows there are."""


def _key_numbers(left: pa.ChunkedArray, right: pa.ChunkedArray) -> tuple[Slots, Slots, int]:
    """Return both columns of keys as numbers, and the first number that no key has. Keys have the
    same number if they are equal. A null has the number -1."""
    if left.type != right.type or pa.types.is_floating(left.type):
        return _numbers_of_python_keys(left, right)
    both = [_plain(column) for column in (left, right)]
    if pa.types.is_integer(left.type) and left.null_count == right.null_count == 0:
        columns = [column.to_numpy() for column in both]
        low = min(int(column.min()) for column in columns)
        number = max(int(column.max()) for column in columns) - low + 1
        if number <= max(_FEW_NUMBERS, 2 * (len(left) + len(right))):
            mine, theirs = (
                (column - column.dtype.type(low)).astype(np.int32) for column in columns
            )
            return mine, theirs, number
    encoded = pa.chunked_array([chunk for column in both for chunk in column.chunks])
    chunks = encoded.dictionary_encode().chunks  # all have the same dictionary
    numbers = np.concatenate([chunk.indices.fill_null(-1).to_numpy() for chunk in chunks])
    return numbers[: len(left)], numbers[len(left) :], len(chunks[0].dictionary)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return keys of a type that Arrow can number."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        storage = [chunk.storage for chunk in column.chunks]
        return pa.chunked_array(storage, kind.storage_type)
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    if pa.types.is_integer(kind) and kind.bit_width < 64:
        return column.cast(pa.int64())
    return column


def _numbers_of_python_keys(
    left: pa.ChunkedArray, right: pa.ChunkedArray
) -> tuple[Slots, Slots, int]:
    """Return both columns of keys as numbers. Keys have the same number if they are equal in
    Python, such as 1 and 1.0, or two NaNs."""
    numbers = KeyNumbers()
    of_each = []
    for column in (left, right):
        keys = column.combine_chunks()
        slots = numbers.slots_of(keys)
        of_each.append(np.where(keys.is_null().to_numpy(zero_copy_only=False), np.int32(-1), slots))
    return of_each[0], of_each[1], len(numbers)


WINDOW_START = "window_start"
WINDOW_END = "window_end"


class WindowBuffer:
    """Keeps the rows of one input until their windows end.
    *size* and *offset* of the windows are milliseconds. *key*: name of the key column; None: keys
    are not a column. *table* holds the rows by the start of their window."""

    def __init__(self, size: int, offset: int, key: str | None, table: RowTable) -> None:
        self._size, self._offset = size, offset
        self._key = key
        self._table = table

    def add(self, columns: Columns, watermark: int, keys: Sequence[Any] | None = None) -> int:
        """Store rows until their windows end; drop rows whose windows have ended at *watermark*,
        and return their number. *keys*: the key of each row, if keys are not a column. Raises
        StreamError if the rows have no timestamps."""
        times = columns.timestamps
        if times is None:
            raise no_timestamps("windows of event time need")
        if not len(times):
            return 0
        runs = runs_of_panes(times, self._offset, self._size)
        of_runs = runs.numbers * self._size + self._offset
        starts: Times = np.repeat(of_runs, np.diff(runs.ends, prepend=0))
        batch = columns.batch
        late = 0
        if watermark > MIN_TIMESTAMP and int(of_runs.min()) + self._size - 1 <= watermark:
            kept = np.flatnonzero(starts + (self._size - 1) > watermark)
            late = len(starts) - len(kept)
            batch, starts = batch.take(pa.array(kept)), starts[kept]
            keys = None if keys is None else [keys[place] for place in kept.tolist()]
        if len(starts):
            own = [name for name in batch.schema.names if name not in (WINDOW_START, WINDOW_END)]
            self._table.append(batch.select(own), starts, keys)
        return late

    def take(self, watermark: int) -> tuple[pa.Table, Times] | None:
        """Remove and return the rows whose windows have ended at *watermark*, with the start of
        each row's window. None: there are no such rows."""
        limit = MAX_TIMESTAMP if watermark == MAX_TIMESTAMP else watermark - self._size + 1
        due = self._table.take_up_to(limit)
        if not due:
            return None
        table = as_one_table([rows.batch for rows in due], self._key)
        return table, np.concatenate([rows.namespaces for rows in due])
