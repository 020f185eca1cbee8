"""Epochs: published in order, handed over until they are done with, and forgotten."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flinkray.core.ids import ExecutionGraphID
from flinkray.file_results import (
    EpochPart,
    Epochs,
    EpochsDone,
    FileResultLostError,
    ResultWriter,
    stream_execution,
)


@pytest.fixture
def epochs(tmp_path: Path) -> Epochs:
    return Epochs(str(tmp_path / "epochs"))


def part(epochs: Epochs, *values: int) -> EpochPart:
    name, directory = epochs.new_part()
    writer = ResultWriter(directory)
    writer.write(pa.table({"v": values}))
    writer.finish()
    return EpochPart(name, len(values), "v: int64")


def ids(epochs: Epochs, after: int = -1) -> list[int]:
    return [epoch.checkpoint_id for epoch in epochs.published(after)]


def test_new_epochs_folder_has_no_published_epochs(epochs: Epochs) -> None:
    assert epochs.published(-1) == []
    assert epochs.last_done() == EpochsDone(-1, 0)
    assert not epochs.is_ended("1")


def test_epochs_are_listed_in_the_order_of_their_ids(epochs: Epochs) -> None:
    for checkpoint_id in (9, 100, 10):
        epochs.publish(checkpoint_id, [part(epochs, checkpoint_id)])
    assert ids(epochs) == [9, 10, 100]
    assert ids(epochs, after=9) == [10, 100]


def test_epoch_published_again_stays_unchanged(epochs: Epochs) -> None:
    parts = [part(epochs, 1, 2), part(epochs, 3)]
    epochs.publish(4, parts)
    first = epochs.published(-1)
    epochs.publish(4, parts)
    assert epochs.published(-1) == first
    assert first[0].rows == 3
    assert first[0].parts == tuple(parts)


def test_last_finished_epoch_never_decreases(epochs: Epochs) -> None:
    """A reader that does not know of its successor notes an earlier epoch."""
    for checkpoint_id in (1, 2):
        epochs.publish(checkpoint_id, [part(epochs, 0, 0, 0)])
    one, two = epochs.published(-1)
    done = epochs.note_done(two, epochs.note_done(one, EpochsDone()))
    assert done == EpochsDone(2, 6)
    epochs.note_done(one, EpochsDone())
    assert epochs.last_done() == done


def test_finished_epochs_are_deleted_with_their_rows(epochs: Epochs) -> None:
    for checkpoint_id in (1, 2, 3):
        epochs.publish(checkpoint_id, [part(epochs, checkpoint_id)])
    one, two, three = epochs.published(-1)
    done = epochs.note_done(two, epochs.note_done(one, EpochsDone()))
    epochs.forget(done)
    assert ids(epochs) == [1, 2, 3]
    epochs.delete(done.checkpoint_id)
    assert ids(epochs) == [3]
    assert epochs.last_done() == done
    with pytest.raises(FileResultLostError):
        epochs.part(two.parts[0].name).list()
    assert len(epochs.part(three.parts[0].name).list()) == 1


def test_finished_epoch_that_is_published_again_is_not_returned_again(
    epochs: Epochs,
) -> None:
    parts = [part(epochs, 1)]
    epochs.publish(1, parts)
    done = epochs.note_done(epochs.published(-1)[0], EpochsDone())
    epochs.delete(done.checkpoint_id)
    epochs.publish(1, parts)
    assert epochs.published(epochs.last_done().checkpoint_id) == []
    epochs.delete(done.checkpoint_id)
    assert ids(epochs) == []


def test_end_of_the_epochs_in_one_execution_is_no_end_in_another_execution(epochs: Epochs) -> None:
    """In another execution the stream was restored from a checkpoint and continues."""
    graph = ExecutionGraphID.generate()
    first, second = stream_execution(graph, 0), stream_execution(graph, 1)
    epochs.end(first)
    assert epochs.is_ended(first)
    assert not epochs.is_ended(second)
    assert not epochs.is_ended(stream_execution(ExecutionGraphID.generate(), 0))
    epochs.end(second)
    assert epochs.is_ended(second)


def test_late_end_of_a_past_execution_does_not_undo_the_end_of_the_next_one(epochs: Epochs) -> None:
    """A task of the past execution was paused just before it noted the end."""
    graph = ExecutionGraphID.generate()
    first, second = stream_execution(graph, 0), stream_execution(graph, 1)
    epochs.end(second)
    epochs.end(first)
    assert epochs.is_ended(second)


def test_number_of_waiting_epochs_is_published_minus_finished_epochs(epochs: Epochs) -> None:
    assert epochs.waiting() == 0
    for checkpoint_id in (2, 3, 7):
        epochs.publish(checkpoint_id, [part(epochs, 1)])
    assert epochs.waiting() == 3
    first, second, _ = epochs.published(-1)
    done = epochs.note_done(second, epochs.note_done(first, EpochsDone()))
    assert epochs.waiting() == 1
    epochs.forget(done)
    epochs.delete(done.checkpoint_id)
    assert epochs.waiting() == 1
