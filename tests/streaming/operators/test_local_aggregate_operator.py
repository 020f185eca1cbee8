"""What tasks aggregate before the exchange by key, aggregated again, is what all records give."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.datastream.field_aggregates import FieldReduce
from flinkray.streaming.columnar.keyed_aggregate import BatchKeyedAggregateOperator
from flinkray.streaming.columnar.local_aggregate import LocalAggregateOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import IDLE, Columns, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness

KEYS = {
    "int": (st.integers(-5, 5), pa.int64()),
    "text or null": (st.sampled_from(["a", "b", None]), pa.string()),
    "dictionary": (st.sampled_from(["a", "b"]), pa.dictionary(pa.int32(), pa.string())),
}


def local(how: str = "sum", field: str = "v", **limits: int) -> OperatorHarness:
    return OperatorHarness(LocalAggregateOperator(how, field, Keys("k"), **limits))


def final(how: str = "sum") -> OperatorHarness:
    operator = BatchKeyedAggregateOperator(how, "v", FieldReduce(how, "v"), Keys("k"))
    return OperatorHarness(operator, keyed=True)


def batch(keys: Any, values: Any, **others: Any) -> Columns:
    return Columns(pa.record_batch({"k": keys, "v": values, **others}))


def test_batches_with_widening_numbers_are_aggregated_together() -> None:
    h = local("max")
    for values in ([1, 2], [2.5, 0.5], [3, 1]):
        h.process_columns(batch(["a", "b"], values))
    assert h.output() == []
    h.finish()
    assert [tuple(row) for row in h.values()] == [("a", 3.0), ("b", 2.0)]


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("kind", list(KEYS))
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_aggregate_of_two_local_aggregates_equals_that_of_all_records(
    how: str, kind: str, data: Any
) -> None:
    some_keys, key_type = KEYS[kind]
    rows = st.tuples(some_keys, st.integers(-(2**31), 2**31 - 1), st.text(max_size=2))
    halves = data.draw(st.tuples(*[st.lists(st.lists(rows, min_size=1), max_size=3)] * 2))
    both, whole = final(how), final(how)
    for batches in halves:
        half = local(how)
        for records in batches:
            keys, values, texts = zip(*records, strict=True)
            columns = batch(
                pa.array(keys, key_type), pa.array(values, pa.int32()), other=pa.array(texts)
            )
            half.process_columns(columns)
            whole.process_columns(columns)
        half.finish()
        for columns in columns_of(half):
            both.process_columns(columns)
    both.finish()
    whole.finish()
    assert both.records() == whole.records()


def columns_of(h: OperatorHarness) -> list[Columns]:
    batches = []
    for columns in h.batches():
        assert isinstance(columns, Columns)
        batches.append(columns)
    return batches


def test_local_aggregate_of_a_key_is_one_row_with_other_columns_of_its_first_row() -> None:
    h = local()
    h.process_columns(batch(["a", "b", "a"], [1, 2, 3], other=["x", "y", "z"]))
    h.process_columns(batch(["c", "a"], [4, 5], other=["u", "v"]))
    assert h.output() == []
    h.finish()
    (columns,) = h.batches()
    assert isinstance(columns, Columns)
    assert columns.batch.to_pylist() == [
        {"k": "a", "v": 9, "other": "x"},
        {"k": "b", "v": 2, "other": "y"},
        {"k": "c", "v": 4, "other": "u"},
    ]


def test_row_is_forwarded_after_the_local_aggregate_of_earlier_columns() -> None:
    h = local()
    h.watermark(5)
    h.status(True)
    h.process_columns(batch(["a", "a"], [1, 2]))
    row = Row.of(["k", "v"], ["a", 10])
    h.process(row)
    output = h.output()
    assert output[:2] == [Watermark(5), IDLE]
    assert [tuple(record.value) for record in output[2:]] == [("a", 3), ("a", 10)]


def test_columns_without_the_field_to_aggregate_are_forwarded_unchanged() -> None:
    h = local(field="missing")
    columns = batch(["a"], [1])
    h.process_columns(columns)
    assert h.batches() == [columns]


def test_batch_with_other_columns_is_aggregated_into_a_separate_row() -> None:
    h = local()
    h.process_columns(batch(["a"], [1]))
    h.process_columns(batch(["a"], [2], other=["x"]))
    h.finish()
    assert [tuple(row) for row in h.values()] == [("a", 1), ("a", 2, "x")]


def test_nulls_and_text_in_the_aggregated_field_are_refused_with_its_name() -> None:
    with pytest.raises(StreamError, match="sum of 'v': 1 nulls"):
        local().process_columns(batch(["a", "b"], [1, None]))
    with pytest.raises(StreamError, match="sum needs a column of numbers; 'v'"):
        local().process_columns(batch(["a"], ["b"]))


def test_batches_are_forwarded_unaggregated_if_keys_of_the_sample_hardly_repeat() -> None:
    h = local(sample=4)
    narrow = pa.array([1, 2], pa.int32())
    h.process_columns(batch(["a", "b"], narrow))
    assert h.batches() == []
    h.process_columns(batch(["c", "a"], narrow))
    h.process_columns(batch(["a", "a"], narrow))
    h.finish()
    sampled, passed_on = (columns.batch for columns in columns_of(h))
    assert sampled.to_pylist() == [{"k": "a", "v": 3}, {"k": "b", "v": 2}, {"k": "c", "v": 1}]
    assert passed_on.to_pylist() == [{"k": "a", "v": 1}, {"k": "a", "v": 2}]
    assert passed_on.schema == sampled.schema  # else the next operator would take rows


def test_forwarded_unsigned_numbers_overflow_like_summed_numbers() -> None:
    h = local(sample=1)
    for _ in range(2):
        h.process_columns(batch(["a", "b"], pa.array([2**64 - 1, 2**63], pa.uint64())))
    summed, passed_on = (columns.batch for columns in columns_of(h))
    assert passed_on.to_pylist() == summed.to_pylist() == [
        {"k": "a", "v": -1}, {"k": "b", "v": -(2**63)},
    ]  # fmt: skip


def test_local_aggregation_continues_if_keys_of_the_sample_repeat() -> None:
    h = local(sample=4)
    for _ in range(3):
        h.process_columns(batch(["a", "b", "a"], [1, 2, 3]))
    h.finish()
    (columns,) = columns_of(h)
    assert [tuple(row) for row in columns.to_block().values] == [("a", 12), ("b", 6)]


def test_local_aggregate_with_too_many_keys_is_emitted_early() -> None:
    h = local(most_keys=3)
    h.process_columns(batch(["a", "b", "c"], [1, 2, 3]))
    assert h.output() == []
    h.process_columns(batch(["d", "a"], [4, 5]))
    assert [tuple(row) for row in h.values()] == [("a", 6), ("b", 2), ("c", 3), ("d", 4)]
    h.process_columns(batch(["a"], [6]))
    h.finish()
    assert [tuple(row) for row in h.values()] == [("a", 6)]
