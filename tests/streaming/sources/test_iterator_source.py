"""Python iterators."""

from __future__ import annotations

from typing import Any

from flinkray.datastream.connectors import IteratorSource
from flinkray.streaming.sources.collection import IteratorSplit
from flinkray.streaming.sources.source import Boundedness, EnumeratorContext, ReaderContext
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import read, reader_of, rest_of


def test_iterator_is_read_on_by_offset() -> None:
    source = IteratorSource.of(lambda: "abcdef")
    reader: Any = source.create_reader(ReaderContext(0, 1, ManualClock()))
    reader.add_splits([source.create_enumerator(Splits(), ManualClock())._remaining[0]])  # type: ignore[attr-defined]
    assert reader.poll(2).values == ["a", "b"]
    again: Any = source.create_reader(ReaderContext(0, 1, ManualClock()))
    again.add_splits(reader.snapshot_state(1))
    assert again.poll(10).values == ["c", "d", "e", "f"]
    assert read(source) == list("abcdef")


class Splits(EnumeratorContext[Any]):
    """An enumerator context without readers."""

    def current_parallelism(self) -> int:
        return 1

    def assign_split(self, split: Any, subtask: int) -> None: ...
    def signal_no_more_splits(self, subtask: int) -> None: ...


def test_iterators_are_divided_among_subtasks_and_begin_at_their_offset() -> None:
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


def test_whether_it_ends_is_what_was_said() -> None:
    assert IteratorSource.of(list).get_boundedness() is Boundedness.BOUNDED
    endless = IteratorSource.of(list, bounded=False)
    assert endless.get_boundedness() is Boundedness.CONTINUOUS_UNBOUNDED
