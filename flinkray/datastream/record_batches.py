"""An iterator over the results of a program as Arrow record batches."""

from __future__ import annotations

import pyarrow as pa

from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.streaming.columnar.serialize_batches import deserialized


class RecordBatches(CloseableIterator[pa.RecordBatch]):
    """Iterator of ``pyarrow.RecordBatch`` over a program's serialized results."""

    def __init__(self, results: CloseableIterator) -> None:
        self._results = results

    def __next__(self) -> pa.RecordBatch:
        return deserialized(next(self._results))

    def close(self) -> None:
        self._results.close()
