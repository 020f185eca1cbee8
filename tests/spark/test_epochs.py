"""Epochs, handed over to a function one by one; tables of Arrow stand for DataFrames."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.file_results import EpochPart, Epochs, FileResultLostError, ResultWriter
from flinkray.spark.epochs import (
    EpochColumnsError,
    EpochHandOver,
    WritesItself,
    handed_over_before,
)
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


def test_epochs_that_are_published_during_a_function_call_are_handed_over_after_it(
    epochs: Epochs,
) -> None:
    def ends(rows: pa.Table, checkpoint_id: int) -> None:
        if checkpoint_id == 1:
            epochs.publish(2, [part(epochs, 9)])
            epochs.end("1")

    epochs.publish(1, [part(epochs, 1)])
    assert run(epochs, ends).num_rows == 2


def test_rows_of_a_failed_epoch_are_handed_over_again_with_the_same_checkpoint_id(
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


def test_stopped_spark_stage_hands_over_no_more_epochs(epochs: Epochs) -> None:
    epochs.publish(1, [part(epochs, 1)])
    calls = Calls()
    run(epochs, calls, stopping=True)
    assert calls.given == []


def test_function_on_epochs_that_returns_rows_is_told_to_write_them_itself(epochs: Epochs) -> None:
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


def test_attempt_returns_its_result_at_once_if_all_epochs_were_handed_over_before(
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
