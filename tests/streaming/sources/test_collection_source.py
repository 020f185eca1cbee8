"""Elements of a sequence."""

from __future__ import annotations

import pytest

from flinkray.datastream.connectors import CollectionSource
from flinkray.streaming.sources.collection import Slice, slices
from flinkray.streaming.sources.source import Boundedness
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import Readers, read, reader_of, rest_of


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
