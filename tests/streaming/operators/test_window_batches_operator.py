"""Functions of all rows of a window in columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkray.streaming.columnar.window_operators import WindowBatchesOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)


def harness(function: Any = lambda rows: rows, **context: Any) -> OperatorHarness:
    operator = WindowBatchesOperator(function, 10, 0, Keys("k"))
    return OperatorHarness(operator, keyed=True, **context)


def test_late_rows_are_dropped_and_counted() -> None:
    operator = WindowBatchesOperator(lambda rows: rows, 10, 0, Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    h.watermark(9)
    h.process_columns(columns([9, 10], k=[1, 1], v=[1, 2]))
    h.watermark(19)
    assert [row.v for row in h.values()] == [2]
    assert operator._late.get_count() == 1


def test_window_function_gets_all_rows_of_a_window_at_once_in_order_of_windows() -> None:
    seen: list[list[int]] = []

    def first(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows["v"].to_pylist())
        return rows.slice(0, 1)

    h = OperatorHarness(WindowBatchesOperator(first, 10, 0, Keys("k")), keyed=True)
    h.process_columns(columns([12, 3], k=[1, 2], v=[1, 2], t=[12, 3]))
    h.process(Row(k=3, v=3, t=14), at=14)
    h.process_columns(columns([7], k=[1], v=[4], t=[7]))
    h.watermark(50)
    assert seen == [[2, 4], [1, 3]]
    assert [(row.v, row.window_end, time) for row, time in h.records()] == [
        (2, 10, 9),
        (1, 20, 19),
    ]


def test_window_results_are_columns_at_the_window_end_before_the_watermark() -> None:
    h = harness()
    h.process_columns(columns([3], k=[1]))
    h.watermark(9)
    row = Row.of(["k", "window_start", "window_end"], [1, 0, 10])
    assert h.output() == [Record(row, 9), Watermark(9)]
    (batch,) = h.batches()
    assert isinstance(batch, Columns)


def test_window_function_may_return_several_batches_or_none() -> None:
    h = harness(lambda rows: None if rows["v"][0].as_py() == 1 else [rows, rows.slice(0, 0), rows])
    h.process_columns(columns([3, 13], k=[1, 1], v=[1, 2]))
    h.watermark(30)
    assert [row.v for row in h.values()] == [2, 2]


def test_window_function_gets_columns_with_widening_types_in_one_batch() -> None:
    h = harness(lambda batch: batch)
    h.process_columns(columns([1], k=["a"], v=[1], w=pa.nulls(1)))
    h.process_columns(columns([2], k=["a"], v=[0.5], w=["x"]))
    h.watermark(100)
    assert len(h.batches()) == 1
    assert [(row.v, row.w) for row in h.values()] == [(1.0, None), (0.5, "x")]


def test_rows_of_open_windows_are_kept_after_a_restore() -> None:
    h = harness()
    h.process_columns(columns([3, 14, 5], k=["a", "b", None], v=[1, 2, 3]))
    restored = harness(restore=h.snapshot())
    restored.process_columns(columns([4], k=["a"], v=[4]))
    restored.watermark(9)
    assert sorted(row.v for row in restored.values()) == [1, 3, 4]
    restored.watermark(19)
    assert [row.v for row in restored.values()] == [2]


def test_rows_without_timestamps_are_refused() -> None:
    with pytest.raises(StreamError, match="no timestamps"):
        harness().process_columns(columns(k=[1]))


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = harness()
    h.process_columns(columns([50], k=[1]))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_and_subtask() -> None:
    def act(h: OperatorHarness) -> None:
        h.process_columns(columns([3], k=[5]))
        h.watermark(9)

    operator = WindowBatchesOperator(
        lambda rows: unlike_five(rows["k"][0].as_py()), 10, 0, Keys("k")
    )
    failure(operator, act, keyed=True)
