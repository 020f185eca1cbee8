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


def test_an_epoch_whose_batch_is_published_is_taken(
    batches: PublishedBatches, taker: EpochsToBatches
) -> None:
    assert not taker.is_taken(Epoch(3, ()))
    batches.publish(MicroBatch(0, (), origin=3))
    assert taker.is_taken(Epoch(3, ()))
    assert not taker.is_taken(Epoch(4, ()))


def test_one_who_was_overtaken_publishes_no_epoch_twice(
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


def test_the_function_is_not_called_again_for_it(
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


def test_no_batch_follows_when_no_epoch_does(
    batches: PublishedBatches, taker: EpochsToBatches, tmp_path: Path
) -> None:
    epochs = Epochs(str(tmp_path / "epochs"))
    epochs.end("1")
    hand_over = EpochHandOver(epochs.location, "1", taker)
    hand_over.run(lambda *paths: paths, lambda rows, checkpoint_id: rows, threading.Event())
    assert batches.ended("1") == (0, 0, -1)
    assert batches.ended("2") is None


def test_the_end_is_told_by_the_next_driver_if_the_last_one_died_before_that(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    epochs = Epochs(str(tmp_path / "epochs"))
    assert gone_through_before(epochs.location, batches.location, "1") is None
    epochs.end("1")
    assert gone_through_before(epochs.location, batches.location, "1") is not None
    assert batches.ended("1") == (0, 0, -1)


def test_a_stream_that_goes_on_after_its_end_has_more_to_come(
    batches: PublishedBatches, tmp_path: Path
) -> None:
    """It had been stopped with a savepoint, and something failed before the job had finished."""
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


def test_nothing_is_computed_that_nobody_reads(
    batches: PublishedBatches, taker: EpochsToBatches, tmp_path: Path
) -> None:
    epochs = with_an_epoch(tmp_path / "epochs")
    batches.note_reader_ended("1", 0, 1)
    called: list[int] = []
    hand_over = EpochHandOver(epochs.location, "1", taker)
    hand_over.run(lambda *paths: paths, lambda rows, i: called.append(i), threading.Event())
    assert called == []
    assert epochs.last_done().checkpoint_id == -1


def test_a_driver_that_waits_for_room_ends_with_its_readers(
    batches: PublishedBatches, taker: EpochsToBatches
) -> None:
    """When the job is stopped, nobody takes what waits."""
    taker.wait_for_room()
    for number in range(MOST_WAITING):
        batches.publish(MicroBatch(number, ()))
    batches.note_reader_ended("1", 0, 1)
    with pytest.raises(NoMoreWantedError):
        taker.wait_for_room()


class Unwanted(WritesItself):
    def take(self, returned: object, epoch: Epoch) -> None:
        raise NoMoreWantedError("nobody is there")


def test_an_epoch_that_nobody_wanted_is_not_done_with(tmp_path: Path) -> None:
    epochs = with_an_epoch(tmp_path)
    hand_over = EpochHandOver(epochs.location, "1", Unwanted())
    hand_over.run(lambda *paths: paths, lambda rows, i: rows, threading.Event())
    assert epochs.last_done().checkpoint_id == -1
    assert len(epochs.published(-1)) == 1
