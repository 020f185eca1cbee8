"""Functions of whole Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from flinkray.streaming.columnar.conversion import block_to_columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.operator import FunctionOperator
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation


class MapBatchesOperator(FunctionOperator):
    """Calls a function with each record batch; it returns one, a table, several, or None.

    Timestamps stay where the number of rows does; a function that changes it must be followed by
    ``assign_timestamps_and_watermarks`` if time matters.
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
        for batch in batches_of(self._map_batch(columns.batch)):
            if batch.num_rows:
                timestamps = columns.timestamps if batch.num_rows == len(columns) else None
                self.output.emit_columns(Columns(batch, timestamps, columns.origin))


def batches_of(result: Any) -> Iterable[pa.RecordBatch]:
    """What a function of batches returned, as record batches."""
    if result is None:
        return ()
    if isinstance(result, pa.RecordBatch):
        return (result,)
    if isinstance(result, pa.Table):
        return result.combine_chunks().to_batches()  # type: ignore[no-any-return]
    if isinstance(result, Iterable):
        return (batch for part in result for batch in batches_of(part))
    raise StreamError(
        "a map_batches function returns an Arrow RecordBatch, a Table, several, or None; got "
        f"{type(result).__name__}"
    )
