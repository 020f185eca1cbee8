"""Micro-batches in a folder: when they are there, how far they are taken, and what is deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from flinkray.file_results import (
    FileResultLostError,
    MicroBatch,
    MicroBatchColumnsError,
    PublishedBatches,
)
from tests.disk import Disk

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def batches(tmp_path: Path) -> PublishedBatches:
    return PublishedBatches(str(tmp_path))


def batch_of(batches: PublishedBatches, batch_id: int, *partitions: list[int]) -> MicroBatch:
    """Written, and not published."""
    written = [
        batches.write(number, SCHEMA, [pa.record_batch([pa.array(values)], schema=SCHEMA)])
        for number, values in enumerate(partitions)
    ]
    return MicroBatch(batch_id, tuple(written))


def test_batch_is_available_with_all_its_partitions_once_it_is_published(
    batches: PublishedBatches,
) -> None:
    batch = batch_of(batches, 0, [1, 2], [3])
    assert batches.batch(0) is None
    assert not batches.is_published(0)

    batches.publish(batch)

    assert batches.batch(0) == batch
    assert batch.rows == 3
    assert batches.is_published(0)
    assert not batches.is_published(1)
    tables = [batches.open(one.name).read_all()["n"].to_pylist() for one in batch.partitions]
    assert tables == [[1, 2], [3]]


def test_files_of_a_batch_are_synced_to_disk_before_the_batch_is_published(
    batches: PublishedBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    for batch_id in range(2):
        batch = batch_of(batches, batch_id, [1, 2], [3])
        assert disk.lacks(tmp_path / "rows") == []
        batches.publish(batch)
    (tmp_path / "_unfinished").rmdir()
    assert disk.lacks(tmp_path) == []


def test_rows_of_a_batch_published_twice_are_counted_once(
    batches: PublishedBatches,
) -> None:
    assert batches.progress() == (0, 0, -1)
    for batch_id in (0, 0, 1):
        batches.publish(batch_of(batches, batch_id, [1, 2, 3]))
    assert batches.progress() == (2, 6, -1)


def test_batch_published_again_keeps_the_files_of_the_first_publication(
    batches: PublishedBatches,
) -> None:
    """The second writer does not know of the first one. A reader would lose its place if the files
    changed."""
    first = batch_of(batches, 0, [1, 2])
    batches.publish(first)
    batches.publish(batch_of(batches, 0, [2, 1]))
    assert batches.batch(0) == first


def test_batch_whose_writer_died_before_counting_it_counts_as_published(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    batches.publish(batch_of(batches, 0, [1]))
    batches.publish(batch_of(batches, 1, [2, 3]))
    max(tmp_path.glob("_published-*")).unlink()

    assert batches.is_published(1)
    assert batches.progress() == (2, 3, -1)


def test_next_batch_number_is_found_although_the_file_with_the_count_was_deleted(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    assert batches.next_batch() == (0, -1)
    batches.publish(replace(batch_of(batches, 0, [1]), origin=7))
    assert batches.next_batch() == (1, 7)
    batches.publish(replace(batch_of(batches, 1, [2, 3]), origin=9))
    max(tmp_path.glob("_published-*")).unlink()
    assert batches.next_batch() == (2, 9)
    assert batches.progress() == (2, 3, 9)


def test_count_written_late_by_an_overtaken_writer_does_not_lower_the_batch_count(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    """The writer counted its batch before the others, and its note is written late."""
    batches.publish(batch_of(batches, 0, [1]))
    (note,) = tmp_path.glob("_published-*")
    late = note.read_bytes()
    for batch_id in (1, 2):
        batches.publish(batch_of(batches, batch_id, [2]))
    batches.forget(below=3)
    note.write_bytes(late)
    assert batches.next_batch() == (3, -1)
    assert batches.progress() == (3, 3, -1)


def test_number_of_waiting_batches_is_published_minus_taken_batches(
    batches: PublishedBatches,
) -> None:
    for batch_id in range(5):
        assert batches.waiting() == batch_id
        batches.publish(batch_of(batches, batch_id, [1]))
    batches.note_taken(3)
    assert batches.waiting() == 2
    batches.note_taken(1)  # it goes back to a checkpoint
    assert batches.waiting() == 4


def test_totals_of_an_ended_stream_are_known_after_its_end(batches: PublishedBatches) -> None:
    batches.publish(batch_of(batches, 0, [1, 2]))
    assert batches.ended() is None
    batches.end()
    assert batches.ended() == (1, 2, -1)
    assert batches.ended("1") == (1, 2, -1)


def test_batch_dropped_from_the_list_still_counts_as_published_and_keeps_its_rows(
    batches: PublishedBatches,
) -> None:
    for batch_id in range(3):
        batches.publish(batch_of(batches, batch_id, [batch_id]))
    first = batches.batch(0)
    assert first is not None
    batches.forget(below=2)

    assert [batches.batch(i) is not None for i in range(3)] == [False, False, True]
    assert all(batches.is_published(i) for i in range(3))
    assert batches.open(first.partitions[0].name).read_all().num_rows == 1


def test_reading_deleted_rows_raises_an_error_that_names_the_partition(
    batches: PublishedBatches,
) -> None:
    (partition,) = batch_of(batches, 0, [1]).partitions
    batches.delete(partition.name)
    batches.delete(partition.name)
    with pytest.raises(FileResultLostError, match=partition.name):
        batches.open(partition.name)


def test_batch_with_other_columns_than_published_rows_is_refused(batches: PublishedBatches) -> None:
    batches.begin("struct<n:bigint>")
    batches.begin("struct<n:int>")
    batches.publish(batch_of(batches, 0, [1]))
    batches.begin("struct<n:int>")
    with pytest.raises(MicroBatchColumnsError, match=r"n:int.*n:string"):
        batches.begin("struct<n:string>")


def test_stream_has_no_reader_left_once_all_readers_of_its_execution_have_ended(
    batches: PublishedBatches,
) -> None:
    assert not batches.is_read_no_more("a")
    batches.note_reader_ended("a", 1, 2)
    batches.note_reader_ended("b", 0, 2)
    assert not batches.is_read_no_more("a")
    assert not batches.is_read_no_more("b")
    batches.note_reader_ended("a", 0, 2)
    assert batches.is_read_no_more("a")
    assert not batches.is_read_no_more("b")


def test_end_of_the_batches_in_one_execution_is_no_end_in_another_execution(tmp_path: Path) -> None:
    """In another execution the stream was restored from a checkpoint and continues."""
    batches = PublishedBatches(str(tmp_path))
    batches.end("1")
    assert batches.ended("1") == (0, 0, -1)
    assert batches.ended("2") is None
    assert batches.ended() is None
