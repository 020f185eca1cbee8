"""Map, plain and with keyed state."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions import MapFunction
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.basic import (
    MapOperator,
)
from flinkray.streaming.operators.keyed import (
    KeyedMapOperator,
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


class CountingMap(Counting, MapFunction[Any, Any]):
    def map(self, value: Any) -> Any:
        return (*value, self.next())


def test_map_keeps_timestamps() -> None:
    h = OperatorHarness(MapOperator(lambda value: value * 2))
    h.process(1, 2, at=[10, 20])
    h.process(3)
    assert h.records() == [(2, 10), (4, 20), (6, None)]


def test_function_is_opened_before_the_first_record_and_closed_once() -> None:
    calls: list[str] = []

    class Noted(MapFunction[Any, Any]):
        def open(self, runtime_context: Any) -> None:
            calls.append(f"open {runtime_context.get_task_name()}")

        def close(self) -> None:
            calls.append("close")

        def map(self, value: Any) -> Any:
            calls.append("map")

    h = OperatorHarness(MapOperator(Noted()))
    h.process(1)
    h.operator.close()
    h.operator.close()
    assert calls == ["open operator", "map", "close"]


def test_keyed_map_has_state_of_the_records_key() -> None:
    """PF-11"""
    h = OperatorHarness(KeyedMapOperator(CountingMap(), BY_FIRST), keyed=True)
    h.process(*DATA, at=[1, 2, 3, 4])
    assert h.records() == [
        (("a", 1, 1), 1), (("b", 2, 1), 2), (("a", 3, 2), 3), (("a", 4, 3), 4),
    ]  # fmt: skip


def test_state_without_keys_says_what_is_missing() -> None:
    with pytest.raises(StreamError.__mro__[1], match="call key_by before it"):
        OperatorHarness(MapOperator(CountingMap()))
