"""Serialises record batches in Arrow's format for a program that collects a stream's columns."""

from __future__ import annotations

import pyarrow as pa

from flinkray.streaming.columnar.conversion import block_to_batch
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation

MOST_BYTES = 2**20
"""Most bytes of the rows in one value, which must fit into a message beside other content."""


class SerializeBatchesOperator(StreamOperator):
    """Turns each record batch into bytes in Arrow's format. Large batches become several values.

    Streams of Python values are turned into columns first. Timestamps are left out.
    """

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


def serialized(batch: pa.RecordBatch) -> bytes:
    """Return the batch with its schema as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def deserialized(data: bytes) -> pa.RecordBatch:
    """Return the batch that :func:`serialized` has turned into bytes."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
