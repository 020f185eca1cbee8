"""Epochs of a stream, and functions of Spark on epochs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.file_results import (
    Epoch,
    EpochPart,
    Epochs,
    FileResultLostError,
    MicroBatch,
    PublishedBatches,
    ResultWriter,
)
from flinkray.spark.epochs import (
    EpochColumnsError,
    EpochHandOver,
    NoMoreWantedError,
    WritesItself,
    handed_over_before,
)
from flinkray.spark.micro_batches import MOST_WAITING, EpochsToBatches, gone_through_before
from flinkray.spark.result import InvalidStageResultError


def read(*paths: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in paths)


class Calls:
    """What a function was given, by checkpoint; it raises at the calls of those numbers."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.given: list[tuple[int, list[int]]] = []

    def __call__(self, rows: pa.Table, checkpoint_id: int) -> None:
        self.given.append((checkpoint_id, sorted(rows["v"].to_pylist())))
        if len(self.given) in self.failing:
            raise ZeroDivisionError("division by zero")


@pytest.fixture
def epochs(tmp_path: Path) -> Epochs:
    return Epochs(str(tmp_path))


def part(epochs: Epochs, *values: int, columns: str = "v: int64") -> EpochPart:
    name, directory = epochs.new_part()
    writer = ResultWriter(directory)
    writer.write(pa.table({"v": values}))
    writer.finish()
    return EpochPart(name, len(values), columns)


def run(epochs: Epochs, function: Callable[..., Any], stopping: bool = False) -> Any:
    stop = threading.Event()
    if stopping:
        stop.set()
    return EpochHandOver(epochs.location, "1", WritesItself()).run(read, function, stop)


def test_function_is_called_with_each_epoch_in_order_until_the_stream_ends(epochs: Epochs) -> None:
    epochs.publish(3, [part(epochs, 1), part(epochs, 2, 3)])
    epochs.publish(10, [part(epochs, 4)])
    epochs.end("1")
    calls = Calls()
    result = run(epochs, calls)
    assert calls.given == [(3, [1, 2, 3]), (10, [4])]
    assert (result.location, result.num_rows) == (None, 4)


def test_epochs_published_during_a_call_of_the_function_are_passed_to_it_afterwards(
    epochs: Epochs,
) -> None:
    def ends(rows: pa.Table, checkpoint_id: int) -> None:
        if checkpoint_id == 1:
            epochs.publish(2, [part(epochs, 9)])
            epochs.end("1")

    epochs.publish(1, [part(epochs, 1)])
    assert run(epochs, ends).num_rows == 2


def test_rows_of_a_failed_epoch_are_passed_on_again_with_the_same_checkpoint_id(
    epochs: Epochs,
) -> None:
    for checkpoint_id in (1, 2, 3):
        epochs.publish(checkpoint_id, [part(epochs, checkpoint_id)])
    epochs.end("1")
    calls = Calls(2)
    with pytest.raises(ZeroDivisionError):
        run(epochs, calls)
    assert run(epochs, calls).num_rows == 3
    assert calls.given == [(1, [1]), (2, [2]), (2, [2]), (3, [3])]


def test_error_of_a_function_on_an_epoch_names_the_checkpoint_of_its_rows(epochs: Epochs) -> None:
    epochs.publish(7, [part(epochs, 1)])
    hand_over = EpochHandOver(epochs.location, "1", WritesItself())
    with pytest.raises(ZeroDivisionError) as caught:
        hand_over.run(read, Calls(1), threading.Event())
    failure = hand_over.failure(caught.value)
    text = "ZeroDivisionError: division by zero (with the rows of checkpoint 7)"
    assert (failure.text, failure.is_user_error) == (text, True)
    assert not failure.suppress_restarts


def test_stopped_spark_stage_passes_no_more_epochs_to_its_function(epochs: Epochs) -> None:
    epochs.publish(1, [part(epochs, 1)])
    calls = Calls()
    run(epochs, calls, stopping=True)
    assert calls.given == []


def test_function_on_epochs_that_returns_rows_fails_with_advice_to_write_them_itself(
    epochs: Epochs,
) -> None:
    epochs.publish(1, [part(epochs, 1)])
    with pytest.raises(InvalidStageResultError, match="has to write itself, and returns None"):
        run(epochs, lambda rows, checkpoint_id: rows)


def test_epoch_whose_rows_have_different_columns_fails_and_names_the_columns(
    epochs: Epochs,
) -> None:
    epochs.publish(5, [part(epochs, 1), part(epochs, 2, columns="v: double")])
    with pytest.raises(EpochColumnsError, match=r"checkpoint 5 .*v: double.*v: int64.*declare"):
        run(epochs, Calls())


def test_epoch_with_a_lost_file_fails_before_the_function_gets_any_of_its_rows(
    epochs: Epochs,
) -> None:
    parts = [part(epochs, 1), part(epochs, 2)]
    epochs.publish(1, parts)
    epochs.part(parts[0].name).delete()
    calls = Calls()
    with pytest.raises(FileResultLostError):
        run(epochs, calls)
    assert calls.given == []


def test_attempt_returns_its_result_at_once_if_all_epochs_were_processed_before(
    epochs: Epochs,
) -> None:
    assert handed_over_before(epochs.location, "1") is None
    epochs.publish(1, [part(epochs, 1, 2)])
    epochs.end("1")
    assert handed_over_before(epochs.location, "1") is None
    run(epochs, Calls())
    result = handed_over_before(epochs.location, "1")
    assert result is not None
    assert result.num_rows == 2
    assert handed_over_before(epochs.location, "2") is None, "the stream has gone back"


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


def test_function_gets_no_more_epochs_once_all_readers_of_its_results_have_ended(
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


def test_epoch_is_not_marked_finished_when_all_readers_of_its_results_have_ended(
    tmp_path: Path,
) -> None:
    epochs = with_an_epoch(tmp_path)
    hand_over = EpochHandOver(epochs.location, "1", Unwanted())
    hand_over.run(lambda *paths: paths, lambda rows, i: rows, threading.Event())
    assert epochs.last_done().checkpoint_id == -1
    assert len(epochs.published(-1)) == 1
