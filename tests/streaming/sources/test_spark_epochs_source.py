"""What Spark makes of a stream (through_spark) goes on in another job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.source import ReaderContext
from flinkray.streaming.sources.spark_stream import SparkEpochsSource, SparkStreamSource
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import reader_of
from tests.streaming.sources.test_spark_stream_source import Published, numbers_of, places


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return Published(tmp_path, kind=SparkEpochsSource)


def test_checkpoint_assigns_all_splits_found_so_far_to_readers(published: Published) -> None:
    """The readers copy them for a savepoint. A reader told the end may have ended already."""
    published.readers.done = [1]
    enumerator = published.enumerator()
    published.publish(0, [1], [2], [3], [4], origin=5)
    published.publish(1, [5], origin=6)
    enumerator.handle_split_request(0)
    _, _, remaining, _, origin = enumerator.snapshot_state(1)
    assert (remaining, origin) == ([], 5)
    assert places(published.readers.assigned[0]) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert 1 not in published.readers.assigned

    enumerator.add_splits_back(published.readers.assigned[0][:1], 0)
    assert enumerator.snapshot_state(1)[2] == [], "also between two: it may die before the next"
    assert places(published.readers.assigned[0])[4:] == [(0, 0)]


def test_job_started_from_a_savepoint_skips_batches_found_before_the_savepoint(
    published: Published, tmp_path: Path
) -> None:
    enumerator = published.enumerator()
    published.publish(0, [1], origin=5)
    published.publish(1, [2], origin=7)
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(0)
    state = enumerator.snapshot_state(8)

    other = Published(tmp_path / "another-job")
    enumerator = other.enumerator(state)
    other.publish(0, [20], [21], origin=7)  # again, and not in the same way
    other.publish(1, [3], origin=8)
    enumerator.handle_split_request(1)
    assert {k: places(v) for k, v in other.readers.assigned.items()} == {1: [(1, 0)]}
    assert other.files() == 1

    enumerator = other.enumerator(enumerator.snapshot_state(9))
    other.publish(2, [4], origin=9)
    enumerator.handle_split_request(0)
    assert places(other.readers.assigned[0]) == [(2, 0)]


def test_epochs_that_no_restore_needs_any_more_are_reported_as_consumed(
    published: Published,
) -> None:
    """Until then, the sink of the stage keeps these epochs."""
    enumerator = published.enumerator()
    published.publish(0, [1], origin=5)
    published.publish(1, [2], origin=7)
    enumerator.handle_split_request(0)
    enumerator.snapshot_state(8)
    enumerator.handle_split_request(0)
    assert published.batches.consumed() == -1
    enumerator.notify_checkpoint_complete(8)
    assert published.batches.consumed() == 5


def restored(source: SparkStreamSource, files: Any, splits: Any, is_complete: bool = True) -> Any:
    reader: Any = source.create_reader(ReaderContext(0, 1, ManualClock()))
    reader.restore_files({file.name: file for file in files}, is_complete)
    reader.add_splits(splits)
    reader.notify_no_more_splits()
    return reader


def test_savepoint_contains_copies_of_spark_partitions_that_are_partly_read(
    published: Published, tmp_path: Path
) -> None:
    published.publish(0, [0], [1, 2, 3], [4], origin=5)
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    enumerator.snapshot_state(1)
    readers = published.readers.assigned
    reader = reader_of(published.source, *sorted([*readers[0], *readers[1]]))
    for _ in range(2):
        reader.poll(1)
    splits = reader.snapshot_state(1)
    assert [(split.number, split.offset) for split in splits] == [(1, 1), (2, 0)]
    files = list(reader.files())
    assert [file.name for file in files] == [split.name for split in splits]

    other = Published(tmp_path / "another-job")
    again = restored(other.source, files, splits)
    for split in splits:
        published.batches.delete(split.name)  # with its job
    assert numbers_of(again) == [2, 3, 4]
    again.snapshot_state(2)
    again.delete_read(2)
    assert other.files() == 0


def test_savepoint_of_a_job_started_from_a_savepoint_contains_the_same_copies(
    published: Published, tmp_path: Path
) -> None:
    published.publish(0, [1, 2], origin=5)
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    reader = reader_of(published.source, *published.readers.assigned[0])
    splits = reader.snapshot_state(1)
    for name in "ab":
        other = Published(tmp_path / name)
        reader = restored(other.source, list(reader.files()), splits)
        splits = reader.snapshot_state(1)
    assert numbers_of(reader) == [1, 2]


def test_checkpoint_of_another_job_without_copied_partitions_is_refused(
    published: Published, tmp_path: Path
) -> None:
    published.publish(0, [1], origin=5)
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    splits = published.readers.assigned[0]
    other = Published(tmp_path / "another-job")
    with pytest.raises(StreamError, match=r"rows for 'clicks' may be.*Take a savepoint"):
        restored(other.source, [], [], is_complete=False)
    with pytest.raises(StreamError, match="rows of micro-batch 0 for 'clicks' may be"):
        restored(other.source, [], splits)


def test_savepoint_of_an_earlier_flinkray_is_refused_in_another_job(
    published: Published, tmp_path: Path
) -> None:
    enumerator = published.enumerator()
    published.publish(0, [1], origin=5)
    enumerator.handle_split_request(0)
    for at_all in (enumerator, published.enumerator()):
        *state, _ = at_all.snapshot_state(1)
        with pytest.raises(StreamError, match="an earlier flinkray"):
            Published(tmp_path / "another-job").enumerator(tuple(state))


def test_job_is_restored_from_its_own_checkpoint_of_an_earlier_flinkray(
    published: Published,
) -> None:
    published.publish(0, [1])
    published.publish(1, [2])
    name = published.batches.batch(0).partitions[0].name  # type: ignore[union-attr]
    before = published.batches.location, 1, [(0, 0, name, 0)], {7: 1}
    enumerator = published.enumerator(before)
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(1)
    assert places(published.readers.assigned[0]) == [(0, 0)]
    assert places(published.readers.assigned[1]) == [(1, 0)]
    assert numbers_of(reader_of(published.source, *published.readers.assigned[0])) == [1]
    enumerator.notify_checkpoint_complete(7)
    assert published.batches.batch(0) is None
