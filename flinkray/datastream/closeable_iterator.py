"""Iterators over a program's results, as single records or as Arrow record batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from flinkray.datastream.type_variables import T
from flinkray.streaming.records.arrow_bytes import deserialized

_Self = TypeVar("_Self", bound="CloseableIterator")


class CloseableIterator(Iterator[T]):
    """Iterator over the results of a running program.

    The program stops when the caller takes no results, and goes on when results are taken. Closing
    the iterator ends the program.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> with env.from_collection([1, 2, 3]).execute_and_collect() as results:
    ...     next(results)
    1
    """

    def next(self) -> T:
        """Return the next result.

        Raises:
            StopIteration: there is none.
        """
        return next(self)

    @abstractmethod
    def close(self) -> None:
        """End the program. Results that were not taken are dropped."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MapsBatches(Protocol):
    """Interface of an object whose method ``map_batch`` is called with whole record batches, in
    place of a function for ``map_batches``."""

    def map_batch(self, batch: pa.RecordBatch, /) -> Any: ...


RecordBatchFunction: TypeAlias = Callable[[pa.RecordBatch], Any] | MapsBatches
"""A function of ``map_batches``, or an object with the method ``map_batch``."""


class RecordBatches(CloseableIterator[pa.RecordBatch]):
    """Iterator of ``pyarrow.RecordBatch``, decoded from a program's results in Arrow's IPC
    format."""

    def __init__(self, results: CloseableIterator) -> None:
        self._results = results

    def __next__(self) -> pa.RecordBatch:
        return deserialized(next(self._results))

    def close(self) -> None:
        self._results.close()
