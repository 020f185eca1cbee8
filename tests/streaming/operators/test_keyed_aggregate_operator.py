"""Rolling and final aggregates of columns give what the record-at-a-time operators give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.datastream.field_aggregates import FieldReduce
from flinkray.streaming.columnar.grouping import running_sums, stable_order, sums_by_group
from flinkray.streaming.columnar.keyed_aggregate import (
    BatchKeyedAggregateOperator,
    KeyedAggregateOperator,
)
from flinkray.streaming.columnar.slots import DENSE_RANGE, SlotTable
from flinkray.streaming.columnar.window_aggregate import ColumnAggregate, WindowAggregateOperator
from flinkray.streaming.elements import Columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.keyed import ReduceOperator
from flinkray.streaming.row import Row
from flinkray.testing.operator_harness import OperatorHarness

keys_of = {
    "int": st.integers(-5, 5),
    "wide": st.integers(-(2**62), 2**62),
    "text": st.sampled_from(["a", "b", "ü"]),
    "null": st.one_of(st.none(), st.sampled_from("ab")),
}


ARROW = {"int": pa.int64(), "wide": pa.int64(), "text": pa.string(), "null": pa.string()}


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("kind", list(keys_of))
@settings(deadline=None)
@given(data=st.data())
def test_rolling_aggregate_is_that_of_the_rows(how: str, kind: str, data: Any) -> None:
    rows = st.tuples(keys_of[kind], st.integers(-(2**40), 2**40), st.text(max_size=2))
    batches = data.draw(st.lists(st.lists(rows, min_size=1, max_size=30), max_size=4))
    names = ["k", "v", "other"]
    keys = Keys("k")
    h = OperatorHarness(KeyedAggregateOperator(how, "v", FieldReduce(how, "v"), keys), keyed=True)
    rowwise = OperatorHarness(ReduceOperator(FieldReduce(how, "v"), keys), keyed=True)
    for batch in batches:
        columns = list(zip(*batch, strict=True))
        arrays = [pa.array(columns[0], ARROW[kind]), pa.array(columns[1]), pa.array(columns[2])]
        h.process_columns(Columns(pa.RecordBatch.from_arrays(arrays, names=names)))
        rowwise.process(*[Row.of(names, list(row)) for row in batch])
    assert all(isinstance(batch, Columns) for batch in h.batches())
    assert h.values() == rowwise.values()


@pytest.mark.parametrize("how", ["sum", "min", "max"])
def test_batch_mode_puts_out_the_last_row_of_each_key(how: str) -> None:
    """PF-08"""
    operator = BatchKeyedAggregateOperator(how, "v", FieldReduce(how, "v"), Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    for keys, values in ((["a", "b", "a"], [5, 2, 3]), (["a"], [7])):
        batch = pa.record_batch({"k": keys, "v": values, "other": [str(v) for v in values]})
        h.process_columns(Columns(batch))
    assert h.values() == []
    h.finish()
    expected = {"sum": 15, "min": 3, "max": 7}[how]
    assert [tuple(row) for row in h.values()] == [("a", expected, "5"), ("b", 2, "2")]


def test_rolling_sum_goes_on_after_a_restore_and_when_rows_follow_columns() -> None:
    def operator() -> KeyedAggregateOperator:
        return KeyedAggregateOperator("sum", "v", FieldReduce("sum", "v"), Keys("k"))

    h = OperatorHarness(operator(), keyed=True)
    columns = Columns(pa.record_batch({"k": ["a", "b", "a"], "v": [1, 2, 3]}))
    h.process_columns(columns)
    h.output()
    restored = OperatorHarness(operator(), keyed=True, restore=h.snapshot())
    for each in (h, restored):
        each.process_columns(columns)
        each.process(Row.of(["k", "v"], ["a", 10]))
        assert [tuple(row) for row in each.values()] == [
            ("a", 5), ("b", 4), ("a", 8), ("a", 18),
        ]  # fmt: skip


def test_sums_of_integers_are_exact_beyond_doubles() -> None:
    values = np.array([2**53, 1, 1, -(2**62), 2**62 - 1, 3], np.int64)
    slots = np.array([0, 0, 0, 1, 1, 1], np.int32)
    assert sums_by_group(slots, values, 2).tolist() == [2**53 + 2, 2]


def test_large_group_does_not_spoil_the_precision_of_a_small_one() -> None:
    slots = np.array([0, 1, 0, 1], np.int32)
    values = np.array([1e18, 0.1, 1e18, 0.2])
    running = running_sums(slots, values, np.zeros(2))
    assert running.tolist() == [1e18, 0.1, 2e18, 0.1 + 0.2]


def test_long_groups_accumulate_like_short_ones() -> None:
    rng = np.random.default_rng(7)
    slots = np.concatenate([np.zeros(2000, np.int32), rng.integers(0, 50, 3000, np.int32)])
    values = rng.random(5000)
    expected = np.empty(5000)
    totals = dict.fromkeys(range(50), 0.0)
    for place, (slot, value) in enumerate(zip(slots.tolist(), values.tolist(), strict=True)):
        totals[slot] += value
        expected[place] = totals[slot]
    assert np.array_equal(running_sums(slots, values, np.zeros(50)), expected)


def test_order_is_stable_beyond_sixteen_bits() -> None:
    slots = np.array([70000, 1, 70000, 65537, 1], np.int32)
    assert stable_order(slots).tolist() == [1, 4, 3, 0, 2]


def test_slots_are_given_in_order_on_every_way() -> None:
    table = SlotTable()
    assert table.slots_of(pa.array([5, 3, 5, 9])).tolist() == [0, 1, 0, 2]
    assert table.slots_of(pa.array([3, 5 + DENSE_RANGE, -4])).tolist() == [1, 3, 4]
    assert table.slots_of(pa.array([5, None, 9])).tolist() == [0, 5, 2]
    assert table.slots_of(pa.array([-4, 10, 5])).tolist() == [4, 6, 0]
    assert table.keys == [5, 3, 9, 5 + DENSE_RANGE, -4, None, 10]


def test_what_cannot_be_aggregated_is_named() -> None:
    aggregates = [ColumnAggregate("total", "sum", "v")]
    h = OperatorHarness(WindowAggregateOperator(10, 10, 0, aggregates, Keys("k")), keyed=True)
    times = np.array([0])
    with pytest.raises(StreamError, match="no column 'k'"):
        h.process_columns(Columns(pa.record_batch({"v": [1]}), times))
    with pytest.raises(StreamError, match="no column 'v'"):
        h.process_columns(Columns(pa.record_batch({"k": [1]}), times))
    with pytest.raises(StreamError, match="holds string"):
        h.process_columns(Columns(pa.record_batch({"k": [1], "v": ["x"]}), times))
    with pytest.raises(StreamError, match="1 nulls"):
        h.process_columns(
            Columns(pa.record_batch({"k": [1], "v": pa.array([None], pa.int64())}), times)
        )
    with pytest.raises(StreamError, match="no timestamps"):
        h.process_columns(Columns(pa.record_batch({"k": [1], "v": [1]})))
    with pytest.raises(StreamError, match="unknown aggregate 'median'"):
        ColumnAggregate("m", "median", "v")
    with pytest.raises(StreamError, match="sum needs a column"):
        ColumnAggregate("m", "sum")
