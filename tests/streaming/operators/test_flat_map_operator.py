"""Flat map."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.basic import FlatMapOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    unlike_five,
)

ODD: OutputTag[Any] = OutputTag("odd")


def test_flat_map_takes_generators_lists_and_none_and_sends_to_sides() -> None:
    def function(value: int) -> Any:
        if value == 0:
            return None
        if value % 2:
            return [(ODD, value)]
        return (value + step for step in range(2))

    h = OperatorHarness(FlatMapOperator(function), side_outputs=["odd"])
    h.process(0, 1, 2, at=[7, 8, 9])
    h.process(3, 4)
    assert h.records() == [(2, 9), (3, 9), (4, None), (5, None)]
    assert h.side("odd") == [1, 3]


def test_columns_come_as_rows_and_each_result_has_its_rows_timestamp() -> None:
    h = OperatorHarness(FlatMapOperator(lambda row: [row.x] * row.x))
    h.process_columns(columns([7, 8, 9], x=[2, 0, 1]))
    assert h.records() == [(2, 7), (2, 7), (1, 9)]


def test_batch_without_results_is_not_put_out() -> None:
    h = OperatorHarness(FlatMapOperator(lambda value: []))
    h.process(1, 2)
    h.process(1, 2, at=[3, 4])
    assert h.batches() == []


def test_time_passes_sides_included_and_the_end_adds_nothing() -> None:
    h = OperatorHarness(FlatMapOperator(lambda value: [value]), side_outputs=["odd"])
    assert_time_passes_and_the_end_adds_nothing(h)


def test_failure_is_told_with_its_record_also_where_a_generator_fails() -> None:
    operator = FlatMapOperator(lambda value: [unlike_five(value)])
    assert_failure_is_told(operator, 4, 5, 6, record=5)
    lazy = FlatMapOperator(lambda value: (unlike_five(each) for each in [value]))
    assert_failure_is_told(lazy, 4, 5, 6, record=5)
    assert_failure_is_told(lazy, 4, 5, 6, record=5, at=[1, 2, 3])
