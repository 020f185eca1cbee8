"""Epochs that become micro-batches: what is done again when a driver has died, and what is not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flinkray.file_results import Epoch, EpochPart, Epochs, MicroBatch, PublishedBatches
from flinkray.spark.epochs import EpochHandOver, NoMoreWantedError, WritesItself
from flinkray.spark.micro_batches import MOST_WAITING, EpochsToBatches, gone_through_before
from flinkray.spark.result import InvalidStageResultError


@pytest.fixture
def batches(tmp_path: Path) -> PublishedBatches:
    return PublishedBatches(str(tmp_path / "batches"))


@pytest.fixture
def taker(batches: PublishedBatches) -> EpochsToBatches:
    return EpochsToBatches(batches.location, "1", threading.Event())


def test_epoch_counts_as_processed_once_its_micro_batch_is_published(
    batches: PublishedBatches, taker: EpochsToBatches
) -> None:
    assert not taker.is_taken(Epoch(3, ()))
    batches.publish(MicroBatch(0, (), origin=3))
    assert taker.is_taken(Epoch(3, ()))
    assert not taker.is_taken(Epoch(4, ()))


def test_driver_that_was_replaced_publishes_no_epoch_that_its_successor_published(
    batches: PublishedBatches, taker: EpochsToBatches
) -> None:
    successor = EpochsToBatches(batches.location, "1", threading.Event())
    assert not taker.is_taken(Epoch(3, ()))
    for checkpoint_id in (3, 4):
        assert not successor.is_taken(Epoch(checkpoint_id, ()))
        successor.publish((), Epoch(checkpoint_id, ()))

    taker.publish((), Epoch(3, ()))

    assert batches.next_batch() == (2, 4)
    published = [batch.origin for i in range(3) if (batch := batches.batch(i)) is not None]
    assert published == [3, 4]


def test_function_is_not_called_for_an_epoch_whose_batch_was_published_before(
    batches: PublishedBatches, taker: EpochsToBatches, tmp_path: Path
) -> None:
    epochs = Epochs(str(tmp_path / "epochs"))
    for checkpoint_id in (3, 5):
        name, directory = epochs.new_part()
        directory.seal(0)
        epochs.publish(checkpoint_id, [EpochPart(name, 0, "n: int64")])
    epochs.end("1")
    batches.publish(MicroBatch(0, (), origin=3))
    called: list[int] = []

    def fails(rows: Any, checkpoint_id: int) -> None:
        called.append(checkpoint_id)

    hand_over = EpochHandOver(epochs.location, "1", taker)
    with pytest.raises(InvalidStageResultError, match="a stream reads the rows"):
        hand_over.run(lambda *paths: paths, fails, threading.Event())
    assert called == [5]
    assert epochs.last_done().checkpoint_id == 3
    assert batches.ended("1") is None


def test_stream_that_ends_without_any_epoch_publishes_no_batch(
    batches: PublishedBatches, taker: EpochsToBatches, tmp_path: Path
) -> None:
    epochs = Epochs(str(tmp_path / "epochs"))
    epochs.end("1")
    hand_over = EpochHandOver(epochs.location, "1", taker)
    hand_over.run(lambda *paths: paths, lambda rows, checkpoint_id: rows, threading.Event())
    assert batches.ended("1") == (0, 0, -1)
    assert batches.ended("2") is None


def test_next_driver_publishes_the_end_of_a_stream_if_the_dead_driver_did_not(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    epochs = Epochs(str(tmp_path / "epochs"))
    assert gone_through_before(epochs.location, batches.location, "1") is None
    epochs.end("1")
    assert gone_through_before(epochs.location, batches.location, "1") is not None
    assert batches.ended("1") == (0, 0, -1)


def test_stream_that_was_stopped_and_resumed_does_not_count_as_ended(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    """The stream was stopped with a savepoint, and the job failed before it had finished."""
    epochs = Epochs(str(tmp_path / "epochs"))
    epochs.end("1")
    assert gone_through_before(epochs.location, batches.location, "1") is not None
    assert gone_through_before(epochs.location, batches.location, "2") is None
    assert batches.ended("2") is None


def with_an_epoch(folder: Path) -> Epochs:
    epochs = Epochs(str(folder))
    name, directory = epochs.new_part()
    directory.seal(0)
    epochs.publish(3, [EpochPart(name, 0, "n: int64")])
    return epochs


def test_function_is_not_called_with_epochs_once_all_readers_have_ended(
    batches: PublishedBatches, taker: EpochsToBatches, tmp_path: Path
) -> None:
    epochs = with_an_epoch(tmp_path / "epochs")
    batches.note_reader_ended("1", 0, 1)
    called: list[int] = []
    hand_over = EpochHandOver(epochs.location, "1", taker)
    hand_over.run(lambda *paths: paths, lambda rows, i: called.append(i), threading.Event())
    assert called == []
    assert epochs.last_done().checkpoint_id == -1


def test_driver_that_waits_for_batches_to_be_read_stops_when_its_readers_end(
    batches: PublishedBatches, taker: EpochsToBatches
) -> None:
    """In a stopped job nobody takes the waiting micro-batches."""
    taker.wait_for_room()
    for number in range(MOST_WAITING):
        batches.publish(MicroBatch(number, ()))
    batches.note_reader_ended("1", 0, 1)
    with pytest.raises(NoMoreWantedError):
        taker.wait_for_room()


class Unwanted(WritesItself):
    def take(self, returned: object, epoch: Epoch) -> None:
        raise NoMoreWantedError("nobody is there")


def test_epoch_whose_rows_nobody_wants_any_more_stays_published(tmp_path: Path) -> None:
    epochs = with_an_epoch(tmp_path)
    hand_over = EpochHandOver(epochs.location, "1", Unwanted())
    hand_over.run(lambda *paths: paths, lambda rows, i: rows, threading.Event())
    assert epochs.last_done().checkpoint_id == -1
    assert len(epochs.published(-1)) == 1
