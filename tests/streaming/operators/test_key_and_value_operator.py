"""Keyed records with their keys, as columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkray.streaming.columnar.arrow_batches import KeyAndValueOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row, RowKind
from flinkray.streaming.records.typeinfo import TypeInformation, Types
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import assert_time_passes_and_the_end_adds_nothing, columns


def harness(
    selector: Any, key_type: TypeInformation | None = None, value_type: Any = None
) -> OperatorHarness:
    return OperatorHarness(KeyAndValueOperator(Keys(selector, key_type), value_type))


def batch_of(h: OperatorHarness) -> pa.RecordBatch:
    (columns,) = h.batches()
    assert isinstance(columns, Columns)
    return columns.batch


def test_columns_become_a_struct_column_beside_a_key_column_with_the_same_types() -> None:
    h = harness("a")
    given = pa.record_batch(
        {"a": pa.array([1, 2], pa.int16()), "b": pa.array([3, None], pa.int8())}
    )
    h.process_columns(Columns(given))
    batch = batch_of(h)
    assert batch.schema.types == [pa.int16(), pa.struct([("a", pa.int16()), ("b", pa.int8())])]
    assert batch.to_pylist() == [
        {"f0": 1, "f1": {"a": 1, "b": 3}}, {"f0": 2, "f1": {"a": 2, "b": None}},
    ]  # fmt: skip


def test_key_function_computes_the_key_column_and_timestamps_are_kept() -> None:
    h = harness(lambda row: row.x * 10, Types.LONG())
    h.process_columns(columns([5, 6], x=[1, 2]))
    assert [(tuple(row), at) for row, at in h.records()] == [
        ((10, {"x": 1}), 5), ((20, {"x": 2}), 6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("records", "values"),
    [
        ([3, 4], [3, 4]),
        ([Row(a=1, b="x"), Row(a=2, b="y")], [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
        ([(1, "x"), (2, "y")], [{"f0": 1, "f1": "x"}, {"f0": 2, "f1": "y"}]),
        ([{"a": 1}, {"b": 2}], [{"a": 1, "b": None}, {"a": None, "b": 2}]),
    ],
)
def test_values_become_a_column_beside_the_column_of_their_keys(
    records: list[Any], values: list[Any]
) -> None:
    h = harness(lambda record: str(record)[:1])
    h.process(*records)
    batch = batch_of(h)
    assert batch["f0"].to_pylist() == [str(record)[:1] for record in records]
    assert batch["f1"].to_pylist() == values


def test_keys_and_values_have_their_declared_types() -> None:
    kind = Types.ROW_NAMED(["a"], [Types.SHORT()])
    h = harness(lambda row: row.a, Types.INT(), kind)
    h.process(Row(a=1))
    assert batch_of(h).schema.types == [pa.int32(), pa.struct([("a", pa.int16())])]


def test_rows_of_kind_delete_are_refused() -> None:
    row = Row(a=1)
    row.set_row_kind(RowKind.DELETE)
    with pytest.raises(StreamError, match="is of the kind DELETE"):
        harness(lambda row: row.a).process(row)


def test_watermarks_and_idleness_pass_through() -> None:
    h = harness("a")
    h.process_columns(Columns(pa.record_batch({"a": pa.array([], pa.int64())})))
    assert h.batches() == []
    assert_time_passes_and_the_end_adds_nothing(h)
