"""Results that another vertex has written to files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flinkray.core.ids import IntermediateDataSetID
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.file_results import FileResultLostError, ResultDirectory, ResultWriter, share_of
from flinkray.streaming.errors import OperatorError
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.sources.result_files import ResultFileSplit, ResultFilesSource
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW, ReaderContext
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import reader_of

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
