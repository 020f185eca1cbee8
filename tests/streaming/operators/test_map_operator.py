"""Map."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import MapFunction
from flinkray.streaming.operators.basic import MapOperator
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    Counting,
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)


class CountingMap(Counting, MapFunction[Any, Any]):
    def map(self, value: Any) -> Any:
        return (*value, self.next())


def test_map_keeps_timestamps() -> None:
    h = OperatorHarness(MapOperator(lambda value: value * 2))
    h.process(1, 2, at=[10, 20])
    h.process(3)
    assert h.records() == [(2, 10), (4, 20), (6, None)]


def test_keys_of_a_batch_are_not_those_of_the_results() -> None:
    h = OperatorHarness(MapOperator(abs))
    h.operator.process_block(Block([-1, -2], [10, 20], ["k", "k"]))
    (batch,) = h.batches()
    assert isinstance(batch, Block)
    assert (batch.values, batch.timestamps, batch.keys) == ([1, 2], [10, 20], None)


def test_columns_come_as_rows_with_their_timestamps() -> None:
    h = OperatorHarness(MapOperator(lambda row: (row.x, row["y"])))
    h.process_columns(columns([7, 8], x=[1, 2], y=["one", "two"]))
    h.process_columns(columns(x=[3], y=["three"]))
    assert h.records() == [((1, "one"), 7), ((2, "two"), 8), ((3, "three"), None)]


def test_row_emitted_unchanged_equals_that_of_the_columns() -> None:
    h = OperatorHarness(MapOperator(lambda row: row))
    h.process_columns(columns(x=[1]))
    assert h.values() == [Row(x=1)]


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


def test_time_passes_and_the_end_adds_nothing() -> None:
    h = OperatorHarness(MapOperator(abs))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_state_without_keys_says_what_is_missing() -> None:
    with pytest.raises(StreamError.__mro__[1], match="call key_by before it"):
        OperatorHarness(MapOperator(CountingMap()))


def test_failure_is_told_with_its_record() -> None:
    assert_failure_is_told(MapOperator(unlike_five), 4, 5, 6, record=5)


class Nameless:
    def __repr__(self) -> str:
        raise OSError("no text")


def test_failure_is_told_also_of_a_record_that_has_no_text() -> None:
    operator = MapOperator(lambda value: unlike_five(5))
    error = failure(operator, lambda h: h.process(Nameless()))
    assert error.record == "<Nameless, whose __repr__ raised OSError>"
