"""Flat map, plain and with keyed state."""

from __future__ import annotations

from typing import Any

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.functions import FlatMapFunction
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.basic import (
    FlatMapOperator,
)
from flinkray.streaming.operators.keyed import (
    KeyedFlatMapOperator,
)
from flinkray.streaming.output_tag import OutputTag
from flinkray.testing.operator_harness import OperatorHarness

BY_FIRST = Keys(lambda value: value[0])


DATA = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]


ODD: OutputTag[Any] = OutputTag("odd")


class Counting:
    """Counts per key, in keyed state."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default_value=0))

    def next(self) -> int:
        self.count.update(self.count.value() + 1)
        return int(self.count.value())


class Repeated(Counting, FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        for _ in range(self.next()):
            yield value


def test_flat_map_takes_generators_lists_and_none_and_sends_to_sides() -> None:
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


def test_keyed_flat_map_has_state_of_the_records_key() -> None:
    """PF-11"""
    h = OperatorHarness(KeyedFlatMapOperator(Repeated(), BY_FIRST), keyed=True)
    h.process(*DATA)
    assert h.values() == [("a", 1), ("b", 2), ("a", 3), ("a", 3), *[("a", 4)] * 3]
