"""Record batches: functions of them, and an iterator over the results of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.streaming.columnar.serialize_batches import deserialized


class MapsBatches(Protocol):
    """An object with a method that ``map_batches`` calls with whole record batches."""

    def map_batch(self, batch: pa.RecordBatch, /) -> Any: ...


RecordBatchFunction: TypeAlias = Callable[[pa.RecordBatch], Any] | MapsBatches
"""A function of ``map_batches``, or an object with the method ``map_batch``."""


class RecordBatches(CloseableIterator[pa.RecordBatch]):
    """Iterator of ``pyarrow.RecordBatch`` over a program's serialized results."""

    def __init__(self, results: CloseableIterator) -> None:
        self._results = results

    def __next__(self) -> pa.RecordBatch:
        return deserialized(next(self._results))

    def close(self) -> None:
        self._results.close()
