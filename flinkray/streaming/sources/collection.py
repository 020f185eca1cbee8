"""Sources over data in memory: collections, number sequences, Arrow tables, iterators."""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from itertools import islice, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from typing_extensions import TypeVar

from flinkray.core.arguments import whole_number
from flinkray.core.clock import Clock
from flinkray.core.values import IMMUTABLE, own, own_all
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.sizes import bytes_of
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


AHEAD = 8192
"""Records that are read ahead."""

AHEAD_BYTES = 1 << 25
"""Approximate limit of the memory of records read ahead, in bytes."""

_MEASURED = 16
"""The size of every 16th record is measured, to estimate the memory of all."""


class ReadingThread:
    """Thread that reads an iterator ahead of its consumer, and makes and closes the iterator
    itself.
    *wake* is called from the thread when there is something to take after there was nothing."""

    def __init__(
        self, make_iterator: Callable[[], Iterator[Any]], wake: Callable[[], None]
    ) -> None:
        self._make_iterator = make_iterator
        self._wake = wake
        self._records: deque[Any] = deque()
        self._most = AHEAD
        self._room = threading.Event()
        self._found_nothing = False
        self._closed = False
        self._ended = False
        self._failure: BaseException | None = None
        threading.Thread(
            target=copy_context().run, args=(self._run,), name="flinkray-iterator", daemon=True
        ).start()

    def take(self, most: int) -> list[Any] | None:
        """Return up to *most* records that are ready; an empty list if none is ready now. None:
        there will be no more. Raises the iterator's exception, after all records that came before
        it."""
        ended = self._ended  # read first: records before the end are ready by then
        records = self._records
        taken = [records.popleft() for _ in range(min(most, len(records)))]
        if len(records) <= self._most // 2:
            self._room.set()
        if taken:
            return taken
        if ended:
            if self._failure is not None:
                raise self._failure
            return None
        self._found_nothing = True
        if records or self._ended:  # a record came in between, without a call of ``wake``
            self._wake()
        return []

    def close(self) -> None:
        """Stop reading. A thread that waits for the next record ends when that arrives."""
        self._closed = True
        self._room.set()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:  # noqa: BLE001 - raised again where records are taken
            self._failure = error
        self._ended = True
        self._wake()

    def _read(self) -> None:
        iterator, append = self._make_iterator(), self._records.append
        try:
            for number, value in enumerate(iterator):
                if number % _MEASURED == 0:
                    size = bytes_of(Block([value]))
                    self._most = max(1, min(AHEAD, AHEAD_BYTES // max(1, size)))
                append(value if type(value) in IMMUTABLE else own(value))
                if self._found_nothing:
                    self._found_nothing = False
                    self._wake()
                if len(self._records) >= self._most:
                    self._wait_for_room()
                if self._closed:
                    return
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def _wait_for_room(self) -> None:
        self._room.clear()
        while len(self._records) >= self._most and not self._closed:
            self._room.wait()
            self._room.clear()
