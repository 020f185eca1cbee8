"""Map and flat map of two streams."""

from __future__ import annotations

from typing import Any

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.elements import Watermark, WatermarkStatus
from flinkray.streaming.functions import (
    CoFlatMapFunction,
    CoMapFunction,
)
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
)
from flinkray.streaming.output_tag import OutputTag
from flinkray.testing.operator_harness import OperatorHarness

BY_FIRST = Keys(lambda value: value[0])


SIDE: OutputTag[Any] = OutputTag("side")


class Both(CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any:
        return value + 1

    def map2(self, value: Any) -> Any:
        return value - 1 if value else None


class BothFlat(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield value
        yield SIDE, value

    def flat_map2(self, value: Any) -> Any:
        return [value, value] if value else None


def test_co_map_leaves_none_out() -> None:
    h = OperatorHarness(CoMapOperator(Both()))
    h.process(10, at=3)
    h.process(10, 0, 20, on=1)
    assert h.records() == [(11, 3), (9, None), (19, None)]


def test_co_flat_map_sends_to_sides_from_both_inputs() -> None:
    """PF-14"""
    h = OperatorHarness(CoFlatMapOperator(BothFlat()), side_outputs=["side"])
    h.process(1)
    h.process(2, 0, on=1)
    assert h.values() == [1, 2, 2]
    assert h.side("side") == [1]


def test_keyed_co_map_has_state_of_both_inputs() -> None:
    class Balance(CoMapFunction[Any, Any, Any]):
        def open(self, runtime_context: Any) -> None:
            self.sum = runtime_context.get_state(ValueStateDescriptor("sum", default_value=0))

        def map1(self, value: Any) -> Any:
            self.sum.update(self.sum.value() + value[1])
            return value[0], self.sum.value()

        def map2(self, value: Any) -> Any:
            self.sum.update(self.sum.value() - value[1])
            return value[0], self.sum.value()

    h = OperatorHarness(CoMapOperator(Balance(), (BY_FIRST, BY_FIRST)), keyed=True)
    h.process(("a", 5), ("b", 1))
    h.process(("a", 2), on=1)
    assert h.values() == [("a", 5), ("b", 1), ("a", 3)]


def test_time_of_two_inputs_is_the_lesser_and_idle_ones_do_not_count() -> None:
    h = OperatorHarness(CoMapOperator(Both()))
    h.watermark(10)
    assert h.output() == []
    h.watermark(4, on=1)
    assert h.output() == [Watermark(4)]
    h.status(True, on=1)
    assert h.output() == [Watermark(10)]
    h.status(True)
    assert h.output() == [WatermarkStatus(True)]
