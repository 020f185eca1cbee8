"""Flat map with keyed state."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.functions.functions import FlatMapFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.keyed import KeyedFlatMapOperator
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

SIDE: OutputTag[Any] = OutputTag("side")


class Repeated(Counting, FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        for _ in range(self.next()):
            yield value


def harness(keys: Keys = BY_FIRST, **context: Any) -> OperatorHarness:
    return OperatorHarness(KeyedFlatMapOperator(Repeated(), keys), keyed=True, **context)


def test_keyed_flat_map_uses_the_state_of_the_key_of_each_record() -> None:
    """PF-11"""
    h = harness()
    h.process(*PAIRS)
    assert h.values() == [("a", 1), ("b", 2), ("a", 3), ("a", 3), *[("a", 4)] * 3]


def test_function_gets_columns_as_rows_and_results_keep_row_timestamps() -> None:
    h = harness(Keys("k"))
    h.process_columns(columns([7, 8, 9], k=["a", "b", "a"]))
    a, b = Row(k="a"), Row(k="b")
    assert h.records() == [(a, 7), (b, 8), (a, 9), (a, 9)]


def test_none_is_no_result_and_tagged_results_go_to_side_outputs() -> None:
    def function(value: Any) -> Any:
        return None if value[0] == "b" else [value[1], (SIDE, value)]

    operator = KeyedFlatMapOperator(function, BY_FIRST)
    h = OperatorHarness(operator, keyed=True, side_outputs=["side"])
    h.process(("a", 1), ("b", 2), at=[4, 5])
    assert h.records() == [(1, 4)]
    assert h.side("side") == [("a", 1)]


def test_state_is_kept_after_a_restore() -> None:
    h = harness()
    h.process(*PAIRS)
    restored = harness(restore=h.snapshot())
    restored.process(("a", 0), ("c", 0))
    assert restored.values() == [*[("a", 0)] * 4, ("c", 0)]


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = harness()
    h.process(*PAIRS)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    operator = KeyedFlatMapOperator(lambda value: [unlike_five(value)], BY_FIRST)
    assert_failure_is_told(operator, ("a", 4), ("b", 5), ("c", 6), record=("b", 5), keyed=True)
