"""Global aggregates in one process."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flinkray.datastream import AggregateFunction
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.global_aggregates import (
    GlobalAggregateError,
    LocalGlobalAggregateManager,
)


class Total(AggregateFunction[int, "list[int]", "list[int]"]):
    """Changes its accumulator, also before it fails, and returns it as the result."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        if value < 0:
            raise ValueError("negative")
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [acc_a[0] + acc_b[0]]


def test_update_of_a_global_aggregate_returns_the_result_of_all_updates_of_its_name() -> None:
    """JM-16."""
    update = LocalGlobalAggregateManager().update_global_aggregate
    assert [update("a", value, Total()) for value in (1, 2, 3, 4)] == [[1], [3], [6], [10]]
    assert update("b", 7, Total()) == [7]


def test_failed_aggregate_function_adds_nothing_and_its_traceback_is_in_the_error() -> None:
    update = LocalGlobalAggregateManager().update_global_aggregate
    assert update("a", 5, Total()) == [5]
    with pytest.raises(GlobalAggregateError, match="of the global aggregate 'a' failed") as raised:
        update("a", -1, Total())
    assert 'raise ValueError("negative")\nValueError: negative' in str(raised.value)
    assert isinstance(raised.value.__cause__, ValueError)
    assert update("a", 1, Total()) == [6]


class UnloadableError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)


@pytest.mark.parametrize("of", ["add", "get_result"])
def test_accumulator_or_result_that_cannot_be_unpickled_adds_nothing(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = LocalGlobalAggregateManager().update_global_aggregate
    assert update("a", 5, Total()) == [5]
    with monkeypatch.context() as changed:
        changed.setattr(Total, of, lambda *_: UnloadableError(1, 2))
        with pytest.raises(GlobalAggregateError, match="missing 1 required positional argument"):
            update("a", 1, Total())
    assert update("a", 2, Total()) == [7]


def test_aggregate_function_that_raises_system_exit_raises_a_global_aggregate_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(*_: object) -> None:
        raise SystemExit("negative")

    monkeypatch.setattr(Total, "add", leave)
    with pytest.raises(GlobalAggregateError, match="SystemExit: negative"):
        LocalGlobalAggregateManager().update_global_aggregate("a", 1, Total())


@pytest.mark.parametrize(
    ("name", "function", "error"),
    [
        (5, Total(), "must be a str, got 5"),
        ("a", Total, "must be an AggregateFunction, got"),
    ],
)
def test_global_aggregate_with_an_invalid_name_or_function_is_refused(
    name: Any, function: Any, error: str
) -> None:
    with pytest.raises(StreamError, match=error):
        LocalGlobalAggregateManager().update_global_aggregate(name, 1, function)


def test_caller_that_changes_a_returned_result_does_not_change_the_global_aggregate() -> None:
    update = LocalGlobalAggregateManager().update_global_aggregate
    update("a", 1, Total()).append(9)
    assert update("a", 1, Total()) == [2]


def test_value_for_a_global_aggregate_that_cannot_be_pickled_is_refused() -> None:
    update = LocalGlobalAggregateManager().update_global_aggregate
    with pytest.raises(StreamError, match="a lock cannot be sent to the global aggregate 'a'"):
        update("a", threading.Lock(), Total())  # type: ignore[misc]
