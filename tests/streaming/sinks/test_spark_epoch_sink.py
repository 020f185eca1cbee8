"""The sink that hands epochs over to Spark, by itself: what is published, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.actors.task_process.task_snapshots import SnapshotWriter, read_states
from flinkray.checkpoint.handles import TaskState
from flinkray.checkpoint.layout import state_writer
from flinkray.checkpoint.metadata import (
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
    SnapshotKind,
)
from flinkray.checkpoint.metadata_file import read_whole, write_metadata
from flinkray.core.ids import JobID, JobVertexID
from flinkray.file_results import Epochs, PublishedBatches, ResultSchemaError
from flinkray.state.operator_state import StateFile
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.records.elements import Barrier, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.sink import SinkError
from flinkray.streaming.sinks.spark import EpochOfAnotherJobError, SparkEpochSink, check_columns
from tests.disk import Disk
from tests.streaming.sinks.sink_harness import SinkHarness, SinkState


def sink(folder: Path, is_read: bool = False) -> SparkEpochSink:
    made = SparkEpochSink(JobVertexID.generate(), "out", is_read)
    made.locate(str(folder), str(folder / "published"))
    return made


def harness(folder: Path, state: SinkState | None = None, is_read: bool = False) -> SinkHarness:
    return SinkHarness(sink(folder, is_read), state)


def published(folder: Path) -> dict[int, list[Any]]:
    """Values by checkpoint."""
    epochs = Epochs(str(folder))
    found: dict[int, list[Any]] = {}
    for epoch in epochs.published(-1):
        values = found.setdefault(epoch.checkpoint_id, [])
        for part in epoch.parts:
            directory = epochs.part(part.name)
            for file in directory.list():
                values += pq.read_table(f"{directory.path}/{file.name}").column(0).to_pylist()
    return found


def test_rows_are_published_as_an_epoch_when_their_checkpoint_is_complete(tmp_path: Path) -> None:
    out = harness(tmp_path)
    out.process(1, 2)
    out.checkpoint()
    out.process(3)
    assert published(tmp_path) == {}
    out.complete()
    assert published(tmp_path) == {1: [1, 2]}
    out.checkpoint()
    out.complete()
    assert published(tmp_path) == {1: [1, 2], 2: [3]}


def test_rows_are_synced_to_disk_before_their_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    out = harness(tmp_path)
    for number in range(3):
        out.process(number)
        out.checkpoint()
        assert disk.lacks(tmp_path) == []
        out.complete()
        assert disk.lacks(tmp_path) == []
    note_done(tmp_path)
    assert disk.lacks(tmp_path) == []


def test_checkpoint_without_rows_publishes_no_epoch(tmp_path: Path) -> None:
    out = harness(tmp_path)
    out.checkpoint()
    out.complete()
    out.finish()
    assert published(tmp_path) == {}


def test_rows_of_an_aborted_checkpoint_are_published_with_the_next_epoch(tmp_path: Path) -> None:
    out = harness(tmp_path)
    out.process(1)
    out.checkpoint()
    out.process(2)
    out.checkpoint()
    out.complete()
    assert published(tmp_path) == {1: [1], 2: [2]}


def test_restored_committer_publishes_the_same_epoch_again(tmp_path: Path) -> None:
    """It does not know whether the attempt before it was notified of the completion."""
    out = harness(tmp_path)
    out.process(1)
    out.checkpoint()
    out.process(2)
    state = out.checkpoint()
    out.complete(1)
    before = Epochs(str(tmp_path)).published(-1)
    out.close()

    again = harness(tmp_path, state)

    assert published(tmp_path) == {1: [1], 2: [2]}
    assert Epochs(str(tmp_path)).published(-1)[:1] == before
    again.process(3)
    again.finish()
    assert published(tmp_path) == {1: [1], 2: [2], 3: [3]}


def test_small_batches_are_written_as_one_row_group(tmp_path: Path) -> None:
    out = harness(tmp_path)
    for number in range(10):
        out.process(number)
    out.checkpoint()
    out.complete()
    epochs = Epochs(str(tmp_path))
    (epoch,) = epochs.published(-1)
    (file,) = epochs.part(epoch.parts[0].name).list()
    assert file.row_groups == (10,)


def test_nanosecond_timestamps_become_microseconds_or_are_refused(tmp_path: Path) -> None:
    whole = pa.array([1_000, 2_000], pa.timestamp("ns", "UTC"))
    out = harness(tmp_path)
    out.process_columns(Columns(pa.record_batch({"at": whole})))
    out.checkpoint()
    out.complete()
    epochs = Epochs(str(tmp_path))
    directory = epochs.part(epochs.published(-1)[0].parts[0].name)
    kind = pq.read_schema(f"{directory.path}/{directory.list()[0].name}").field("at").type
    assert kind == pa.timestamp("us", "UTC")

    parts = pa.array([1], pa.timestamp("ns", "UTC"))
    out.process_columns(Columns(pa.record_batch({"at": parts})))
    with pytest.raises((SinkError, OperatorError), match="'at' has nanoseconds"):
        out.checkpoint()


def test_change_of_column_types_within_an_epoch_is_refused_with_both(tmp_path: Path) -> None:
    out = harness(tmp_path)
    out.process(Row(n=1))
    out.process(Row(n=1.5))
    with pytest.raises((ResultSchemaError, OperatorError), match=r"n: int64.* n: double"):
        out.checkpoint()


def test_column_types_may_change_from_one_epoch_to_the_next(tmp_path: Path) -> None:
    out = harness(tmp_path)
    out.process(Row(n=1))
    out.checkpoint()
    out.process(Row(n=1.5))
    out.checkpoint()
    out.complete()
    assert published(tmp_path) == {1: [1], 2: [1.5]}


def test_spark_sink_without_a_cluster_is_refused() -> None:
    with pytest.raises((StreamError, OperatorError), match="runs in the slots of a cluster"):
        SinkHarness(SparkEpochSink(JobVertexID.generate(), "out"))


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (pa.null(), "declare the type of the stream"),
        (pa.duration("us"), "make it a number"),
        (pa.time64("us"), "make it a number"),
        (pa.float16(), "make it a float32"),
        (pa.decimal256(50), "round it to 38 digits"),
        (pa.list_(pa.timestamp("ns")), "round it to microseconds"),
        (pa.struct([("inner", pa.null())]), "declare the type of the stream"),
        (pa.map_(pa.string(), pa.duration("s")), "make it a number"),
        (pa.month_day_nano_interval(), "make it a string"),
        (pa.dictionary(pa.int32(), pa.timestamp("ns")), "round it to microseconds"),
        (pa.struct([]), "give it a field"),
    ],
)
def test_error_about_a_column_that_spark_cannot_read_names_its_type_and_a_remedy(
    kind: pa.DataType, way_out: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("strange", kind)])
    with pytest.raises(SinkError, match=way_out) as caught:
        check_columns(schema)
    assert f"column 'strange' is of type {kind}" in str(caught.value)


def test_columns_of_all_types_that_spark_can_read_are_accepted() -> None:
    inner = [("name", pa.string()), ("on", pa.date32())]
    check_columns(
        pa.schema(
            [
                ("flag", pa.bool_()),
                ("small", pa.uint8()),
                ("price", pa.decimal128(12, 2)),
                ("at", pa.timestamp("ns")),
                ("kind", pa.dictionary(pa.int32(), pa.string())),
                ("tags", pa.list_(pa.large_string())),
                ("place", pa.struct(inner)),
                ("counts", pa.map_(pa.string(), pa.int64())),
                ("raw", pa.large_binary()),
            ]
        )
    )


def test_columns_whose_names_differ_only_in_case_are_refused() -> None:
    schema = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    with pytest.raises(SinkError, match="several columns of the name 'id'"):
        check_columns(schema)


def test_row_with_an_unsupported_value_type_is_refused_at_once(tmp_path: Path) -> None:
    out = harness(tmp_path)
    with pytest.raises((SinkError, OperatorError), match="column 'lasted' is of type duration"):
        out.process(Row(at=datetime(2026, 1, 1), lasted=timedelta(seconds=1)))


def test_checkpoint_of_another_job_without_copied_rows_is_refused(
    tmp_path: Path,
) -> None:
    """Rows are deleted with their job, unless a savepoint has copies."""
    out = harness(tmp_path / "first job")
    out.process(1, 2)
    state = out.checkpoint()
    out.close()
    with pytest.raises(EpochOfAnotherJobError, match=r"2 rows for .out. belong to checkpoint 1 "):
        harness(tmp_path / "second job", state)
    assert published(tmp_path / "second job") == {}


# --- savepoints -----------------------------------------------------------------------------------


def note_done(folder: Path) -> None:
    """Spark is done with the next epoch."""
    epochs = Epochs(str(folder))
    done = epochs.last_done()
    epochs.note_done(epochs.published(done.checkpoint_id)[0], done)


def moved(state: SinkState) -> SinkState:
    """A savepoint as it is written: with copies of files."""
    files = tuple(
        StateFile(file.name, partial(iter, list(file.pieces()))) for file in state.committer.files
    )
    return state._replace(committer=replace(state.committer, files=files))


def test_job_started_from_a_savepoint_publishes_the_epochs_that_waited_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their original ids: the first job may have published them since."""
    first, second = tmp_path / "first job", tmp_path / "second job"
    out = harness(first)
    for number in range(3):
        out.process(number, number + 10)
        out.checkpoint()
    out.complete()
    note_done(first)
    out.process(3)
    state = moved(out.checkpoint(is_savepoint=True))
    out.close()
    rmtree(first)

    disk = Disk(monkeypatch)
    again = harness(second, state)

    assert published(second) == {2: [1, 11], 3: [2, 12], 4: [3]}
    assert disk.lacks(second) == []
    again.process(4)
    again.checkpoint()
    again.complete()
    assert published(second) == {2: [1, 11], 3: [2, 12], 4: [3], 5: [4]}
    assert not moved(again.checkpoint()).committer.files, "a checkpoint needs no copies"


def test_savepoint_of_a_restored_job_contains_its_waiting_epochs(tmp_path: Path) -> None:
    out = harness(tmp_path / "1")
    out.process(1)
    out.checkpoint()
    out.process(2)
    state = moved(out.checkpoint(is_savepoint=True))
    again = harness(tmp_path / "2", state)
    note_done(tmp_path / "2")
    harness(tmp_path / "3", moved(again.checkpoint(is_savepoint=True)))
    assert published(tmp_path / "3") == {2: [2]}


def test_job_started_from_a_savepoint_publishes_only_epochs_that_spark_has_not_done(
    tmp_path: Path,
) -> None:
    out = harness(tmp_path / "1")
    out.process(1)
    out.checkpoint()
    out.process(2)
    state = moved(out.checkpoint(is_savepoint=True))
    harness(tmp_path / "2", state).close()
    note_done(tmp_path / "2")
    epochs = Epochs(str(tmp_path / "2"))
    epochs.delete(epochs.last_done().checkpoint_id)
    harness(tmp_path / "2", state)
    assert published(tmp_path / "2") == {2: [2]}


def test_job_restored_from_its_own_savepoint_uses_its_own_epoch_files(tmp_path: Path) -> None:
    """A job that was stopped with a savepoint, and failed after the savepoint."""
    out = harness(tmp_path)
    out.process(1)
    state = moved(out.checkpoint(is_savepoint=True))
    out.complete()
    out.close()
    note_done(tmp_path)
    again = harness(tmp_path, state)
    assert Epochs(str(tmp_path)).last_done().checkpoint_id == 1
    again.checkpoint()
    again.complete()
    assert published(tmp_path) == {}


def test_epoch_processed_by_spark_is_kept_until_the_stream_has_its_results(tmp_path: Path) -> None:
    """Spark may finish an epoch before the stream has read the results. A savepoint in between
    contains the epoch, as the restored job computes it again."""
    made = PublishedBatches(str(tmp_path / "published"))
    out = harness(tmp_path, is_read=True)
    for value in (1, 2, 3):
        out.process(value)
        out.checkpoint()
    out.complete()
    for _ in range(3):
        note_done(tmp_path)
    made.note_consumed(1)
    out.checkpoint()
    out.complete()
    assert published(tmp_path) == {2: [2], 3: [3]}

    state = moved(out.checkpoint(is_savepoint=True))
    again = harness(tmp_path / "2", state, is_read=True)
    assert published(tmp_path / "2") == {2: [2], 3: [3]}
    for _ in range(2):
        note_done(tmp_path / "2")
    again.checkpoint()
    again.complete()
    assert published(tmp_path / "2") == {2: [2], 3: [3]}
    PublishedBatches(str(tmp_path / "2" / "published")).note_consumed(3)
    again.checkpoint()
    again.complete()
    assert published(tmp_path / "2") == {}


def test_epoch_done_by_spark_is_deleted_with_the_next_checkpoint(tmp_path: Path) -> None:
    out = harness(tmp_path)
    out.process(1)
    out.checkpoint()
    out.complete()
    note_done(tmp_path)
    assert published(tmp_path) == {1: [1]}
    out.checkpoint()
    out.complete()
    assert published(tmp_path) == {}
    assert list((tmp_path / "rows").iterdir()) == []


def test_epoch_done_by_spark_is_deleted_although_earlier_epochs_were_deleted_before(
    tmp_path: Path,
) -> None:
    out = harness(tmp_path)
    for value in (1, 2):
        out.process(value)
        out.checkpoint()
        out.complete()
        note_done(tmp_path)
        out.checkpoint()
        out.complete()
        assert published(tmp_path) == {}


def test_epoch_writer_closed_before_a_checkpoint_leaves_no_file(tmp_path: Path) -> None:
    out = harness(tmp_path)
    rows = pa.record_batch({"value": np.arange(2 << 20)})
    out.operator.process_columns(Columns(rows, None))
    assert list((tmp_path / "rows").iterdir()) != []
    out.close()
    assert list((tmp_path / "rows").iterdir()) == []


def test_only_savepoints_contain_the_files_of_waiting_epochs(tmp_path: Path) -> None:
    out = harness(tmp_path)
    out.process(1)
    out.checkpoint()
    out.complete()
    assert out.checkpoint(is_savepoint=True).committer.files
    assert out.checkpoint().committer.files == ()


def test_epochs_done_by_spark_are_not_deleted_while_a_savepoint_is_written(tmp_path: Path) -> None:
    out = harness(tmp_path)
    out.process(1)
    out.checkpoint()
    out.complete()
    operator = out.committer.operator
    operator.prepare_snapshot_pre_barrier(Barrier(2, 0, savepoint=True))
    savepoint = operator.capture(2)
    note_done(tmp_path)
    out.complete(3)
    assert published(tmp_path) == {1: [1]}
    savepoint.release()
    out.complete(4)
    assert published(tmp_path) == {}


def test_moved_savepoint_is_restored_with_the_files_of_its_epochs(tmp_path: Path) -> None:
    """It is written and read as tasks do."""
    out = harness(tmp_path / "1")
    out.process(1)
    out.checkpoint()
    out.process(2)
    state, savepoint = out.checkpoint(is_savepoint=True), tmp_path / "savepoint"
    directory = str(savepoint)
    writer = SnapshotWriter(state_writer(directory, 100, is_savepoint=True))
    writer.write("out", state.committer, ())
    subtask = CheckpointedSubtask(0, writer.operators["out"])
    operator = CheckpointedOperator("out", "out", "out", 1, 128, (subtask,))
    metadata = CheckpointMetadata(JobID(b"j" * 16), 2, 0, SnapshotKind.SAVEPOINT, (operator,))
    write_metadata(directory, metadata)
    rmtree(tmp_path / "1")
    savepoint.rename(tmp_path / "moved")

    (stored,) = read_whole(str(tmp_path / "moved")).operators
    task, reader = TaskState({"out": stored.subtasks[0].state}), out.committer.operator
    read = read_states(task, [("out", reader)], lambda: None)["out"]

    operators = tuple(state.operator for state in read if state.operator is not None)
    files = tuple(file for state in read for file in state.files)
    restored = state._replace(committer=OperatorState(operator=operators[0], files=files))
    harness(tmp_path / "2", restored)
    assert published(tmp_path / "2") == {1: [1], 2: [2]}
