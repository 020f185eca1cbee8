"""Epochs that become micro-batches: what is done again when a driver has died, and what is not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flinkray.file_results import Epoch, EpochPart, Epochs, MicroBatch, PublishedBatches
from flinkray.spark.epochs import EpochHandOver
from flinkray.spark.micro_batches import EpochsToBatches
from flinkray.spark.result import InvalidStageResultError


@pytest.fixture
def batches(tmp_path: Path) -> PublishedBatches:
    return PublishedBatches(str(tmp_path / "batches"))


@pytest.fixture
def taker(batches: PublishedBatches) -> EpochsToBatches:
    return EpochsToBatches(batches.location, threading.Event())


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
    successor = EpochsToBatches(batches.location, threading.Event())
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
    assert batches.ended() is None


def test_no_batch_follows_when_no_epoch_does(
    batches: PublishedBatches, taker: EpochsToBatches, tmp_path: Path
) -> None:
    epochs = Epochs(str(tmp_path / "epochs"))
    epochs.end("1")
    hand_over = EpochHandOver(epochs.location, "1", taker)
    hand_over.run(lambda *paths: paths, lambda rows, checkpoint_id: rows, threading.Event())
    assert batches.ended() == (0, 0, -1)
