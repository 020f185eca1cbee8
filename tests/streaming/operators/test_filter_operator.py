"""Filter."""

from __future__ import annotations

from flinkray.streaming.operators.basic import FilterOperator
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    unlike_five,
)


def odd(value: int) -> bool:
    return value % 2 == 1


def test_filter_keeps_values_with_their_timestamps() -> None:
    h = OperatorHarness(FilterOperator(lambda value: value % 2))
    h.process(1, 2, 3, at=[10, 20, 30])
    h.process(4, 5)
    assert h.records() == [(1, 10), (3, 30), (5, None)]


def test_batch_in_which_a_filter_keeps_no_record_is_not_emitted() -> None:
    h = OperatorHarness(FilterOperator(odd))
    h.process(2, 4)
    h.process(2, 4, at=[10, 20])
    assert h.batches() == []


def test_batch_with_keys_is_filtered() -> None:
    h = OperatorHarness(FilterOperator(odd))
    h.operator.process_block(Block([1, 2, 3], None, ["k", "k", "k"]))
    assert h.records() == [(1, None), (3, None)]


def test_function_gets_columns_as_rows_with_their_timestamps() -> None:
    h = OperatorHarness(FilterOperator(lambda row: row.x > 1))
    h.process_columns(columns([7, 8, 9], x=[1, 2, 3]))
    assert h.records() == [(Row(x=2), 8), (Row(x=3), 9)]


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = OperatorHarness(FilterOperator(odd))
    h.process(2)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    assert_failure_is_told(FilterOperator(unlike_five), 4, 5, 6, record=5)
    assert_failure_is_told(FilterOperator(unlike_five), 4, 5, 6, record=5, at=[1, 2, 3])
