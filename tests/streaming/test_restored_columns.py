"""Operators that keep columns, as random stories: batches, watermarks, whole snapshots and changes,
failures, other parallelism.  Results are those of a naive evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from flinkray.datastream.field_aggregates import FieldReduce
from flinkray.state.snapshots import KeyedSnapshot
from flinkray.streaming.columnar.keyed_aggregate import KeyedAggregateOperator
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.columnar.window_operators import WindowBatchesOperator
from flinkray.streaming.operators.operator import OperatorStateCapture
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.keying import Keys
from tests.streaming.subtasks_of_one import Subtasks

KEYS = {
    pa.int64(): st.integers(-3, 6),
    pa.string(): st.sampled_from(["a", "b", "c", "d", "e", "ü"]),
    pa.decimal128(5, 1): st.integers(0, 4),
}
VALUES = {
    pa.int16(): st.integers(-99, 99),
    pa.int64(): st.integers(-(2**40), 2**40),
    pa.float64(): st.integers(-99, 99).map(lambda n: n / 4),
}
OTHERS = {pa.null(): st.none(), pa.string(): st.sampled_from(["x", "y", None])}


def batches(key: pa.DataType, times: bool) -> st.SearchStrategy[Any]:
    """(columns, whether they come as rows)"""

    @st.composite
    def draw(draw: Any) -> Any:
        size = draw(st.integers(1, 6))
        kinds = {"k": (KEYS[key], key)}
        columns: Any = (("v", VALUES), ("other", OTHERS))
        for name, some in columns:
            kind = draw(st.sampled_from(list(some)))
            kinds[name] = some[kind], kind
        fields = {
            name: pa.array(draw(st.lists(some, min_size=size, max_size=size)), kind)
            for name, (some, kind) in kinds.items()
        }
        at = None
        if times:
            of_rows = draw(st.lists(st.integers(-20, 60), min_size=size, max_size=size))
            at = np.array(of_rows, np.int64)
        return "batch", Columns(pa.record_batch(fields), at)

    return draw()


def rolling() -> Any:
    return KeyedAggregateOperator("sum", "v", FieldReduce("sum", "v"), Keys("k"))


def windows() -> Any:
    aggregates = [ColumnAggregate("total", "sum", "v")]
    return WindowAggregateOperator(PaneTimes(100, 100, 0), aggregates, Keys("k"))


def rows() -> Any:
    return WindowBatchesOperator(lambda batch: batch, 100, 0, Keys("k"))


@pytest.mark.parametrize("make", [rolling, windows, rows])
def test_increment_of_column_state_is_small_if_little_has_changed(make: Any) -> None:
    subtasks = Subtasks(make, ("k",), 2)
    many = 20_000
    subtasks.process(columns(many, 5))
    subtasks.process(columns(many, 105))
    whole = size_of(subtasks.capture(1, None))
    subtasks.process(columns(10, 110))
    subtasks.watermark(99)
    changes = size_of(subtasks.capture(2, 1))
    assert whole > 16 * many
    assert changes < 16 * 1500
    last = subtasks.capture(3, 2)
    assert size_of(last) == 0
    states = [capture.write() for capture in subtasks.capture(4, None)]
    subtasks.restart(2, states, 4)
    subtasks.process(columns(10, 110))
    assert 0 < size_of(subtasks.capture(5, 4)) < 16 * 1500


def columns(number: int, at: int) -> Columns:
    batch = pa.record_batch({"k": range(number), "v": [1] * number})
    return Columns(batch, np.full(number, at))


def size_of(captures: list[OperatorStateCapture]) -> int:
    """Bytes of columns and of all else that is by key."""
    size = 0
    for capture in captures:
        keyed = capture.write().keyed
        assert isinstance(keyed, KeyedSnapshot)
        tables: list[Any] = [*keyed.columns.values(), *keyed.tables.values()]
        size += sum(len(payload) for table in tables for payload in table.groups.values())
    return size
