"""Rolling reduce."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.operators.keyed import ReduceOperator
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


def harness(**context: Any) -> OperatorHarness:
    return OperatorHarness(ReduceOperator(add, BY_FIRST), keyed=True, **context)


def test_rolling_reduce_emits_every_update() -> None:
    """PF-08"""
    h = harness()
    h.process(("a", 1), ("b", 5), ("a", 2))
    h.process(("a", 3))
    assert h.values() == [("a", 1), ("b", 5), ("a", 3), ("a", 6)]


def test_each_update_has_the_timestamp_of_its_record() -> None:
    h = harness()
    h.process(("a", 1), ("a", 2), at=[9, 4])
    assert h.records() == [(("a", 1), 9), (("a", 3), 4)]


def test_columns_are_processed_as_rows() -> None:
    reduce = lambda a, b: Row(k=a.k, v=a.v + b.v)  # noqa: E731
    h = OperatorHarness(ReduceOperator(reduce, Keys("k")), keyed=True)
    h.process_columns(columns([7, 8], k=["a", "a"], v=[1, 2]))
    assert h.records() == [(Row(k="a", v=1), 7), (Row(k="a", v=3), 8)]


def test_reduced_value_of_a_key_continues_after_a_restore() -> None:
    h = harness()
    h.process(("a", 1), ("b", 5))
    restored = harness(restore=h.snapshot())
    restored.process(("a", 2), ("c", 3))
    assert restored.values() == [("a", 3), ("c", 3)]


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = harness()
    h.process(("a", 1))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    operator = ReduceOperator(lambda a, b: unlike_five(b), BY_FIRST)
    assert_failure_is_told(operator, ("a", 4), ("a", 5), ("a", 6), record=("a", 5), keyed=True)
