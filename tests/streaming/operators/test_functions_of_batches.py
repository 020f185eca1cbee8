"""Functions of whole batches: of a stream, of a keyed stream, and of a window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flinkray.datastream import KeyedBatchFunction, KeyedProcessFunction
from flinkray.datastream.arrays import running_sums
from flinkray.datastream.state import ArrayStateDescriptor
from flinkray.state.errors import StateError
from flinkray.streaming.columnar.arrow_batches import (
    GatherBatchesOperator,
    KeyedBatchOperator,
    MapBatchesOperator,
)
from flinkray.streaming.columnar.window_operators import WindowBatchesOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Barrier, Columns, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import Types
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    assert_time_passes,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)


def test_map_batches_accepts_batches_tables_lists_and_none_and_refuses_others() -> None:
    def function(batch: Any) -> Any:
        table = pa.Table.from_batches([batch])
        return [table, None, [batch.slice(0, 1)]]

    h = OperatorHarness(MapBatchesOperator(function))
    h.process(Row(x=1), Row(x=2), at=[5, 6])
    assert h.records() == [(Row(x=1), 5), (Row(x=2), 6), (Row(x=1), 5)]
    h = OperatorHarness(MapBatchesOperator(lambda batch: 5))
    with pytest.raises(StreamError, match="returns an Arrow RecordBatch"):
        h.process(1, 2)
    for whole in (pa.record_batch, pa.table):
        h = OperatorHarness(
            MapBatchesOperator(lambda batch, whole=whole: whole([[1], [2]], ["a"] * 2))
        )
        with pytest.raises(StreamError, match="returned two columns named 'a'"):
            h.process(1)
    with pytest.raises(StreamError, match="declare an output type"):
        h.process(1, "two")


def test_rows_keep_their_timestamps_through_a_batch_function() -> None:
    seen: list[list[str]] = []

    def function(batch: pa.RecordBatch) -> Any:
        seen.append(batch.schema.names)
        return [batch, batch.slice(1), batch.sort_by([("x", "descending")])]

    h = OperatorHarness(MapBatchesOperator(function))
    h.process_columns(columns([5, 6], x=[1, 2]))
    same, shorter, sorted_ = h.batches()
    assert seen == [["x", "$timestamp"]]
    for batch, times in ((same, [5, 6]), (shorter, [6]), (sorted_, [6, 5])):
        assert isinstance(batch, Columns)
        assert batch.batch.schema.names == ["x"]
        assert np.array_equal(batch.timestamps, times)  # type: ignore[arg-type]
    assert h.values() == [Row(x=1), Row(x=2), Row(x=2), Row(x=2), Row(x=1)]


def gathered(max_size: int, max_delay: int) -> tuple[OperatorHarness, list[list[Any]]]:
    """Return the operator with a list of the values of each batch that its function gets."""
    batches: list[list[Any]] = []

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        batches.append(batch["x"].to_pylist())
        return batch

    return OperatorHarness(GatherBatchesOperator(function, max_size, max_delay)), batches


def test_rows_wait_for_a_full_batch_or_for_the_end_of_the_delay_of_the_first_of_them() -> None:
    h, batches = gathered(3, 20)
    h.process_columns(columns(None, x=[1]))
    h.processing_time(15)
    h.process_columns(columns(None, x=[2]))
    assert batches == []
    h.processing_time(20)
    assert batches == [[1, 2]]
    h.process_columns(columns(None, x=[3, 4]))
    h.process_columns(columns(None, x=[5, 6, 7, 8, 9]))
    assert batches[1:] == [[3, 4, 5], [6, 7, 8]]
    h.processing_time(40)
    h.process_columns(columns(None, x=[10]))
    h.finish()
    assert batches[3:] == [[9], [10]]


def test_batches_without_a_delay_are_divided_and_never_wait() -> None:
    h, batches = gathered(2, 0)
    h.process_columns(columns(None, x=[1, 2, 3]))
    assert batches == [[1, 2], [3]]


def test_watermark_waits_with_the_rows_before_it_and_not_with_the_rows_behind_it() -> None:
    h, _ = gathered(3, 20)
    h.watermark(1)
    h.process_columns(columns([5, 6], x=[1, 2]))
    h.watermark(4)
    h.watermark(6)
    assert h.output() == [Watermark(1)]
    h.process_columns(columns([8, 9], x=[3, 4]))
    assert h.output() == [
        *(Record(Row(x=x), at) for x, at in ((1, 5), (2, 6), (3, 8))), Watermark(6)
    ]  # fmt: skip
    h.operator.prepare_snapshot_pre_barrier(Barrier(1, 0))
    assert h.output() == [Record(Row(x=4), 9)]


def test_gathered_batches_of_different_types_are_not_mixed() -> None:
    h, batches = gathered(10, 20)
    h.process(Row(x=1), Row(x=2))
    h.process(Row(x="a"))
    h.process(Row(x="b"), at=3)
    h.finish()
    assert batches == [[1, 2], ["a"], ["b"]]
    assert h.records()[-1] == (Row(x="b"), 3)


def test_batch_that_a_function_returns_without_timestamps_has_no_timestamps() -> None:
    h = OperatorHarness(MapBatchesOperator(lambda batch: batch.select(["x"])))
    h.process_columns(columns([5, 6], x=[1, 2]))
    assert h.records() == [(Row(x=1), None), (Row(x=2), None)]


def test_batch_function_may_change_timestamps() -> None:
    def later(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"$timestamp": pc.add(batch["$timestamp"], 10), "y": batch["x"]})

    h = OperatorHarness(MapBatchesOperator(later))
    h.process_columns(columns([5, 6], x=[1, 2]))
    assert h.records() == [(Row(y=1), 15), (Row(y=2), 16)]


def test_input_column_with_the_reserved_timestamp_name_is_refused() -> None:
    h = OperatorHarness(MapBatchesOperator(lambda batch: batch))
    with pytest.raises(StreamError, match=r"a column '\$timestamp' of their own"):
        h.process_columns(columns([5], **{"$timestamp": [1]}))


def test_values_become_columns_of_their_declared_type() -> None:
    seen: list[pa.RecordBatch] = []
    kind = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.STRING()])
    h = OperatorHarness(MapBatchesOperator(seen.append, kind))
    h.process((1, "x"), (2, None))
    (batch,) = seen
    assert batch.schema == pa.schema([("a", pa.int16()), ("b", pa.string())])


def test_object_with_a_map_batch_method_is_opened_and_closed_by_the_operator() -> None:
    calls: list[Any] = []

    class Noted:
        def open(self, runtime_context: Any) -> None:
            calls.append(runtime_context.get_index_of_this_subtask())

        def close(self) -> None:
            calls.append("closed")

        def map_batch(self, batch: pa.RecordBatch) -> None:
            calls.append(batch.num_rows)

    h = OperatorHarness(MapBatchesOperator(Noted()), subtask_index=1, parallelism=2)
    h.process(1, 2)
    h.operator.close()
    assert calls == [1, 2, "closed"]


def test_object_with_open_but_without_close_is_opened_by_the_operator() -> None:
    class Opened:
        def open(self, runtime_context: Any) -> None:
            self.factor = 10

        def map_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch({"x": pc.multiply(batch["x"], self.factor)})

    h = OperatorHarness(MapBatchesOperator(Opened()))
    h.process_columns(columns(x=[1]))
    h.operator.close()
    assert h.values() == [Row(x=10)]


def test_batch_function_neither_gets_nor_emits_empty_batches() -> None:
    h = OperatorHarness(MapBatchesOperator(lambda batch: batch.slice(0, 0)))
    h.process()
    h.process(1)
    assert h.batches() == []


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = OperatorHarness(MapBatchesOperator(lambda batch: batch))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_function_names_operator_and_subtask() -> None:
    operator = MapBatchesOperator(lambda batch: unlike_five(batch["x"][0].as_py()))
    assert failure(operator, lambda h: h.process_columns(columns(x=[5]))).record == ""


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


def test_watermarks_pass_through_and_the_end_of_input_fires_no_window() -> None:
    h = harness()
    h.process_columns(columns([50], k=[1]))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_of_a_window_function_names_operator_and_subtask() -> None:
    def act(h: OperatorHarness) -> None:
        h.process_columns(columns([3], k=[5]))
        h.watermark(9)

    operator = WindowBatchesOperator(
        lambda rows: unlike_five(rows["k"][0].as_py()), 10, 0, Keys("k")
    )
    failure(operator, act, keyed=True)
