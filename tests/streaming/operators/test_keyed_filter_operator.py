"""Filter with keyed state."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.functions.functions import FilterFunction
from flinkray.streaming.operators.keyed import KeyedFilterOperator
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    BY_FIRST,
    PAIRS,
    Counting,
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    unlike_five,
)


class EverySecond(Counting, FilterFunction[Any]):
    def filter(self, value: Any) -> bool:
        return self.next() % 2 == 0


def harness(keys: Keys = BY_FIRST, **context: Any) -> OperatorHarness:
    return OperatorHarness(KeyedFilterOperator(EverySecond(), keys), keyed=True, **context)


def test_keyed_filter_uses_the_state_of_the_key_of_each_record() -> None:
    """PF-11"""
    h = harness()
    h.process(*PAIRS, at=[1, 2, 3, 4])
    assert h.records() == [(("a", 3), 3)]


def test_batch_without_remaining_records_is_not_emitted() -> None:
    h = harness()
    h.process(("a", 1), ("b", 2))
    assert h.batches() == []


def test_function_gets_columns_as_rows_with_their_keys_and_timestamps() -> None:
    h = harness(Keys("k"))
    h.process_columns(columns([7, 8, 9], k=["a", "b", "a"], v=[1, 2, 3]))
    assert h.records() == [(Row(k="a", v=3), 9)]


def test_state_is_kept_after_a_restore() -> None:
    h = harness()
    h.process(*PAIRS)
    restored = harness(restore=h.snapshot())
    restored.process(("a", 0), ("b", 0), ("c", 0))
    assert restored.values() == [("a", 0), ("b", 0)]


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = harness()
    h.process(*PAIRS)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    operator = KeyedFilterOperator(unlike_five, BY_FIRST)
    assert_failure_is_told(operator, ("a", 4), ("b", 5), ("c", 6), record=("b", 5), keyed=True)
