"""The operator for functions of whole Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from flinkray.core.arguments import first_twice
from flinkray.streaming.columnar.conversion import block_to_columns
from flinkray.streaming.columnar.views import without_views
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.operator import FunctionOperator
from flinkray.streaming.operators.timestamps import column_as_timestamps
from flinkray.streaming.records.elements import Block, Columns, Origin
from flinkray.streaming.records.typeinfo import TypeInformation

TIMESTAMPS = "$timestamp"
"""Name of the column that gives functions the timestamps of the rows, in milliseconds."""


class MapBatchesOperator(FunctionOperator):
    """Calls a function with each record batch. The function returns batches, tables, or None.

    If rows have timestamps, these are in the last column, ``$timestamp``. The timestamps of the
    results are taken from that column of the returned batch; without it the results have none.
    """

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
        for batch in batches_of(self._map_batch(with_timestamps(columns))):
            if batch.num_rows:
                self.output.emit_columns(without_timestamps(batch, columns.origin))


def with_timestamps(columns: Columns) -> pa.RecordBatch:
    """Return the batch with its timestamps in the column ``$timestamp``, as functions get it."""
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
    """Split a batch that a function has returned into columns and timestamps."""
    place = batch.schema.get_field_index(TIMESTAMPS)
    if place < 0:
        return Columns(batch, None, origin)
    times = column_as_timestamps(batch, TIMESTAMPS)
    others = [name for name in range(batch.num_columns) if name != place]
    return Columns(batch.select(others), times, origin)


def batches_of(result: Any) -> Iterable[pa.RecordBatch]:
    """Return the record batches in the result of a function."""
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
