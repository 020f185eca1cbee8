"""Flat map of two streams, plain and with keyed state."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.functions.functions import CoFlatMapFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.two_inputs import CoFlatMapOperator
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    BY_FIRST,
    Counting,
    assert_failure_is_told,
    assert_input_that_comes_back_holds_time_back,
    assert_time_is_the_lesser_of_two,
    columns,
    unlike_five,
)

SIDE: OutputTag[Any] = OutputTag("side")


class BothFlat(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield value
        yield SIDE, value

    def flat_map2(self, value: Any) -> Any:
        return [value, value] if value else None


class Numbered(Counting, CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield 1, value[0], self.next()

    def flat_map2(self, value: Any) -> Any:
        yield 2, value[0], self.next()


class Fails(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield unlike_five(value)

    def flat_map2(self, value: Any) -> Any:
        yield unlike_five(value)


def keyed(*keys: Keys, **context: Any) -> OperatorHarness:
    first, second = keys or (BY_FIRST, BY_FIRST)
    return OperatorHarness(CoFlatMapOperator(Numbered(), (first, second)), keyed=True, **context)


def test_co_flat_map_emits_results_and_side_output_of_both_inputs() -> None:
    """PF-14"""
    h = OperatorHarness(CoFlatMapOperator(BothFlat()), side_outputs=["side"])
    h.process(1)
    h.process(2, 0, on=1)
    assert h.values() == [1, 2, 2]
    assert h.side("side") == [1]


def test_each_result_has_the_timestamp_of_its_record() -> None:
    h = OperatorHarness(CoFlatMapOperator(BothFlat()))
    h.process(1, 3, at=[4, 5])
    h.process(2, 0, 7, at=[6, 7, 8], on=1)
    assert h.records() == [(1, 4), (3, 5), (2, 6), (2, 6), (7, 8), (7, 8)]


def test_both_inputs_share_the_state_of_a_key_also_after_a_restore() -> None:
    h = keyed()
    h.process(("a", 0), ("b", 0))
    h.process(("a", 0), on=1)
    assert h.values() == [(1, "a", 1), (1, "b", 1), (2, "a", 2)]
    restored = keyed(restore=h.snapshot())
    restored.process(("a", 0), ("c", 0), on=1)
    assert restored.values() == [(2, "a", 3), (2, "c", 1)]


def test_columns_of_each_input_become_rows_with_the_keys_of_that_input() -> None:
    h = keyed(Keys("k"), Keys("key"))
    h.process_columns(columns([7, 8], k=["a", "b"]))
    h.process_columns(columns([9], key=["a"]), on=1)
    assert h.records() == [((1, "a", 1), 7), ((1, "b", 1), 8), ((2, "a", 2), 9)]


def test_watermark_is_the_lesser_of_both_inputs_and_the_end_adds_no_result() -> None:
    h = OperatorHarness(CoFlatMapOperator(BothFlat()))
    assert_time_is_the_lesser_of_two(h)
    h.finish()
    assert h.output() == []


def test_input_that_is_active_after_idleness_delays_the_watermark() -> None:
    assert_input_that_comes_back_holds_time_back(OperatorHarness(CoFlatMapOperator(BothFlat())))


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    for on in (0, 1):
        assert_failure_is_told(CoFlatMapOperator(Fails()), 4, 5, 6, on=on, record=5)
        with_keys = CoFlatMapOperator(Fails(), (BY_FIRST, BY_FIRST))
        assert_failure_is_told(with_keys, ("a", 5), ("a", 6), on=on, record=("a", 5), keyed=True)
