"""Map with keyed state."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.functions.functions import MapFunction
from flinkray.streaming.operators.keyed import KeyedMapOperator
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.keying import Keys
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


class CountingMap(Counting, MapFunction[Any, Any]):
    def map(self, value: Any) -> Any:
        return (*value, self.next())


def harness(keys: Keys = BY_FIRST, **context: Any) -> OperatorHarness:
    return OperatorHarness(KeyedMapOperator(CountingMap(), keys), keyed=True, **context)


def test_keyed_map_uses_the_state_of_the_key_of_each_record() -> None:
    """PF-11"""
    h = harness()
    h.process(*PAIRS, at=[1, 2, 3, 4])
    assert h.records() == [
        (("a", 1, 1), 1), (("b", 2, 1), 2), (("a", 3, 2), 3), (("a", 4, 3), 4),
    ]  # fmt: skip


def test_keys_sent_with_a_batch_are_used_without_the_key_selector() -> None:
    h = harness(Keys(lambda value: 1 / 0))
    h.operator.process_block(Block([("x", 1), ("y", 2)], None, ["same", "same"]))
    assert h.values() == [("x", 1, 1), ("y", 2, 2)]


def test_function_gets_columns_as_rows_with_their_keys_and_timestamps() -> None:
    h = harness(Keys("k"))
    h.process_columns(columns([7, 8, 9], k=["a", "b", "a"], v=[1, 2, 3]))
    assert h.records() == [(("a", 1, 1), 7), (("b", 2, 1), 8), (("a", 3, 2), 9)]


def test_state_is_kept_after_a_restore() -> None:
    h = harness()
    h.process(*PAIRS)
    restored = harness(restore=h.snapshot())
    restored.process(("a", 0), ("b", 0), ("c", 0))
    assert restored.values() == [("a", 0, 4), ("b", 0, 2), ("c", 0, 1)]


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = harness()
    h.process(*PAIRS)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    operator = KeyedMapOperator(unlike_five, BY_FIRST)
    assert_failure_is_told(operator, ("a", 4), ("b", 5), ("c", 6), record=("b", 5), keyed=True)


def test_error_in_the_key_selector_names_the_record() -> None:
    operator = KeyedMapOperator(abs, Keys(unlike_five))
    assert_failure_is_told(operator, 4, 5, 6, record=5, keyed=True)
