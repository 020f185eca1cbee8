"""Python iterators."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

from flinkray.datastream.connectors import IteratorSource
from flinkray.streaming.sources.collection import IteratorSplit
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    ReaderContext,
)
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import read, reader_of, rest_of


def taken(reader: Any, count: int) -> list[Any]:
    """The next records, which a thread reads."""
    values: list[Any] = []
    while len(values) < count:
        polled = reader.poll(count - len(values))
        assert polled is not END_OF_INPUT
        if polled is not NOTHING_NOW:
            values += polled.values
    return values


def test_restored_iterator_reader_continues_at_its_offset() -> None:
    source = IteratorSource.of(lambda: "abcdef")
    reader: Any = source.create_reader(ReaderContext(0, 1, ManualClock()))
    reader.add_splits([source.create_enumerator(Splits(), ManualClock())._remaining[0]])  # type: ignore[attr-defined]
    assert taken(reader, 2) == ["a", "b"]
    again: Any = source.create_reader(ReaderContext(0, 1, ManualClock()))
    again.add_splits(reader.snapshot_state(1))
    assert taken(again, 4) == ["c", "d", "e", "f"]
    assert read(source) == list("abcdef")


class Splits(EnumeratorContext[Any]):
    """An enumerator context without readers."""

    def current_parallelism(self) -> int:
        return 1

    def assign_split(self, split: Any, subtask: int) -> None: ...
    def signal_no_more_splits(self, subtask: int) -> None: ...


def test_iterator_splits_are_divided_and_begin_at_their_offset() -> None:
    made: list[tuple[int, int]] = []

    def make(number: int, offset: int) -> Any:
        made.append((number, offset))
        return (10 * number + place for place in range(offset, 3))

    source = IteratorSource(make, splits=2)
    assert sorted(read(source, 2)) == [0, 1, 2, 10, 11, 12]
    made.clear()
    reader = reader_of(source, IteratorSplit(1, 2), IteratorSplit(0, 1))
    assert rest_of(reader) == [12, 1, 2]
    assert made == [(1, 2), (0, 1)]


def test_iterator_source_is_bounded_unless_declared_otherwise() -> None:
    assert IteratorSource.of(list).get_boundedness() is Boundedness.BOUNDED
    endless = IteratorSource.of(list, bounded=False)
    assert endless.get_boundedness() is Boundedness.CONTINUOUS_UNBOUNDED


class Cursor:
    """Belongs to the thread that made it, as those of SQLite do."""

    def __init__(self) -> None:
        self.owner = threading.current_thread()
        self.closed = threading.Event()

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> int:
        assert threading.current_thread() is self.owner
        return 1

    def close(self) -> None:
        assert threading.current_thread() is self.owner
        self.closed.set()


def test_iterator_is_created_read_and_closed_in_one_thread() -> None:
    cursors: list[Cursor] = []

    def make(number: int, offset: int) -> Cursor:
        cursors.append(Cursor())
        return cursors[0]

    reader = reader_of(IteratorSource(make), IteratorSplit(0, 0))
    assert taken(reader, 3) == [1, 1, 1]
    reader.close()
    assert cursors[0].closed.wait(300)


def test_unfinished_generator_is_closed_in_the_thread_that_reads_it() -> None:
    threads: list[str] = []
    closed = threading.Event()

    def numbers() -> Any:
        try:
            while True:
                yield 1
        finally:
            threads.append(threading.current_thread().name)
            closed.set()

    reader = reader_of(IteratorSource.of(numbers), IteratorSplit(0, 0))
    assert taken(reader, 3) == [1, 1, 1]
    reader.close()
    assert closed.wait(300)
    assert threads == ["flinkray-iterator"]


def test_iterator_source_reads_only_a_few_large_records_ahead() -> None:
    made: list[int] = []

    def large() -> Any:
        for number in range(200):
            made.append(number)
            yield bytes(1 << 22)

    reader = reader_of(IteratorSource.of(large), IteratorSplit(0, 0))
    for count in range(1, 51):
        assert len(taken(reader, 1)) == 1
        assert len(made) <= count + 10  # 40 MB
    reader.close()


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


def test_iterator_runs_with_the_context_variables_of_its_reader() -> None:
    """For example the context of ``decimal``."""
    token = VARIABLE.set("there")
    try:
        assert read(IteratorSource.of(lambda: (VARIABLE.get() for _ in range(1)))) == ["there"]
    finally:
        VARIABLE.reset(token)
