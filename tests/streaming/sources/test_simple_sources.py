"""Sources of collections, numbers, iterators, generated records and Arrow data."""

from __future__ import annotations

import contextvars
import pickle
import threading
from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import (
    ArrowSource,
    CallbackSink,
    CollectionSource,
    DataGeneratorSource,
    IteratorSource,
    NumberSequenceSource,
    SequentialReader,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.sources.collection import IteratorSplit, Slice, slices
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    ReaderContext,
)
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import Readers, read, reader_of, rest_of


def test_arrow_table_is_read_in_batches_of_columns() -> None:
    table = pa.table({"a": range(100), "b": [str(n) for n in range(100)]})
    batches: list[Any] = []
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(ArrowSource(table, 30)).sink_to(CallbackSink(on_batch=batches.append))
    env.execute()
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]
    assert pa.Table.from_batches(batches).equals(table)


def test_arrow_batches_with_different_types_are_read_with_one_type() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    batches = [pa.record_batch({"k": ["a"], "v": v}) for v in ([1], [0.5], pa.nulls(1))]
    rows = env.from_arrow(batches, batch_rows=1).filter(lambda row: row.v is not None)
    assert sorted(row.v for row in rows.execute_and_collect()) == [0.5, 1.0]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_of_an_arrow_table_are_divided_among_subtasks(parallelism: int) -> None:
    table = pa.table({"a": range(100)})
    assert sorted(row.a for row in read(ArrowSource(table), parallelism)) == list(range(100))
    assert read(ArrowSource(table.slice(0, 0)), parallelism) == []


def test_arrow_source_has_own_batch_size_and_resumes_at_its_snapshot() -> None:
    chunks = [pa.table({"a": range(first, first + 5)}) for first in (0, 5)]
    source = ArrowSource(pa.concat_tables(chunks), batch_rows=4)
    reader = reader_of(source, Slice(0, 10))
    first = reader.poll(1)
    assert isinstance(first, Columns)
    assert first.batch["a"].to_pylist() == [0, 1, 2, 3]
    again = reader_of(source, *reader.snapshot_state(1))
    assert [again.poll(1).batch["a"].to_pylist() for _ in range(2)] == [[4, 5, 6, 7], [8, 9]]
    assert again.poll(1) is END_OF_INPUT


def test_slices_of_a_collection_cover_each_element_once() -> None:
    for length in range(12):
        for parts in range(1, 6):
            covered = [n for start, end in slices(length, parts) for n in range(start, end)]
            assert covered == list(range(length))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_each_element_of_any_iterable_is_read_once_by_a_collection_source(parallelism: int) -> None:
    assert sorted(read(CollectionSource(iter("abcde")), parallelism)) == list("abcde")
    assert read(CollectionSource([]), parallelism) == []


def test_subtask_that_gets_no_elements_of_a_collection_is_told_to_end() -> None:
    readers = Readers(3)
    source = CollectionSource("ab")
    enumerator = source.create_enumerator(readers, ManualClock())  # type: ignore[arg-type]
    enumerator.start()
    for subtask in range(3):
        enumerator.handle_split_request(subtask)
    given = [split for splits in readers.assigned.values() for split in splits]
    assert sorted(given) == [Slice(0, 1), Slice(1, 2)]
    assert 2 in readers.done


def test_restored_collection_reader_continues_at_its_snapshot() -> None:
    source = CollectionSource("abcdef")
    reader = reader_of(source, Slice(0, 4), Slice(4, 6))
    assert list(reader.poll(3).values) == ["a", "b", "c"]
    again = reader_of(source, *reader.snapshot_state(1))
    assert rest_of(again) == ["d", "e", "f"]
    assert source.get_boundedness() is Boundedness.BOUNDED


def test_generator_keeps_its_rate_over_all_subtasks() -> None:
    clock = ManualClock()
    env = StreamExecutionEnvironment(clock=clock).set_parallelism(2)
    source = DataGeneratorSource(lambda n: n * n, 100, records_per_second=10)
    results = env.from_source(source).execute_and_collect()
    assert sorted(results) == [n * n for n in range(100)]
    assert clock.time() == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_data_generator_without_a_rate_makes_records_on_demand(parallelism: int) -> None:
    assert sorted(read(DataGeneratorSource(str, 5), parallelism)) == list("01234")


def test_data_generator_that_an_earlier_version_pickled_makes_its_records() -> None:
    pickled = (
        b"cflinkray.streaming.sources.generated\nDataGeneratorSource\n)\x81}("
        b"X\x06\x00\x00\x00_countK\x05X\t\x00\x00\x00_generatecbuiltins\nstr\n"
        b"X\x05\x00\x00\x00_rateNub."
    )
    assert sorted(read(pickle.loads(pickled), 3)) == list("01234")


def test_data_generator_makes_only_the_records_that_are_due_by_its_rate() -> None:
    clock = ManualClock()
    source = DataGeneratorSource(lambda n: n, 100, records_per_second=10)
    reader = source.create_reader(ReaderContext(0, 2, clock))
    reader.add_splits([Slice(0, 50)])
    assert reader.poll(10) is NOTHING_NOW
    assert reader.next_poll_time() == pytest.approx(clock.time() + 0.2)
    clock.advance(0.6)
    polled = reader.poll(10)
    assert list(polled.values) == [0, 1, 2]  # type: ignore[union-attr]
    assert reader.poll(10) is NOTHING_NOW
    assert reader.snapshot_state(1) == [Slice(3, 50)]


def test_restored_data_generator_continues_at_its_snapshot() -> None:
    source = DataGeneratorSource(lambda n: n * n, 10)
    reader = reader_of(source, Slice(2, 6))
    assert list(reader.poll(1).values) == [4]
    assert rest_of(reader_of(source, *reader.snapshot_state(1))) == [9, 16, 25]


@pytest.mark.parametrize(("count", "rate"), [(-1, None), (1, 0.0), (1, -2.0)])
def test_negative_counts_and_rates_are_refused(count: int, rate: float | None) -> None:
    with pytest.raises(StreamError, match="records_per_second"):
        DataGeneratorSource(str, count, rate)


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


@pytest.mark.parametrize("parallelism", [1, 3])
def test_number_sequence_is_divided_among_subtasks(parallelism: int) -> None:
    assert sorted(read(NumberSequenceSource(5, 20_000), parallelism)) == list(range(5, 20_001))


def test_restored_number_reader_continues_at_its_snapshot() -> None:
    context = ReaderContext(0, 1, ManualClock())
    first: Any = NumberSequenceSource(0, 99).create_reader(context)
    first.add_splits([Slice(0, 50), Slice(50, 100)])
    first.notify_no_more_splits()
    assert list(first.poll(30).values) == list(range(30))
    second: Any = NumberSequenceSource(0, 99).create_reader(context)
    second.add_splits(first.snapshot_state(1))
    second.notify_no_more_splits()
    values: list[int] = []
    while (polled := second.poll(40)) is not END_OF_INPUT:
        values += polled.values
    assert values == list(range(30, 100))


def test_number_sequence_is_read_in_blocks_of_the_requested_size() -> None:
    reader = reader_of(NumberSequenceSource(10, 99), Slice(0, 7), Slice(20, 22))
    found = [list(reader.poll(5).values) for _ in range(3)]
    assert found == [[10, 11, 12, 13, 14], [15, 16], [30, 31]]
    assert reader.poll(5) is END_OF_INPUT


def test_number_sequence_is_bounded_and_a_descending_sequence_is_refused() -> None:
    assert NumberSequenceSource(1, 1).get_boundedness() is Boundedness.BOUNDED
    assert read(NumberSequenceSource(1, 1)) == [1]
    with pytest.raises(ValueError, match="5 to 4"):
        NumberSequenceSource(5, 4)


def test_sequential_reader_requests_the_next_split_after_each_split() -> None:
    class Words(SequentialReader[Any]):
        def open_split(self, split: Any) -> None:
            self.word = list(split)

        def read(self, max_records: int) -> Any:
            if not self.word:
                return END_OF_INPUT
            letters, self.word = self.word[:max_records], self.word[max_records:]
            return Block(letters)

        def remaining(self) -> Any:
            return "".join(self.word)

    context = ReaderContext(0, 1, ManualClock())
    reader = Words(context)
    reader.start()
    assert context.split_requested
    assert reader.poll(2) is NOTHING_NOW
    reader.add_splits(["abc"])
    polled = reader.poll(2)
    assert isinstance(polled, Block | Columns)
    assert reader.snapshot_state(1) == ["c"]
    assert reader.poll(2).values == ["c"]  # type: ignore[union-attr]
    context.split_requested = False
    assert reader.poll(2) is NOTHING_NOW
    assert context.split_requested
    reader.notify_no_more_splits()
    assert reader.poll(2) is END_OF_INPUT
