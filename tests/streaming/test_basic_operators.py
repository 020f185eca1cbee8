"""Map, flat map, filter, projection, and the same with keyed state."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.columnar.map_batches import MapBatchesOperator
from flinkray.streaming.elements import Columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions import FilterFunction, FlatMapFunction, MapFunction
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.basic import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProjectOperator,
)
from flinkray.streaming.operators.keyed import (
    BatchReduceOperator,
    KeyedFilterOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
    ReduceOperator,
)
from flinkray.streaming.output_tag import OutputTag
from flinkray.streaming.row import Row
from flinkray.testing.operator_harness import OperatorHarness

BY_FIRST = Keys(lambda value: value[0])
ODD: OutputTag[Any] = OutputTag("odd")


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


class EverySecond(Counting, FilterFunction[Any]):
    def filter(self, value: Any) -> bool:
        return self.next() % 2 == 0


class Repeated(Counting, FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        for _ in range(self.next()):
            yield value


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


def test_filter_keeps_values_with_their_timestamps() -> None:
    h = OperatorHarness(FilterOperator(lambda value: value % 2))
    h.process(1, 2, 3, at=[10, 20, 30])
    h.process(4, 5)
    assert h.records() == [(1, 10), (3, 30), (5, None)]


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


def test_projection_of_rows_tuples_and_columns() -> None:
    import pyarrow as pa

    h = OperatorHarness(ProjectOperator((2, 0)))
    h.process((1, 2, 3), Row(a=1, b=2, c=3))
    h.process_columns(Columns(pa.record_batch({"a": [1], "b": [2], "c": [3]})))
    assert h.values() == [(3, 1), Row.of(["c", "a"], [3, 1]), Row.of(["c", "a"], [3, 1])]


def test_keyed_functions_have_state_of_the_records_key() -> None:
    """PF-11"""
    data = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]
    h = OperatorHarness(KeyedMapOperator(CountingMap(), BY_FIRST), keyed=True)
    h.process(*data, at=[1, 2, 3, 4])
    assert h.records() == [
        (("a", 1, 1), 1), (("b", 2, 1), 2), (("a", 3, 2), 3), (("a", 4, 3), 4),
    ]  # fmt: skip
    h = OperatorHarness(KeyedFilterOperator(EverySecond(), BY_FIRST), keyed=True)
    h.process(*data, at=[1, 2, 3, 4])
    assert h.records() == [(("a", 3), 3)]
    h = OperatorHarness(KeyedFlatMapOperator(Repeated(), BY_FIRST), keyed=True)
    h.process(*data)
    assert h.values() == [("a", 1), ("b", 2), ("a", 3), ("a", 3), *[("a", 4)] * 3]


def test_state_without_keys_says_what_is_missing() -> None:
    with pytest.raises(StreamError.__mro__[1], match="call key_by before it"):
        OperatorHarness(MapOperator(CountingMap()))


def test_rolling_reduce_puts_out_every_update() -> None:
    """PF-08"""
    h = OperatorHarness(ReduceOperator(lambda a, b: (a[0], a[1] + b[1]), BY_FIRST), keyed=True)
    h.process(("a", 1), ("b", 5), ("a", 2))
    h.process(("a", 3))
    assert h.values() == [("a", 1), ("b", 5), ("a", 3), ("a", 6)]


def test_batch_reduce_puts_out_final_values_at_the_end() -> None:
    """PF-08"""
    h = OperatorHarness(BatchReduceOperator(lambda a, b: (a[0], a[1] + b[1]), BY_FIRST), keyed=True)
    h.process(("a", 1), ("b", 5), ("a", 2))
    assert h.values() == []
    h.finish()
    assert h.values() == [("a", 3), ("b", 5)]


def test_map_batches_turns_rows_into_columns_and_takes_any_kind_of_result() -> None:
    import pyarrow as pa

    def function(batch: Any) -> Any:
        table = pa.Table.from_batches([batch])
        return [table, None, [batch.slice(0, 1)]]

    h = OperatorHarness(MapBatchesOperator(function))
    h.process(Row(x=1), Row(x=2), at=[5, 6])
    assert h.records() == [(Row(x=1), 5), (Row(x=2), 6), (Row(x=1), None)]
    h = OperatorHarness(MapBatchesOperator(lambda batch: 5))
    with pytest.raises(StreamError, match="returns an Arrow RecordBatch"):
        h.process(1, 2)
    with pytest.raises(StreamError, match="declare an output type"):
        h.process(1, "two")
