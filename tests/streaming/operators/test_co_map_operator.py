"""Map of two streams, plain and with keyed state."""

from __future__ import annotations

from typing import Any

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.functions.functions import CoMapFunction
from flinkray.streaming.operators.two_inputs import CoMapOperator
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_failure_is_told,
    assert_input_that_comes_back_holds_time_back,
    assert_time_is_the_lesser_of_two,
    columns,
    unlike_five,
)


class Both(CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any:
        return value + 1

    def map2(self, value: Any) -> Any:
        return value - 1 if value else None


class Balance(CoMapFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", default_value=0))

    def map1(self, value: Any) -> Any:
        self.sum.update(self.sum.value() + value[1])
        return value[0], self.sum.value()

    def map2(self, value: Any) -> Any:
        self.sum.update(self.sum.value() - value[1])
        return value[0], self.sum.value()


class Fails(CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return unlike_five(value)


def test_co_map_emits_no_record_for_a_result_of_none() -> None:
    h = OperatorHarness(CoMapOperator(Both()))
    h.process(10, at=3)
    h.process(10, 0, 20, on=1)
    assert h.records() == [(11, 3), (9, None), (19, None)]


def test_results_keep_their_timestamps_if_other_results_are_none() -> None:
    h = OperatorHarness(CoMapOperator(Both()))
    h.process(10, 0, 20, at=[4, 5, 6], on=1)
    assert h.records() == [(9, 4), (19, 6)]


def test_both_inputs_of_a_keyed_co_map_share_its_state() -> None:
    h = OperatorHarness(CoMapOperator(Balance(), (BY_FIRST, BY_FIRST)), keyed=True)
    h.process(("a", 5), ("b", 1))
    h.process(("a", 2), on=1)
    assert h.values() == [("a", 5), ("b", 1), ("a", 3)]


def test_columns_of_each_input_become_rows_with_the_keys_of_that_input() -> None:
    h = OperatorHarness(CoMapOperator(Balance(), (Keys("k"), Keys("key"))), keyed=True)
    h.process_columns(columns([7, 8], k=["a", "b"], v=[5, 1]))
    h.process_columns(columns([9], key=["a"], v=[2]), on=1)
    assert h.records() == [(("a", 5), 7), (("b", 1), 8), (("a", 3), 9)]


def test_state_is_kept_after_a_restore() -> None:
    h = OperatorHarness(CoMapOperator(Balance(), (BY_FIRST, BY_FIRST)), keyed=True)
    h.process(("a", 5))
    operator = CoMapOperator(Balance(), (BY_FIRST, BY_FIRST))
    restored = OperatorHarness(operator, keyed=True, restore=h.snapshot())
    restored.process(("a", 2), ("b", 3), on=1)
    assert restored.values() == [("a", 3), ("b", -3)]


def test_watermark_is_the_lesser_of_the_inputs_that_are_not_idle() -> None:
    h = OperatorHarness(CoMapOperator(Both()))
    assert_time_is_the_lesser_of_two(h)
    h.finish()
    assert h.output() == []


def test_input_that_is_active_after_idleness_delays_the_watermark() -> None:
    assert_input_that_comes_back_holds_time_back(OperatorHarness(CoMapOperator(Both())))


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    assert_failure_is_told(CoMapOperator(Fails()), 4, 5, 6, on=1, record=5)
    keyed = CoMapOperator(Fails(), (BY_FIRST, BY_FIRST))
    assert_failure_is_told(keyed, ("a", 5), ("a", 6), on=1, record=("a", 5), keyed=True)
