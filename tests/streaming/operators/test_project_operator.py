"""Projection."""

from __future__ import annotations

from flinkray.streaming.elements import Columns
from flinkray.streaming.operators.basic import (
    ProjectOperator,
)
from flinkray.streaming.row import Row
from flinkray.testing.operator_harness import OperatorHarness


def test_projection_of_rows_tuples_and_columns() -> None:
    import pyarrow as pa

    h = OperatorHarness(ProjectOperator((2, 0)))
    h.process((1, 2, 3), Row(a=1, b=2, c=3))
    h.process_columns(Columns(pa.record_batch({"a": [1], "b": [2], "c": [3]})))
    assert h.values() == [(3, 1), Row.of(["c", "a"], [3, 1]), Row.of(["c", "a"], [3, 1])]
