"""Functions of whole batches of a keyed stream, with state in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.datastream import KeyedBatchFunction, KeyedProcessFunction
from flinkray.datastream.arrays import running_sums
from flinkray.datastream.state import ArrayStateDescriptor
from flinkray.state.errors import StateError
from flinkray.streaming.columnar.arrow_batches import KeyedBatchOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Columns, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import assert_time_passes, columns, failure, unlike_five

BY_KEY = Keys("k")


class RunningSum(KeyedBatchFunction):
    def open(self, runtime_context: Any) -> None:
        self.sums = runtime_context.get_array_state(ArrayStateDescriptor("sum", np.int64))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        sums = running_sums(ctx.slots, batch["v"].to_numpy(), self.sums.values)
        return batch.set_column(batch.schema.get_field_index("v"), "v", pa.array(sums))


class CountAtTheEnd(KeyedBatchFunction):
    def open(self, runtime_context: Any) -> None:
        self.counts = runtime_context.get_array_state(ArrayStateDescriptor("n", "int32", 10))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        np.add.at(self.counts.values, ctx.slots, 1)

    def on_watermark(self, timestamp: int, ctx: Any) -> Any:
        assert len(ctx.slots) == 0
        if timestamp == MAX_TIMESTAMP:
            return pa.record_batch({"k": list(ctx.keys), "n": self.counts.values})
        return None


def new(function: KeyedBatchFunction, keys: Keys = BY_KEY, **options: Any) -> OperatorHarness:
    return OperatorHarness(KeyedBatchOperator(function, keys), keyed=True, **options)


def test_array_state_of_a_batch_function_has_one_element_for_each_key() -> None:
    h = new(RunningSum())
    h.process_columns(columns([1, 2, 3], k=["a", "b", "a"], v=[1, 2, 3]))
    h.process_columns(columns([4, 5], k=["c", "a"], v=[4, 5]))
    assert h.records() == [
        (Row(k="a", v=1), 1),
        (Row(k="b", v=2), 2),
        (Row(k="a", v=4), 3),
        (Row(k="c", v=4), 4),
        (Row(k="a", v=9), 5),
    ]


def test_batch_function_gets_rows_as_columns_and_a_column_of_computed_keys() -> None:
    h = new(RunningSum(), Keys(lambda row: row.k.lower()))
    h.process(Row(k="a", v=1), Row(k="A", v=2), at=[1, 2])
    h.process_columns(columns([3], k=["a"], v=[3]))
    assert h.values() == [Row(k="a", v=1), Row(k="A", v=3), Row(k="a", v=6)]


def test_results_caused_by_a_watermark_precede_the_watermark() -> None:
    h = new(CountAtTheEnd())
    h.process_columns(columns(None, k=["a", "b", "a"]))
    h.watermark(5)
    h.watermark(MAX_TIMESTAMP)
    assert h.output() == [
        Watermark(5),
        *((Row(k="a", n=12), None), (Row(k="b", n=11), None)),
        Watermark(MAX_TIMESTAMP),
    ]


def test_watermarks_and_idleness_pass_through() -> None:
    assert_time_passes(new(RunningSum()))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_array_state_is_restored_at_another_parallelism(parallelism: int) -> None:
    h = new(RunningSum())
    names = [f"key-{number}" for number in range(50)]
    h.process_columns(columns(None, k=names * 2, v=[1] * 100))
    stored = h.snapshot()
    h.process_columns(columns(None, k=names, v=[100] * 50))
    found = []
    for subtask in range(parallelism):
        part = new(RunningSum(), restore=stored, parallelism=parallelism, subtask_index=subtask)
        mine = [key for key in names if key in part.operator.keyed_state.columns().keys]  # type: ignore[union-attr]
        part.process_columns(columns(None, k=mine, v=[1] * len(mine)))
        found += part.values()
    assert sorted(row.k for row in found) == sorted(names)
    assert {row.v for row in found} == {3}


def test_error_of_a_batch_function_names_operator_and_subtask() -> None:
    class Failing(KeyedBatchFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
            unlike_five(batch["v"][0].as_py())

    error = failure(
        KeyedBatchOperator(Failing(), BY_KEY),
        lambda h: h.process_columns(columns(None, k=["a"], v=[5])),
        keyed=True,
    )
    assert error.record == ""


def test_result_that_is_no_record_batch_is_refused() -> None:
    class Odd(KeyedBatchFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
            return 5

    with pytest.raises(StreamError, match="returns an Arrow RecordBatch"):
        new(Odd()).process_columns(columns(None, k=["a"]))


def test_array_state_is_refused_outside_of_batch_functions() -> None:
    class Plain(KeyedProcessFunction[Any, Any, Any]):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_array_state(ArrayStateDescriptor("sum", np.int64))

        def process_element(self, value: Any, ctx: Any) -> None:
            return None

    with pytest.raises(StateError, match="use it in a KeyedBatchFunction"):
        OperatorHarness(KeyedProcessOperator(Plain(), BY_KEY), keyed=True)


@pytest.mark.parametrize("dtype", [object, "U3", "datetime64[ms]"])
def test_array_state_of_a_non_numeric_type_is_refused(dtype: Any) -> None:
    with pytest.raises(StateError, match="holds numbers or booleans"):
        ArrayStateDescriptor("sum", dtype)


def test_empty_batches_are_not_passed_to_a_batch_function() -> None:
    h = new(RunningSum())
    h.process_columns(Columns(pa.record_batch({"k": pa.array([], pa.string())})))
    h.process()
    assert h.output() == []


class FirstKeys(KeyedBatchFunction):
    """Hands its keys out as they are."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        self.keys = ctx.keys


def test_function_that_changes_a_key_does_not_change_the_stored_key() -> None:
    function = FirstKeys()
    h = new(function, Keys(lambda row: Row(row.k)))
    h.process(Row(k="a"), Row(k="b"))
    keys = function.keys
    assert list(keys) == list(keys[:]) == [Row("a"), Row("b")]
    assert len(keys) == 2
    keys[0][0] = "changed"
    keys[1:][0][0] = "changed"
    assert list(keys) == [Row("a"), Row("b")]


def test_immutable_keys_are_not_copied_for_a_function() -> None:
    function = FirstKeys()
    h = new(function)
    h.process_columns(columns([1, 2], k=["a", "b"], v=[1, 2]))
    first = function.keys
    h.process_columns(columns([3], k=["c"], v=[3]))
    assert function.keys is first
    assert list(function.keys) == ["a", "b", "c"]
