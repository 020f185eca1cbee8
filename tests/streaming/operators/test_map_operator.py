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


def test_map_keeps_the_timestamps_of_records() -> None:
    h = OperatorHarness(MapOperator(lambda value: value * 2))
    h.process(1, 2, at=[10, 20])
    h.process(3)
    assert h.records() == [(2, 10), (4, 20), (6, None)]


def test_results_of_a_map_are_sent_without_the_keys_of_its_input() -> None:
    h = OperatorHarness(MapOperator(abs))
    h.operator.process_block(Block([-1, -2], [10, 20], ["k", "k"]))
    (batch,) = h.batches()
    assert isinstance(batch, Block)
    assert (batch.values, batch.timestamps, batch.keys) == ([1, 2], [10, 20], None)


def test_function_gets_columns_as_rows_with_their_timestamps() -> None:
    h = OperatorHarness(MapOperator(lambda row: (row.x, row["y"])))
    h.process_columns(columns([7, 8], x=[1, 2], y=["one", "two"]))
    h.process_columns(columns(x=[3], y=["three"]))
    assert h.records() == [((1, "one"), 7), ((2, "two"), 8), ((3, "three"), None)]


def test_map_that_returns_its_row_emits_columns_as_rows() -> None:
    h = OperatorHarness(MapOperator(lambda row: row))
    h.process_columns(columns(x=[1]))
    assert h.values() == [Row(x=1)]


def test_map_function_is_opened_before_the_first_record_and_closed_once() -> None:
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


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = OperatorHarness(MapOperator(abs))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_state_on_a_stream_without_keys_raises_an_error_that_names_key_by() -> None:
    with pytest.raises(StreamError.__mro__[1], match="call key_by before it"):
        OperatorHarness(MapOperator(CountingMap()))


def test_error_of_a_function_names_operator_subtask_and_record() -> None:
    assert_failure_is_told(MapOperator(unlike_five), 4, 5, 6, record=5)


class Nameless:
    def __repr__(self) -> str:
        raise OSError("no text")


def test_error_on_a_record_whose_repr_fails_names_its_type() -> None:
    operator = MapOperator(lambda value: unlike_five(5))
    error = failure(operator, lambda h: h.process(Nameless()))
    assert error.record == "<Nameless, whose __repr__ raised OSError>"
