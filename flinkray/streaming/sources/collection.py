"""Sources over data in memory: collections, number sequences, Arrow tables, iterators."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from typing_extensions import TypeVar

from flinkray.core.arguments import whole_number
from flinkray.core.clock import Clock
from flinkray.core.values import own_all
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.sources.reading_thread import ReadingThread
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    Polled,
    ReaderContext,
    SequentialReader,
    Source,
    SourceReader,
    SplitEnumerator,
    SplitT,
    T,
)

E = TypeVar("E", default=Any)


class Slice(NamedTuple):
    """A split of data in memory: the records from *start* up to but not including *end*."""

    start: int
    end: int


def slices(length: int, parts: int) -> list[Slice]:
    """Return up to *parts* nearly equal slices, none of them empty, that cover *length* records."""
    bounds = [length * part // parts for part in range(parts + 1)]
    return [Slice(start, end) for start, end in pairwise(bounds) if end > start]


class SliceReader(SequentialReader[Slice]):
    """Reads slices of data in memory. *read*: returns the records from one position up to another
    one."""

    def __init__(self, context: ReaderContext, read: Callable[[int, int], Block | Columns]) -> None:
        super().__init__(context)
        self._read = read
        self._position = self._end = 0

    @property
    def is_at_end(self) -> bool:
        """Whether all records of the split were read."""
        return self._position >= self._end

    def open_split(self, split: Slice) -> None:
        self._position, self._end = split

    def read(self, max_records: int) -> Polled:
        if self.is_at_end:
            return END_OF_INPUT
        start = self._position
        self._position = min(start + max_records, self._end)
        return self._read(start, self._position)

    def remaining(self) -> Slice:
        return Slice(self._position, self._end)


class SlicedSource(Source[T, Slice]):
    """Base of bounded sources of *length* records that are read by position."""

    waits_for_splits = True

    def __init__(self, length: int) -> None:
        self._length = length

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[Slice], clock: Clock
    ) -> SplitEnumerator[Slice]:
        return FixedSplitsEnumerator(context, slices(self._length, context.current_parallelism()))

    def create_reader(self, context: ReaderContext) -> SourceReader[Slice]:
        return SliceReader(context, self.records)

    @abstractmethod
    def records(self, start: int, end: int) -> Block | Columns:
        """Return the records from position *start* up to but not including *end*."""


class CollectionSource(SlicedSource[T]):
    """A source of the elements of a collection."""

    def __init__(self, values: Iterable[T]) -> None:
        self._values: Sequence[Any] = values if isinstance(values, range) else list(values)
        super().__init__(len(self._values))

    def records(self, start: int, end: int) -> Block | Columns:
        """Return the records. Mutable values are copied, because all runs share the collection."""
        return Block(own_all(self._values[start:end]))


class NumberSequenceSource(SlicedSource[int]):
    """A source of the integers from *start* to *end* (both included).
    Within each subtask they are in order."""

    def __init__(self, start: int, end: int) -> None:
        start = whole_number(start, "the start of a number sequence")
        end = whole_number(end, "the end of a number sequence")
        if end < start:
            raise ValueError(f"a number sequence runs upwards, got {start} to {end}")
        super().__init__(end - start + 1)
        self._start = start

    def records(self, start: int, end: int) -> Block | Columns:
        return Block(range(self._start + start, self._start + end))


class ArrowSource(SlicedSource[Row]):
    """A source of the rows of an Arrow table, in batches of columns."""

    def __init__(self, table: pa.Table, batch_rows: int = 1 << 16) -> None:
        super().__init__(table.num_rows)
        self._table = table.combine_chunks()
        self._batch_rows = batch_rows

    def create_reader(self, context: ReaderContext) -> SourceReader[Slice]:
        return _ColumnsReader(context, self.records, self._batch_rows)

    def records(self, start: int, end: int) -> Block | Columns:
        chunks = self._table.slice(start, end - start).to_batches()
        return Columns(chunks[0])


class _ColumnsReader(SliceReader):
    """Reads batches of *batch_rows* rows, whatever the task asks for: small columns are slow."""

    def __init__(
        self,
        context: ReaderContext,
        read: Callable[[int, int], Block | Columns],
        batch_rows: int,
    ) -> None:
        super().__init__(context, read)
        self._batch_rows = batch_rows

    def read(self, max_records: int) -> Polled:
        return super().read(self._batch_rows)


class IteratorSplit(NamedTuple):
    """One of several iterators, of which the first *offset* records have been read."""

    number: int
    offset: int


class IteratorSource(Source[T, IteratorSplit]):
    """A source of Python iterators. After a restart, reading continues at an offset.

    Each iterator is created and read in its own thread, and may block there. Records are emitted as
    they arrive. *make_iterator* is called with the number of the split and the offset of the first
    record to return. Use ``IteratorSource.of`` for an iterable without offsets.
    """

    def __init__(
        self,
        make_iterator: Callable[[int, int], Iterator[T]],
        splits: int = 1,
        bounded: bool = True,
    ) -> None:
        self._make_iterator = make_iterator
        self._splits = splits
        self._bounded = bounded
        self.waits_for_splits = bounded

    @staticmethod
    def of(make_iterable: Callable[[], Iterable[E]], bounded: bool = True) -> IteratorSource[E]:
        """Return a source of one iterable. After a restart, earlier records are skipped."""
        return IteratorSource(
            lambda _, offset: islice(iter(_iterable(make_iterable())), offset, None), 1, bounded
        )

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[IteratorSplit], clock: Clock
    ) -> SplitEnumerator[IteratorSplit]:
        return FixedSplitsEnumerator(
            context, [IteratorSplit(index, 0) for index in range(self._splits)]
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[IteratorSplit]:
        return _IteratorReader(context, self._make_iterator)


def _iterable(made: Any) -> Any:
    """Check that *made*, which the user's function has returned, is iterable, and return it. Raises
    StreamError if it is not."""
    if not (hasattr(made, "__iter__") or hasattr(made, "__getitem__")):
        raise StreamError(
            "the function of an IteratorSource must return an iterator: it returned "
            f"{text_of(made)}"
        )
    return made


class ThreadedIteratorReader(SequentialReader[SplitT]):
    """Base of readers that read each split with an iterator, which may block.
    A thread reads the iterator, and the reader emits the records that have arrived."""

    def __init__(self, context: ReaderContext) -> None:
        super().__init__(context)
        self._reading: ReadingThread | None = None
        self.offset = 0
        """Number of records of the current split that were read."""

    def begin(self, make_iterator: Callable[[], Iterator[Any]], offset: int) -> None:
        """Begin to read a split with an iterator, in a thread. *offset*: number of records read
        before a restart, which the iterator has left out."""
        self.offset = offset
        self._reading = ReadingThread(make_iterator, self.context.wake)

    def read(self, max_records: int) -> Polled:
        assert self._reading is not None
        values = self._reading.take(max_records)
        if values is None:
            return END_OF_INPUT
        if not values:
            return NOTHING_NOW
        self.offset += len(values)
        return Block(values)

    def next_poll_time(self) -> float | None:
        return math.inf

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()


class _IteratorReader(ThreadedIteratorReader[IteratorSplit]):
    def __init__(
        self, context: ReaderContext, make_iterator: Callable[[int, int], Iterator[Any]]
    ) -> None:
        super().__init__(context)
        self._make_iterator = make_iterator
        self._index = 0

    def open_split(self, split: IteratorSplit) -> None:
        self._index, offset = split
        make, index = self._make_iterator, self._index
        self.begin(lambda: _iterable(make(index, offset)), offset)

    def remaining(self) -> IteratorSplit:
        return IteratorSplit(self._index, self.offset)
