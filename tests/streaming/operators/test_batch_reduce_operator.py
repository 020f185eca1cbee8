"""Reduce in batch mode."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.operators.keyed import BatchReduceOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    unlike_five,
)


def add(a: Any, b: Any) -> Any:
    return a[0], a[1] + b[1]


def test_batch_reduce_emits_only_final_values_at_the_end() -> None:
    """PF-08"""
    h = OperatorHarness(BatchReduceOperator(add, BY_FIRST), keyed=True)
    h.process(("a", 1), ("b", 5), ("a", 2))
    assert h.values() == []
    h.finish()
    assert h.values() == [("a", 3), ("b", 5)]


def test_batch_reduce_emits_final_values_once_with_the_last_timestamp() -> None:
    h = OperatorHarness(BatchReduceOperator(add, BY_FIRST), keyed=True)
    h.process(("a", 1), ("a", 2), at=[3, 9])
    h.finish()
    h.finish()
    assert h.records() == [(("a", 3), MAX_TIMESTAMP)]


def test_columns_are_processed_as_rows() -> None:
    operator = BatchReduceOperator(lambda a, b: Row(k=a.k, v=a.v + b.v), Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    h.process_columns(columns(k=["a", "b", "a"], v=[1, 2, 3]))
    h.finish()
    assert h.values() == [Row(k="a", v=4), Row(k="b", v=2)]


def test_watermarks_pass_through_and_an_empty_input_has_no_result() -> None:
    h = OperatorHarness(BatchReduceOperator(add, BY_FIRST), keyed=True)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    operator = BatchReduceOperator(lambda a, b: unlike_five(b), BY_FIRST)
    assert_failure_is_told(operator, ("a", 4), ("a", 5), ("a", 6), record=("a", 5), keyed=True)
