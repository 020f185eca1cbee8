"""Sources of published splits and of result files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkray.core.ids import IntermediateDataSetID
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.file_results import FileResultLostError, ResultDirectory, ResultWriter, share_of
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.sources.result_files import (
    FunctionInputs,
    ResultFileSplit,
    ResultFilesSource,
)
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    ReaderContext,
)
from flinkray.streaming.sources.spark import LOOK_INTERVAL, PublishedSplitsEnumerator
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import Readers, batches_of, reader_of


class Publication(PublishedSplitsEnumerator[tuple[int]]):
    """Splits that a test publishes by hand."""

    def __init__(self, readers: Readers, clock: ManualClock) -> None:
        context: Any = readers
        super().__init__(context, clock)
        self.published: list[list[tuple[int]]] = []
        self.is_over = False

    def find_splits(self) -> list[tuple[int]] | None:
        if self.published:
            return self.published.pop(0)
        return None if self.is_over else []

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return list(self._remaining)

    def restore(self, checkpoint: Any) -> None:
        self._remaining = list(checkpoint)


def test_readers_get_published_splits_in_the_order_in_which_they_asked() -> None:
    readers, clock = Readers(3), ManualClock()
    enumerator = Publication(readers, clock)
    for subtask in (2, 0, 1, 0):
        enumerator.handle_split_request(subtask)
    assert readers.assigned == {}
    enumerator.published += [[(1,), (2,)], [(3,)]]
    enumerator.discover()
    assert readers.assigned == {2: [(1,)], 0: [(2,)], 1: [(3,)]}
    assert readers.done == []


def test_discovery_of_splits_is_scheduled_only_while_a_reader_waits() -> None:
    readers, clock = Readers(1), ManualClock()
    enumerator = Publication(readers, clock)
    assert enumerator.next_discovery_time() is None
    enumerator.handle_split_request(0)
    assert enumerator.next_discovery_time() == clock.time() + LOOK_INTERVAL
    clock.advance(LOOK_INTERVAL)
    enumerator.discover()
    assert enumerator.next_discovery_time() == clock.time() + LOOK_INTERVAL
    enumerator.published.append([(1,)])
    enumerator.discover()
    assert enumerator.next_discovery_time() is None


def test_returned_splits_are_assigned_before_others_and_in_order() -> None:
    readers, clock = Readers(3), ManualClock()
    enumerator = Publication(readers, clock)
    enumerator.published.append([(1,), (2,), (3,), (4,)])
    for _ in range(3):
        enumerator.handle_split_request(0)
    enumerator.add_splits_back([(3,), (1,)], 0)
    assert enumerator.snapshot_state(1) == [(1,), (3,), (4,)]
    for _ in range(3):
        enumerator.handle_split_request(1)
    enumerator.handle_split_request(2)
    assert readers.assigned[1] == [(1,), (3,), (4,)]
    enumerator.add_splits_back([(2,)], 0)
    assert readers.assigned[2] == [(2,)]


def test_each_reader_is_told_to_end_after_all_splits_are_assigned() -> None:
    readers, clock = Readers(2), ManualClock()
    enumerator = Publication(readers, clock)
    enumerator.published.append([(1,), (2,)])
    enumerator.is_over = True
    for subtask in (0, 1, 0, 1):
        enumerator.handle_split_request(subtask)
    assert readers.assigned == {0: [(1,)], 1: [(2,)]}
    assert readers.done == [0, 1]
    assert enumerator.next_discovery_time() is None


SOURCE = ResultFilesSource(IntermediateDataSetID(b"d" * 16), "the stage")
ROWS = 150_000


def written(path: Path) -> ResultDirectory:
    """Rows in two row groups, which are read in three batches."""
    directory = ResultDirectory(str(path))
    writer = ResultWriter(directory)
    writer.write(pa.record_batch([pa.array(range(ROWS))], names=["n"]))
    writer.finish()
    return directory


def splits_of(directory: ResultDirectory) -> list[ResultFileSplit]:
    return [ResultFileSplit(rows) for rows in share_of([directory], 0, 1)]


def test_result_file_is_read_in_batches_and_continued_at_the_snapshot(
    tmp_path: Path,
) -> None:
    reader = reader_of(SOURCE, *splits_of(written(tmp_path)))
    read: list[int] = []
    while (polled := reader.poll(1)) is not END_OF_INPUT:
        assert isinstance(polled, Columns)
        read += polled.batch["n"].to_pylist()
        reader = reader_of(SOURCE, *reader.snapshot_state(1))
    assert read == list(range(ROWS))


def test_reader_of_result_files_waits_for_assigned_splits_and_requests_none(tmp_path: Path) -> None:
    reader = SOURCE.create_reader(ReaderContext(0, 1, ManualClock()))
    reader.start()
    assert reader.poll(1) is NOTHING_NOW
    reader.add_splits(splits_of(written(tmp_path)))
    reader.notify_no_more_splits()
    batches = [reader.poll(1) for _ in range(3)]
    sizes = [len(batch) for batch in batches if isinstance(batch, Columns)]
    assert (sum(sizes), reader.poll(1)) == (ROWS, END_OF_INPUT)
    assert not reader.context.split_requested


def test_lost_result_file_is_reported_with_its_location(tmp_path: Path) -> None:
    directory = written(tmp_path)
    reader = reader_of(SOURCE, *splits_of(directory))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(FileResultLostError) as caught:
        reader.poll(1)
    assert caught.value.location == directory.location


def test_program_with_a_result_files_source_is_refused_outside_its_batch_job() -> None:
    env = StreamExecutionEnvironment()
    env.from_source(SOURCE).print()
    with pytest.raises(OperatorError, match="the rows of 'the stage' are there while its batch"):
        env.execute()


def test_inputs_of_a_function_are_kept_for_it_and_no_record_is_read(tmp_path: Path) -> None:
    source = FunctionInputs(Boundedness.BOUNDED)
    splits = splits_of(written(tmp_path))
    reader = reader_of(source, *splits)
    reader.add_splits(splits[:1])
    assert reader.poll(10) is END_OF_INPUT
    assert [list(share) for share in reader.shares] == [splits, splits[:1]]
    assert reader.snapshot_state(1) == [*splits, splits[0]]
    assert batches_of(source) == []
