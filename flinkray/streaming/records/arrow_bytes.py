"""Record batches as bytes in Arrow's streaming format."""

from __future__ import annotations

import pyarrow as pa


def serialized(batch: pa.RecordBatch) -> bytes:
    """Return the batch as bytes, for :func:`deserialized`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def deserialized(data: bytes) -> pa.RecordBatch:
    """Return the batch that :func:`serialized` has converted to bytes."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
