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


def test_a_batch_is_there_when_it_is_published_with_all_its_partitions(
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


def test_a_batch_is_on_the_disk_when_it_is_there(
    batches: PublishedBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    for batch_id in range(2):
        batch = batch_of(batches, batch_id, [1, 2], [3])
        assert disk.lacks(tmp_path / "rows") == []
        batches.publish(batch)
    (tmp_path / "_unfinished").rmdir()
    assert disk.lacks(tmp_path) == []


def test_rows_are_counted_once_however_often_a_batch_is_published(
    batches: PublishedBatches,
) -> None:
    assert batches.progress() == (0, 0, -1)
    for batch_id in (0, 0, 1):
        batches.publish(batch_of(batches, batch_id, [1, 2, 3]))
    assert batches.progress() == (2, 6, -1)


def test_of_a_batch_that_is_published_again_the_first_files_stay(
    batches: PublishedBatches,
) -> None:
    """Its second writer did not know of the first one, and who was reading lost its place."""
    first = batch_of(batches, 0, [1, 2])
    batches.publish(first)
    batches.publish(batch_of(batches, 0, [2, 1]))
    assert batches.batch(0) == first


def test_a_batch_whose_writer_died_before_it_had_counted_it_is_published(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    batches.publish(batch_of(batches, 0, [1]))
    batches.publish(batch_of(batches, 1, [2, 3]))
    max(tmp_path.glob("_published-*")).unlink()

    assert batches.is_published(1)
    assert batches.progress() == (2, 3, -1)


def test_the_next_batch_is_known_with_what_the_last_one_was_computed_of(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    assert batches.next_batch() == (0, -1)
    batches.publish(replace(batch_of(batches, 0, [1]), origin=7))
    assert batches.next_batch() == (1, 7)
    batches.publish(replace(batch_of(batches, 1, [2, 3]), origin=9))
    max(tmp_path.glob("_published-*")).unlink()
    assert batches.next_batch() == (2, 9)
    assert batches.progress() == (2, 3, 9)


def test_one_who_was_overtaken_does_not_set_back_how_many_there_are(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    """It has counted what it published before the others, and its note comes late."""
    batches.publish(batch_of(batches, 0, [1]))
    (note,) = tmp_path.glob("_published-*")
    late = note.read_bytes()
    for batch_id in (1, 2):
        batches.publish(batch_of(batches, batch_id, [2]))
    batches.forget(below=3)
    note.write_bytes(late)
    assert batches.next_batch() == (3, -1)
    assert batches.progress() == (3, 3, -1)


def test_those_that_are_published_and_not_taken_wait(batches: PublishedBatches) -> None:
    for batch_id in range(5):
        assert batches.waiting() == batch_id
        batches.publish(batch_of(batches, batch_id, [1]))
    batches.note_taken(3)
    assert batches.waiting() == 2
    batches.note_taken(1)  # it goes back to a checkpoint
    assert batches.waiting() == 4


def test_all_there_are_is_known_at_the_end(batches: PublishedBatches) -> None:
    batches.publish(batch_of(batches, 0, [1, 2]))
    assert batches.ended() is None
    batches.end()
    assert batches.ended() == (1, 2, -1)
    assert batches.ended("1") == (1, 2, -1)


def test_what_is_forgotten_stays_published(batches: PublishedBatches) -> None:
    for batch_id in range(3):
        batches.publish(batch_of(batches, batch_id, [batch_id]))
    first = batches.batch(0)
    assert first is not None
    batches.forget(below=2)

    assert [batches.batch(i) is not None for i in range(3)] == [False, False, True]
    assert all(batches.is_published(i) for i in range(3))
    assert batches.open(first.partitions[0].name).read_all().num_rows == 1


def test_rows_that_are_deleted_are_lost_to_who_reads_them(batches: PublishedBatches) -> None:
    (partition,) = batch_of(batches, 0, [1]).partitions
    batches.delete(partition.name)
    batches.delete(partition.name)
    with pytest.raises(FileResultLostError, match=partition.name):
        batches.open(partition.name)


def test_columns_may_not_change_once_rows_were_published(batches: PublishedBatches) -> None:
    batches.begin("struct<n:bigint>")
    batches.begin("struct<n:int>")
    batches.publish(batch_of(batches, 0, [1]))
    batches.begin("struct<n:int>")
    with pytest.raises(MicroBatchColumnsError, match=r"n:int.*n:string"):
        batches.begin("struct<n:string>")


def test_nobody_reads_any_more_when_all_readers_of_an_execution_have_ended(
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


def test_they_are_ended_for_those_who_are_of_the_same_execution(tmp_path: Path) -> None:
    """In another one the stream has gone back to a checkpoint, and goes on."""
    batches = PublishedBatches(str(tmp_path))
    batches.end("1")
    assert batches.ended("1") == (0, 0, -1)
    assert batches.ended("2") is None
    assert batches.ended() is None
