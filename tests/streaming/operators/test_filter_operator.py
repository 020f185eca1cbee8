"""Filter, plain and with keyed state."""

from __future__ import annotations

from typing import Any

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.functions import FilterFunction
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.basic import (
    FilterOperator,
)
from flinkray.streaming.operators.keyed import (
    KeyedFilterOperator,
)
from flinkray.testing.operator_harness import OperatorHarness

BY_FIRST = Keys(lambda value: value[0])


DATA = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]


class Counting:
    """Counts per key, in keyed state."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default_value=0))

    def next(self) -> int:
        self.count.update(self.count.value() + 1)
        return int(self.count.value())


class EverySecond(Counting, FilterFunction[Any]):
    def filter(self, value: Any) -> bool:
        return self.next() % 2 == 0


def test_filter_keeps_values_with_their_timestamps() -> None:
    h = OperatorHarness(FilterOperator(lambda value: value % 2))
    h.process(1, 2, 3, at=[10, 20, 30])
    h.process(4, 5)
    assert h.records() == [(1, 10), (3, 30), (5, None)]


def test_keyed_filter_has_state_of_the_records_key() -> None:
    """PF-11"""
    h = OperatorHarness(KeyedFilterOperator(EverySecond(), BY_FIRST), keyed=True)
    h.process(*DATA, at=[1, 2, 3, 4])
    assert h.records() == [(("a", 3), 3)]
