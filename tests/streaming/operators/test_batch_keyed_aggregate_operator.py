"""Final aggregates of columns in batch mode."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flinkray.datastream.field_aggregates import FieldReduce
from flinkray.streaming.columnar.keyed_aggregate import BatchKeyedAggregateOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)


@pytest.mark.parametrize("how", ["sum", "min", "max"])
def test_batch_mode_emits_one_final_row_for_each_key(how: str) -> None:
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


def sums(keys: Keys) -> BatchKeyedAggregateOperator:
    return BatchKeyedAggregateOperator("sum", "v", FieldReduce("sum", "v"), keys)


def test_rows_and_columns_are_summed_together_and_emitted_once_at_the_end() -> None:
    h = OperatorHarness(sums(Keys("k")), keyed=True)
    h.process_columns(columns([3, 4], k=["a", "b"], v=[1, 2]))
    h.process(Row(k="a", v=4), at=9)
    h.process_columns(columns([5], k=["b"], v=[8]))
    h.finish()
    h.finish()
    assert h.records() == [
        (Row(k="a", v=5), MAX_TIMESTAMP), (Row(k="b", v=10), MAX_TIMESTAMP),
    ]  # fmt: skip


def test_watermarks_pass_through_and_an_empty_input_has_no_result() -> None:
    h = OperatorHarness(sums(Keys("k")), keyed=True)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_in_a_key_selector_names_the_row() -> None:
    operator = sums(Keys(lambda row: unlike_five(row.v)))
    error = failure(operator, lambda h: h.process_columns(columns(v=[4, 5])), keyed=True)
    assert error.record == "Row(v=5)"
