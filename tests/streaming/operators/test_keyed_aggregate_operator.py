"""Aggregates of columns by key give what the record-at-a-time reduce gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.datastream.field_aggregates import FieldReduce
from flinkray.state.key_group_assignment import key_group_of
from flinkray.streaming.columnar.keyed_aggregate import (
    BatchKeyedAggregateOperator,
    KeyedAggregateOperator,
)
from flinkray.streaming.columnar.local_aggregate import LocalAggregateOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.keyed import ReduceOperator
from flinkray.streaming.records.elements import IDLE, MAX_TIMESTAMP, Columns, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    columns_of,
    failure,
    unlike_five,
)

NAN = math.nan

keys_of = {
    "int": st.integers(-5, 5),
    "wide": st.integers(-(2**62), 2**62),
    "text": st.sampled_from(["a", "b", "ü"]),
    "null": st.one_of(st.none(), st.sampled_from("ab")),
    "dictionary": st.sampled_from(["a", "b", "ü"]),
}
ENTRIES = pa.array(["never", "a", "too", "b", "ü", "nor this"])
"""Of a dictionary; some are of no row."""


ARROW = {"int": pa.int64(), "wide": pa.int64(), "text": pa.string(), "null": pa.string()}


def array_of(values: Sequence[Any], kind: str) -> pa.Array:
    if kind != "dictionary":
        return pa.array(values, ARROW[kind])
    entries = ENTRIES.to_pylist()
    places = pa.array([entries.index(value) for value in values], pa.int8())
    return pa.DictionaryArray.from_arrays(places, ENTRIES)


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("kind", list(keys_of))
@settings(deadline=None)
@given(data=st.data())
def test_rolling_aggregate_of_columns_equals_that_of_rows(how: str, kind: str, data: Any) -> None:
    rows = st.tuples(keys_of[kind], st.integers(-(2**40), 2**40), st.text(max_size=2))
    batches = data.draw(st.lists(st.lists(rows, min_size=1, max_size=30), max_size=4))
    names = ["k", "v", "other"]
    keys = Keys("k")
    h = OperatorHarness(KeyedAggregateOperator(how, "v", FieldReduce(how, "v"), keys), keyed=True)
    rowwise = OperatorHarness(ReduceOperator(FieldReduce(how, "v"), keys), keyed=True)
    for batch in batches:
        k, v, other = zip(*batch, strict=True)
        arrays = [array_of(k, kind), pa.array(v), pa.array(other)]
        h.process_columns(Columns(pa.RecordBatch.from_arrays(arrays, names=names)))
        rowwise.process(*[Row.of(names, list(row)) for row in batch])
    assert all(isinstance(batch, Columns) for batch in h.batches())
    assert h.values() == rowwise.values()


def test_rolling_sum_continues_after_a_restore_and_from_columns_to_rows() -> None:
    def operator() -> KeyedAggregateOperator:
        return KeyedAggregateOperator("sum", "v", FieldReduce("sum", "v"), Keys("k"))

    h = OperatorHarness(operator(), keyed=True)
    given = columns(k=["a", "b", "a"], v=[1, 2, 3])
    h.process_columns(given)
    h.output()
    restored = OperatorHarness(operator(), keyed=True, restore=h.snapshot())
    for each in (h, restored):
        each.process_columns(given)
        each.process(Row.of(["k", "v"], ["a", 10]))
        assert [tuple(row) for row in each.values()] == [
            ("a", 5), ("b", 4), ("a", 8), ("a", 18),
        ]  # fmt: skip


def rolling_sum() -> KeyedAggregateOperator:
    return KeyedAggregateOperator("sum", "v", FieldReduce("sum", "v"), Keys("k"))


@pytest.mark.parametrize("how", ["sum", "min", "max"])
def test_stored_integers_are_widened_to_floats_and_stay_columns(how: str) -> None:
    def operator() -> KeyedAggregateOperator:
        return KeyedAggregateOperator(how, "v", FieldReduce(how, "v"), Keys("k"))

    h = OperatorHarness(operator(), keyed=True)
    h.process_columns(columns(k=["a", "b"], v=pa.array([3, 4], pa.int16()), other=["x", None]))
    h = OperatorHarness(operator(), keyed=True, restore=h.snapshot())
    h.process_columns(columns(k=["b", "c"], v=[0.5, 1.5], other=pa.nulls(2)))
    h = OperatorHarness(operator(), keyed=True, restore=h.snapshot())
    h.process_columns(columns(k=["a", "b", "c"], v=[2**40] * 3, other=["y"] * 3))
    (batch,) = h.batches()
    assert isinstance(batch, Columns)
    assert [row.v for row in h.values()] == {
        "sum": [3 + 2**40, 4.5 + 2**40, 1.5 + 2**40],
        "min": [3, 0.5, 1.5],
        "max": [2**40] * 3,
    }[how]


@pytest.mark.parametrize("is_columnar", [True, False])
def test_states_of_subtasks_with_incompatible_columns_are_merged_as_rows(is_columnar: bool) -> None:
    subtasks = [
        OperatorHarness(rolling_sum(), keyed=True, parallelism=2, subtask_index=number)
        for number in range(2)
    ]
    assert [key_group_of(key, 128) // 64 for key in "ba"] == [0, 1]
    subtasks[0].process_columns(columns(k=["b"], v=[2], other=["text"]))
    if is_columnar:
        subtasks[1].process_columns(columns(k=["a"], v=[1], other=[0.5]))
    else:
        subtasks[1].process(Row.of(["k", "v", "other"], ["a", 1, 0.5]))
    states = [subtask.snapshot() for subtask in subtasks]
    h = OperatorHarness(rolling_sum(), keyed=True, restore=states)
    for _ in range(2):
        h.process_columns(columns(k=["a", "b"], v=[10, 20], other=["c", "d"]))
        assert not any(isinstance(batch, Columns) for batch in h.batches())
        h = OperatorHarness(rolling_sum(), keyed=True, restore=[h.snapshot()])
    h.process_columns(columns(k=["a", "b"], v=[0, 0], other=["c", "d"]))
    assert [tuple(row) for row in h.values()] == [("a", 21, 0.5), ("b", 42, "text")]


def test_restored_key_of_a_rolling_aggregate_has_its_type() -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    h.process_columns(columns(k=[True, False], v=[1, 2]))
    h = OperatorHarness(rolling_sum(), keyed=True, restore=h.snapshot())
    h.process(Row(k=1, v=3))  # so everything is rows now
    assert str(h.values()) == "[Row(k=True, v=4)]"


def test_aggregates_of_columns_and_rows_keep_the_timestamps() -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    h.process_columns(columns([9, 4], k=["a", "a"], v=[1, 2]))
    h.process(Row(k="a", v=3), at=6)
    assert h.records() == [(Row(k="a", v=1), 9), (Row(k="a", v=3), 4), (Row(k="a", v=6), 6)]


def test_batches_with_other_columns_are_aggregated_as_rows() -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    h.process_columns(columns(k=["a"], v=[1]))
    h.process_columns(columns(k=["a", "b"], v=[2, 3], w=[0, 0]))
    h.process_columns(columns(k=["b"], v=[4]))
    assert [(row.k, row.v) for row in h.values()] == [("a", 1), ("a", 3), ("b", 3), ("b", 7)]


WIDTHS = {
    "nulls": (st.none(), pa.null()),
    "short": (st.integers(-99, 99), pa.int16()),
    "long": (st.integers(-(2**40), 2**40), pa.int64()),
    "float": (st.integers(-99, 99).map(lambda n: n / 4), pa.float64()),
}


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@settings(deadline=None)
@given(data=st.data())
def test_batches_with_widening_types_are_aggregated_as_columns(how: str, data: Any) -> None:
    keys = Keys("k")
    h = OperatorHarness(KeyedAggregateOperator(how, "v", FieldReduce(how, "v"), keys), keyed=True)
    rowwise = OperatorHarness(ReduceOperator(FieldReduce(how, "v"), keys), keyed=True)
    for _ in range(data.draw(st.integers(1, 5))):
        size = data.draw(st.integers(1, 8))
        fields: dict[str, Any] = {
            "k": (st.integers(-3, 3), data.draw(st.sampled_from([pa.int16(), pa.int64()])))
        }
        fields["v"] = WIDTHS[data.draw(st.sampled_from(["short", "long", "float"]))]
        fields["other"] = WIDTHS[data.draw(st.sampled_from(list(WIDTHS)))]
        given = columns(
            **{
                name: pa.array(data.draw(st.lists(some, min_size=size, max_size=size)), kind)
                for name, (some, kind) in fields.items()
            }
        )
        h.process_columns(given)
        rowwise.process(*given.to_block().values)
    assert all(isinstance(batch, Columns) for batch in h.batches())
    assert h.values() == rowwise.values()


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@settings(deadline=None)
@given(data=st.data())
def test_integer_keys_widened_to_floats_stay_columnar_and_equal_rows(how: str, data: Any) -> None:
    keys = Keys("k")
    h = OperatorHarness(KeyedAggregateOperator(how, "v", FieldReduce(how, "v"), keys), keyed=True)
    rowwise = OperatorHarness(ReduceOperator(FieldReduce(how, "v"), keys), keyed=True)
    whole, halves = st.integers(-3, 3), st.integers(-6, 6).map(lambda n: n / 2)
    kinds = [(whole, pa.int16()), (whole, pa.int64()), (halves, pa.float64())]
    for _ in range(data.draw(st.integers(1, 5))):
        some, kind = data.draw(st.sampled_from(kinds))
        of_batch = data.draw(st.lists(some, min_size=1, max_size=8))
        given = columns(k=pa.array(of_batch, kind), v=[*range(len(of_batch))])
        h.process_columns(given)
        rowwise.process(*given.to_block().values)
    assert all(isinstance(batch, Columns) for batch in h.batches())
    assert h.values() == rowwise.values()


@pytest.mark.parametrize("large", [2**53 + 1, -(2**60) + 1])
def test_integer_keys_that_no_float_can_represent_are_aggregated_as_rows(large: int) -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    h.process_columns(columns(k=[0.5, 3.0], v=[1, 2]))
    h.process_columns(columns(k=[3, 4], v=[4, 8]))
    h.process_columns(columns(k=[large, 3], v=[16, 32]))
    assert [isinstance(batch, Columns) for batch in h.batches()] == [True, True, False]
    assert [tuple(row) for row in h.values()] == [
        (0.5, 1), (3, 2), (3, 6), (4, 8), (large, 16), (3, 38),
    ]  # fmt: skip


def test_large_integer_keys_are_not_rounded_when_float_keys_follow() -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    h.process_columns(columns(k=[2**60, 2**60 + 1], v=[1, 2]))
    h.process_columns(columns(k=[2.0**60, 0.5], v=[4, 8]))
    assert [tuple(row) for row in h.values()] == [
        (2**60, 1), (2**60 + 1, 2), (2**60, 5), (0.5, 8),
    ]  # fmt: skip


def test_error_names_a_column_that_cannot_be_summed() -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    with pytest.raises(StreamError, match="sum needs a column of numbers; 'v' is"):
        h.process_columns(columns(k=["a"], v=["x"]))
    with pytest.raises(StreamError, match="sum of 'v': 1 nulls"):
        h.process_columns(columns(k=["a", "a"], v=[1, None]))


@pytest.mark.parametrize(
    ("how", "expected"),
    [("min", [2.0, 2.0, 1.0, NAN, 5.0]), ("max", [2.0, NAN, NAN, NAN, NAN])],
)
@pytest.mark.parametrize("is_columnar", [True, False])
def test_nan_is_greater_than_every_number_in_aggregates(
    how: str, expected: list[float], is_columnar: bool
) -> None:
    """As in Flink, so that the order of the records does not matter."""
    operator = KeyedAggregateOperator(how, "v", FieldReduce(how, "v"), Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    given = columns(k=["a", "a", "a", "b", "b"], v=[2.0, NAN, 1.0, NAN, 5.0])
    if is_columnar:
        h.process_columns(given)
    else:
        h.process(*given.to_block().values)
    assert str([row.v for row in h.values()]) == str(expected)


def test_nan_is_the_same_key_in_all_batches() -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    for _ in range(2):
        h.process_columns(columns(k=[NAN, 1.5, -NAN], v=[1, 10, 2]))
    assert [row.v for row in h.values()] == [1, 10, 3, 4, 20, 6]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.uint32(), pa.uint64()], ids=str)
def test_sums_of_narrow_and_unsigned_integers_are_64_bits_wide(kind: pa.DataType) -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    for _ in range(2):
        h.process_columns(columns(k=["a", "b", "a"], v=pa.array([100, 3, 120], kind)))
    assert [row.v for row in h.values()] == [100, 3, 220, 320, 6, 440]


def test_dictionary_columns_with_more_entries_than_their_indices_are_summed() -> None:
    """Indices of 8 bits can address 128 entries; pandas chooses such indices."""
    h = OperatorHarness(rolling_sum(), keyed=True)
    for first in (0, 100):
        texts = pa.array([str(first + n) for n in range(100)])
        entries = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), texts)
        h.process_columns(columns(k=entries, v=range(100), other=entries))
    assert [(row.k, row.v, row.other) for row in h.values()] == [
        (str(n), n % 100, str(n)) for n in range(200)
    ]


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = OperatorHarness(rolling_sum(), keyed=True)
    h.process_columns(columns(k=["a"], v=[1]))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_in_a_key_selector_names_the_row() -> None:
    keys = Keys(lambda row: unlike_five(row.v))
    operator = KeyedAggregateOperator("sum", "v", FieldReduce("sum", "v"), keys)
    error = failure(operator, lambda h: h.process_columns(columns(v=[4, 5])), keyed=True)
    assert error.record == "Row(v=5)"


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


def test_error_in_a_key_selector_names_the_row_in_batch_mode() -> None:
    operator = sums(Keys(lambda row: unlike_five(row.v)))
    error = failure(operator, lambda h: h.process_columns(columns(v=[4, 5])), keyed=True)
    assert error.record == "Row(v=5)"


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
