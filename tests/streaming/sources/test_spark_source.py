"""Partitions of a DataFrame, as they are handed out and read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkray.core.ids import JobVertexID
from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.file_results import (
    FileResultLostError,
    NonDeterministicSourceError,
    PublishedPartitions,
)
from flinkray.streaming.columnar.conversion import batch_of_type
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW
from flinkray.streaming.sources.spark import LOOK_INTERVAL, SparkSource, SparkSplit
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import Readers, reader_of

SCHEMA = pa.schema([("n", pa.int64())])


class Published:
    """A folder, and a source that reads it."""

    def __init__(self, path: Path, type_info: Any = None, begun: str | None = "a") -> None:
        self.partitions = PublishedPartitions(str(path))
        if begun is not None:
            self.partitions.begin(begun)
        self.source = SparkSource(JobVertexID(b"v" * 16), "flights")
        if type_info is not None:
            convert = partial(batch_of_type, type_info=type_info)
            self.source = SparkSource(JobVertexID(b"v" * 16), "flights", type_info, convert)
        self.source.locate(str(path))
        self.readers = Readers(2)
        self.clock = ManualClock()

    def enumerator(self, state: Any = None) -> Any:
        context: Any = self.readers
        if state is None:
            return self.source.create_enumerator(context, self.clock)
        return self.source.restore_enumerator(context, self.clock, state)

    def write(self, number: int, *values: int, publication: str = "a") -> SparkSplit:
        batches = [pa.record_batch([pa.array([v])], schema=SCHEMA) for v in values]
        one = self.partitions.write(publication, number, SCHEMA, batches)
        self.partitions.accept(publication, one)
        return SparkSplit(publication, number, one.rows, one.name)


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return Published(tmp_path)


def numbers(readers: Readers) -> dict[int, list[int]]:
    return {subtask: [s.number for s in splits] for subtask, splits in readers.assigned.items()}


# --- handing out ----------------------------------------------------------------------------------


def test_spark_partitions_are_assigned_in_order_as_soon_as_they_are_written(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    enumerator.start()
    published.write(1, 10)
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(1)
    assert numbers(published.readers) == {}
    assert enumerator.next_discovery_time() == published.clock.time() + LOOK_INTERVAL

    published.write(0, 1)
    enumerator.discover()

    assert numbers(published.readers) == {0: [0], 1: [1]}
    assert enumerator.next_discovery_time() is None


def test_readers_of_spark_partitions_are_told_to_end_once_all_are_assigned(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    published.write(0, 1)
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(1)
    assert published.readers.done == []

    published.partitions.seal("a", {0: 1})
    enumerator.discover()

    assert published.readers.done == [1]


def test_missing_spark_partition_raises_an_error_once_all_are_published(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    published.write(0, 1)
    published.partitions.seal("a", {0: 1, 1: 5})

    with pytest.raises(FileResultLostError, match="partition 1 of 'flights', of 5 rows, is gone"):
        enumerator.handle_split_request(0)


def test_spark_partition_may_be_deleted_once_it_is_assigned(published: Published) -> None:
    enumerator = published.enumerator()
    first = published.write(0, 1)
    enumerator.handle_split_request(0)
    (Path(published.partitions.location) / "a" / first.name).unlink()
    published.write(1, 2)
    published.partitions.seal("a", {0: 1, 1: 1})
    enumerator.handle_split_request(1)
    assert numbers(published.readers) == {0: [0], 1: [1]}


def test_numbers_of_spark_partitions_that_were_not_published_are_skipped(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    published.write(2, 1)
    published.partitions.seal("a", {2: 1})
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(1)

    assert (numbers(published.readers), published.readers.done) == ({0: [2]}, [1])


def test_returned_spark_partitions_are_assigned_before_others(published: Published) -> None:
    enumerator = published.enumerator()
    for number in range(4):
        published.write(number, number)
    for subtask in (0, 1, 0):
        enumerator.handle_split_request(subtask)

    enumerator.add_splits_back(published.readers.assigned[0], 0)
    for _ in range(3):
        enumerator.handle_split_request(1)

    assert numbers(published.readers)[1] == [1, 0, 2, 3]


def test_restored_enumerator_continues_after_the_assigned_spark_partitions(
    published: Published,
) -> None:
    before = published.enumerator()
    for number in range(3):
        published.write(number, number)
    before.handle_split_request(0)
    before.handle_split_request(0)

    after = published.enumerator(before.snapshot_state(1))
    after.handle_split_request(1)

    assert numbers(published.readers) == {0: [0, 1], 1: [2]}


def test_partitions_of_two_computations_of_a_dataframe_are_not_mixed(published: Published) -> None:
    enumerator = published.enumerator()
    published.write(0, 1)
    enumerator.handle_split_request(0)
    published.write(1, 2, publication="b")
    published.partitions.seal("b", {0: 1, 1: 1})

    with pytest.raises(NonDeterministicSourceError, match="'flights'"):
        enumerator.handle_split_request(0)


# --- reading --------------------------------------------------------------------------------------


def test_spark_partition_is_read_in_batches_and_continued_at_the_snapshot(
    published: Published,
) -> None:
    reader = reader_of(published.source, published.write(0, 1, 2), published.write(1, 3, 4))
    read: list[int] = []
    while (polled := reader.poll(10)) is not END_OF_INPUT:
        read += polled.batch["n"].to_pylist()
        reader = reader_of(published.source, *reader.snapshot_state(1))
    assert read == [1, 2, 3, 4]


def test_job_started_from_a_savepoint_reads_the_rest_of_a_recomputed_partition(
    published: Published, tmp_path: Path
) -> None:
    reader = reader_of(published.source, published.write(0, 1, 2))
    reader.poll(10)
    (split,) = reader.snapshot_state(1)
    later = Published(tmp_path / "later", begun=None)
    reader = reader_of(later.source, split)
    assert reader.poll(10) is NOTHING_NOW
    assert reader.next_poll_time() == reader.context.clock.time() + LOOK_INTERVAL

    later.partitions.begin("a")
    assert reader.poll(10) is NOTHING_NOW
    later.write(0, 1, 2)

    assert reader.poll(10).batch["n"].to_pylist() == [2]
    assert reader.poll(10) is END_OF_INPUT


@pytest.mark.parametrize("values", [(2, 1, 3), (1, 2), (1, 3, 2), (1, 2, 3, 4)])
def test_recomputed_spark_partition_with_other_rows_is_refused(
    published: Published, tmp_path: Path, values: tuple[int, ...]
) -> None:
    """Also a partition with the same rows in another order, even if its last row is the same."""
    reader = reader_of(published.source, published.write(0, 1, 2, 3))
    reader.poll(10)
    reader.snapshot_state(1)  # what follows is added to its digest
    reader.poll(10)
    later = Published(tmp_path / "later")
    later.write(0, *values)

    with pytest.raises(NonDeterministicSourceError, match="partition 0 of 'flights'"):
        reader_of(later.source, *reader.snapshot_state(1)).poll(10)


def test_recomputed_spark_partition_may_have_its_unread_rows_in_another_order(
    published: Published, tmp_path: Path
) -> None:
    reader = reader_of(published.source, published.write(0, 1, 2, 3))
    reader.poll(10)
    later = Published(tmp_path / "later")
    later.write(0, 1, 3, 2)
    reader = reader_of(later.source, *reader.snapshot_state(1))
    assert [reader.poll(10).batch["n"].to_pylist() for _ in range(2)] == [[3], [2]]


def test_partly_read_spark_partition_that_a_new_job_does_not_write_raises_an_error(
    published: Published, tmp_path: Path
) -> None:
    reader = reader_of(published.source, published.write(0, 1, 2))
    reader.poll(10)
    later = Published(tmp_path / "later")
    later.partitions.seal("a", {})
    with pytest.raises(FileResultLostError, match=r"partition 0 of 'flights'.*is gone"):
        reader_of(later.source, *reader.snapshot_state(1)).poll(10)


def test_columns_of_spark_partitions_are_converted_to_the_declared_type(tmp_path: Path) -> None:
    wanted = Types.ROW_NAMED(["count"], [Types.DOUBLE()])
    published = Published(tmp_path, wanted)
    reader = reader_of(published.source, published.write(0, 7))
    assert reader.poll(10).batch.to_pydict() == {"count": [7.0]}


def test_columns_that_do_not_match_the_declared_type_are_refused(tmp_path: Path) -> None:
    wanted = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LONG()])
    published = Published(tmp_path, wanted)
    reader = reader_of(published.source, published.write(0, 7))
    with pytest.raises(StreamError, match="are not those of the declared type"):
        reader.poll(10)


def test_spark_source_without_a_cluster_is_refused() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = SparkSource(JobVertexID(b"v" * 16), "flights")
    with pytest.raises((StreamError, OperatorError), match="runs in the slots of a cluster"):
        list(env.from_source(source).execute_and_collect())
