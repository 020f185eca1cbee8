"""Which results of user code are copied on their way to the next operator, and which portions they
come in."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.operators.basic import FlatMapOperator
from flinkray.testing.operator_harness import OperatorHarness

PLAIN: list[list[Any]] = [
    ["a", "b", 1, None, 2.5],
    [(1, "a"), (2, "b"), ("c", 3), (None, None)],
    [(1, "a", None), (2, "b", None), ()],
]
OPEN: list[list[Any]] = [
    [[1], [2], {3}],
    [([1], "a"), ([2], "b"), ("c", [3]), ("d", [4]), ([5], [6]), (None, [7]), ([8], None)],
    [(1, "a", [2]), ([1], "a", 2), ([1], [2], [3])],
]


def put_out(given: list[Any]) -> list[Any]:
    h = OperatorHarness(FlatMapOperator(lambda value: given))
    h.process(0)
    found: list[Any] = h.values()
    assert found == given
    return found


@pytest.mark.parametrize("given", PLAIN)
def test_immutable_results_of_a_function_are_not_copied(given: list[Any]) -> None:
    assert [mine is its for mine, its in zip(given, put_out(given), strict=True)] == [
        True for _ in given
    ]


@pytest.mark.parametrize("given", OPEN)
@pytest.mark.parametrize("before", PLAIN)
def test_mutable_results_among_immutable_results_are_copied(
    before: list[Any], given: list[Any]
) -> None:
    for one in given:
        mixed = [*before, one, before[0], one]
        found = put_out(mixed)
        assert [mine is its for mine, its in zip(mixed, found, strict=True)] == [
            *(True for _ in before),
            False,
            True,
            False,
        ]


@pytest.mark.parametrize("value", [7, 2.5, object()])
def test_return_value_that_is_no_list_of_results_is_refused(value: Any) -> None:
    with pytest.raises(Exception, match="which is no list or iterator of results"):
        put_out(value)


def test_type_error_raised_by_a_function_is_raised_unchanged() -> None:
    def fails(value: Any) -> Any:
        yield 1
        raise TypeError("in the function")

    def fails_at_one(value: Any) -> Any:
        if value:
            raise TypeError("in the function")

    with pytest.raises(Exception, match="in the function"):
        OperatorHarness(FlatMapOperator(fails_at_one)).process(0, 1)
    h = OperatorHarness(FlatMapOperator(fails))
    with pytest.raises(Exception, match="in the function"):
        h.process(0)
    with pytest.raises(Exception, match="in the function"):
        OperatorHarness(FlatMapOperator(lambda value: Sized())).process(0)


class Sized:
    """Has elements by their places, which is enough for an iterator."""

    def __getitem__(self, place: int) -> Any:
        raise TypeError("in the function")


@pytest.mark.parametrize("at", [None, [7]])
def test_many_results_for_one_record_are_emitted_in_several_batches(
    at: list[int] | None,
) -> None:
    h = OperatorHarness(FlatMapOperator(lambda value: range(20_000)))
    h.process(0, at=at)
    time = None if at is None else 7
    assert h.records() == [(number, time) for number in range(20_000)]
    batches = h.batches()
    assert len(batches) > 1
    assert {batch.timestamps is None for batch in batches} == {at is None}
