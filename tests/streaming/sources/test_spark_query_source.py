"""A query of Spark (from_spark_stream) goes on in another job, from a savepoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flinkray.file_results import PublishedBatches, QueryCheckpointError
from flinkray.state.operator_state import StateFile
from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources import spark_stream
from flinkray.streaming.sources.source import ReaderContext
from flinkray.streaming.sources.spark_stream import SparkStreamSource
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.test_spark_stream_source import Published, numbers_of, places


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return Published(tmp_path / "job", kind=SparkStreamSource)


@pytest.fixture
def other(tmp_path: Path) -> Published:
    return Published(tmp_path / "another-job", kind=SparkStreamSource)


def noted(published: Published, batches: int) -> None:
    """Spark's notes of so many batches, the last of which it has not committed."""
    for number in range(batches):
        write(published, f"offsets/{number}", f"offset {number}")
        if number:
            write(published, f"commits/{number - 1}", "{}")


def write(published: Published, name: str, text: str) -> None:
    path = Path(published.batches.query.location, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def reader(published: Published, subtask: int = 0, parallelism: int = 2) -> Any:
    return published.source.create_reader(ReaderContext(subtask, parallelism, ManualClock()))


def savepoint(published: Published) -> tuple[Any, list[Any], dict[str, StateFile]]:
    """Of the enumerator, the first reader's splits, and its files."""
    published.publish(0, [1, 2])
    published.publish(1, [3])
    noted(published, 2)
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(0)
    state = enumerator.snapshot_state(5)
    first = reader(published)
    first.add_splits(published.readers.assigned[0])
    first.poll(1)
    splits = first.snapshot_state(5)
    return state, splits, {file.name: file for file in first.files()}


def test_first_reader_alone_adds_the_state_of_the_spark_query_to_savepoints(
    published: Published, other: Published
) -> None:
    _, splits, files = savepoint(published)
    assert list(files) == [*(split.name for split in splits), "query.tar"]
    second = reader(published, 1)
    second.snapshot_state(5)
    assert list(second.files()) == []

    other.batches.query.restore(files["query.tar"].pieces())
    there = Path(other.batches.query.location)
    assert (there / "offsets/1").read_text() == "offset 1"
    assert not (there / "commits/1").exists()


def test_job_started_from_a_savepoint_continues_rows_and_spark_query(
    published: Published, other: Published
) -> None:
    state, splits, files = savepoint(published)
    enumerator = other.enumerator(state)
    enumerator.handle_split_request(1)
    assert other.batches.goes_on_after() is None, "the query waits for the first reader"

    first, second = reader(other), reader(other, 1)
    second.restore_files(files, is_complete=True)
    assert other.batches.goes_on_after() is None
    first.restore_files(files, is_complete=True)
    first.add_splits(splits)
    first.notify_no_more_splits()
    assert other.batches.goes_on_after() == 2
    assert other.batches.is_published(1)
    assert not other.batches.is_published(2)
    assert numbers_of(first) == [2, 3]

    other.publish(2, [4])
    enumerator.discover()
    assert places(other.readers.assigned[1]) == [(2, 0)]


def test_spark_query_keeps_its_progress_if_the_job_fails_before_a_checkpoint(
    published: Published, other: Published
) -> None:
    state, splits, files = savepoint(published)
    for run in range(2):
        if run:
            write(other, "offsets/2", "what Spark has noted since")
            other.publish(2, [4])
        again = reader(other)
        again.restore_files(files, is_complete=True)
        again.add_splits(splits)
    assert Path(other.batches.query.location, "offsets/2").exists()
    enumerator = other.enumerator(state)
    enumerator.handle_split_request(0)
    assert places(other.readers.assigned[0]) == [(2, 0)]


def test_query_restored_before_its_first_batch_starts_where_its_sources_started(
    published: Published, other: Published
) -> None:
    state = published.enumerator().snapshot_state(5)
    published.publish(0, [1])  # after the cut
    write(published, "sources/0/0", "from here on")
    noted(published, 1)
    first = reader(published)
    first.snapshot_state(5)
    files = {file.name: file for file in first.files()}

    reader(other).restore_files(files, is_complete=True)
    assert other.batches.goes_on_after() == 0
    there = Path(other.batches.query.location)
    assert (there / "sources/0/0").read_text() == "from here on"
    assert not (there / "offsets").exists()
    enumerator = other.enumerator(state)
    other.publish(0, [1])
    enumerator.handle_split_request(0)
    assert places(other.readers.assigned[0]) == [(0, 0)]


def test_savepoint_copies_the_query_at_a_position_known_only_after_reader_snapshots(
    published: Published, other: Published
) -> None:
    """Without an enumerator, the cut follows from its state; a new enumerator announces it at
    once."""
    published.publish(0, [1])
    noted(published, 1)
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    state = enumerator.snapshot_state(4)
    enumerator.notify_checkpoint_complete(4)
    first = reader(published)
    first.snapshot_state(5)
    (copy,) = first.files()

    published.enumerator(state).snapshot_state(5)
    assert other.batches.query.restore(copy.pieces()) == 1


def test_savepoint_fails_if_the_position_of_its_query_is_unknown(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could restore it, as it would lack the query."""
    monkeypatch.setattr(spark_stream, "_CUT_INTERVAL", 0.0)
    first = reader(published)
    first.snapshot_state(5)
    (copy,) = first.files()
    with pytest.raises(QueryCheckpointError, match=r"'clicks'.*before checkpoint 5: take"):
        list(copy.pieces())


def test_savepoint_copies_the_query_although_a_later_checkpoint_removed_its_position(
    published: Published,
) -> None:
    """A checkpoint after the savepoint was faster."""
    published.publish(0, [1])
    noted(published, 1)
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    first = reader(published)
    enumerator.snapshot_state(5)
    first.snapshot_state(5)
    (copy,) = first.files()
    enumerator.snapshot_state(6)
    enumerator.notify_checkpoint_complete(6)
    assert list(copy.pieces())


def test_first_reader_of_a_job_without_state_starts_the_spark_query_anew(
    published: Published,
) -> None:
    reader(published, 1).restore_files({}, is_complete=True)
    assert published.batches.goes_on_after() is None
    reader(published).restore_files({}, is_complete=True)
    assert published.batches.goes_on_after() == 0


def test_spark_query_positions_up_to_the_completed_checkpoint_are_removed(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    for checkpoint_id in (4, 5, 6):
        published.publish(checkpoint_id - 4, [checkpoint_id])
        enumerator.handle_split_request(0)
        enumerator.snapshot_state(checkpoint_id)
        enumerator.snapshot_state(checkpoint_id)
    batches = PublishedBatches(published.batches.location)
    assert [batches.cut(it) for it in (3, 4, 5, 6)] == [None, 1, 2, 3]
    enumerator.notify_checkpoint_complete(5)
    assert [batches.cut(it) for it in (4, 5, 6)] == [None, None, 3]


def test_second_snapshot_of_the_same_checkpoint_does_not_change_its_query_position(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    enumerator.snapshot_state(4)
    published.publish(0, [1])
    enumerator.handle_split_request(0)
    enumerator.snapshot_state(4)
    assert published.batches.cut(4) == 0


def test_checkpoint_of_another_job_without_a_copy_of_its_spark_query_is_refused(
    other: Published,
) -> None:
    with pytest.raises(StreamError, match=r"rows that 'clicks' has read.*Take a savepoint"):
        reader(other).restore_files({}, is_complete=False)


@pytest.mark.parametrize("read", [1, 2])
def test_savepoint_without_a_copy_of_its_spark_query_is_refused_with_a_remedy(
    published: Published, other: Published, read: int
) -> None:
    """Savepoints of an earlier flinkray lack the copy of the query."""
    state, _, files = savepoint(published)
    if read == 1:
        state = tuple(state[:-1])
        with pytest.raises(StreamError, match=r"up to number 2, and.*an earlier flinkray"):
            other.enumerator(state)
        return
    del files["query.tar"]
    enumerator = other.enumerator(state)
    enumerator.handle_split_request(0)  # no reader has looked yet
    reader(other).restore_files(files, is_complete=True)
    with pytest.raises(StreamError, match=r"up to number 2, and.*give the source another"):
        enumerator.discover()
