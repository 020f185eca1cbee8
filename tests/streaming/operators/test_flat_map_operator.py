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


def test_flat_map_accepts_generators_lists_none_and_tagged_results() -> None:
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


def test_function_gets_columns_as_rows_and_results_keep_row_timestamps() -> None:
    h = OperatorHarness(FlatMapOperator(lambda row: [row.x] * row.x))
    h.process_columns(columns([7, 8, 9], x=[2, 0, 1]))
    assert h.records() == [(2, 7), (2, 7), (1, 9)]


def test_batch_without_flat_map_results_is_not_emitted() -> None:
    h = OperatorHarness(FlatMapOperator(lambda value: []))
    h.process(1, 2)
    h.process(1, 2, at=[3, 4])
    assert h.batches() == []


def test_watermarks_pass_to_all_outputs_and_the_end_of_input_adds_no_result() -> None:
    h = OperatorHarness(FlatMapOperator(lambda value: [value]), side_outputs=["odd"])
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_in_a_function_or_its_generator_names_the_record() -> None:
    operator = FlatMapOperator(lambda value: [unlike_five(value)])
    assert_failure_is_told(operator, 4, 5, 6, record=5)
    lazy = FlatMapOperator(lambda value: (unlike_five(each) for each in [value]))
    assert_failure_is_told(lazy, 4, 5, 6, record=5)
    assert_failure_is_told(lazy, 4, 5, 6, record=5, at=[1, 2, 3])
