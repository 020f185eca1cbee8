"""Aggregates of columns by key and window give those of the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.streaming.columnar.local_aggregate import LocalWindowAggregateOperator
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import assert_time_passes_and_the_end_adds_nothing, columns

TUMBLING, SLIDING = PaneTimes(10, 10, 0), PaneTimes(20, 10, 0)

records = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-100, 100), st.integers(-50, 50)),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(records, st.integers(-60, 60)), min_size=1, max_size=5),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 5),
    st.booleans(),
)
def test_window_aggregates_equal_those_computed_record_by_record(
    batches: list[tuple[list[tuple[str, int, int]], int]],
    size: int,
    slide: int,
    offset: int,
    is_in_order: bool,
) -> None:
    offset = offset % slide
    aggregates = [
        ColumnAggregate("n", "count"),
        *(ColumnAggregate(how, how, "v") for how in ("sum", "min", "max", "mean")),
    ]
    operator = WindowAggregateOperator(PaneTimes(size, slide, offset), aggregates, Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    watermark = -(10**9)
    windows: dict[tuple[int, str], list[int]] = {}
    for rows, advance in batches:
        if is_in_order:
            rows.sort(key=lambda row: row[2])
        keys, values, times = map(list, zip(*rows, strict=True))
        batch = pa.record_batch({"k": keys, "v": values})
        h.process_columns(Columns(batch, np.array(times, np.int64)))
        for key, value, time in rows:
            for start in range(time, time - size, -1):
                if (start - offset) % slide == 0 and start + size - 1 > watermark:
                    windows.setdefault((start, key), []).append(value)
        if advance > watermark:
            watermark = advance
            h.watermark(watermark)
    h.watermark(MAX_TIMESTAMP)
    expected = {
        (key, start, start + size, len(v), sum(v), min(v), max(v), sum(v) / len(v))
        for (start, key), v in windows.items()
    }
    results = h.records()
    assert {tuple(row) for row, _ in results} == expected
    assert len(results) == len(expected)
    assert all(time == row.window_end - 1 for row, time in results)


def test_window_aggregate_continues_after_a_restore() -> None:
    def operator() -> WindowAggregateOperator:
        aggregates = [ColumnAggregate("n", "count"), ColumnAggregate("low", "min", "v")]
        return WindowAggregateOperator(TUMBLING, aggregates, Keys("k"))

    h = OperatorHarness(operator(), keyed=True)
    batch = pa.record_batch({"k": [1, 2, 1], "v": [5.0, 7.0, 3.0]})
    h.process_columns(Columns(batch, np.array([0, 3, 12])))
    restored = OperatorHarness(operator(), keyed=True, restore=h.snapshot())
    for each in (h, restored):
        each.process_columns(Columns(batch, np.array([4, 5, 6])))
        each.watermark(100)
        assert sorted(map(tuple, each.values())) == [
            (1, 0, 10, 3, 3.0), (1, 10, 20, 1, 3.0), (2, 0, 10, 2, 7.0),
        ]  # fmt: skip


AGGREGATES = [ColumnAggregate(how, how, "v") for how in ("sum", "min", "max", "mean")]


@pytest.mark.parametrize("is_restored", [False, True])
def test_wider_number_type_widens_window_aggregates_in_all_panes(is_restored: bool) -> None:
    """Also for keys that had only integers, or that were in no pane before."""

    def operator(**settings: Any) -> OperatorHarness:
        made = WindowAggregateOperator(SLIDING, AGGREGATES, Keys("k"))
        return OperatorHarness(made, keyed=True, **settings)

    h = operator()
    h.process_columns(columns([1, 2], k=["a", "b"], v=pa.array([3, -4], pa.int16())))
    h.process_columns(columns([12, 13], k=["b", "c"], v=[5, 2**40]))
    h.process_columns(columns([3], k=["d"], v=[0.5]))
    if is_restored:
        h = operator(restore=h.snapshot())
    h.process_columns(columns([4, 14], k=["a", "e"], v=[2.5, 1.5]))
    h.process_columns(columns([15, 5], k=["e", "b"], v=[2, 2]))
    h.watermark(MAX_TIMESTAMP)
    found = {(r.window_start, r.k): tuple(r)[3:] for r in h.values()}
    assert found == {
        **dict.fromkeys([(-10, "a")], (5.5, 2.5, 3, 2.75)),
        **dict.fromkeys([(-10, "b")], (-2, -4, 2, -1)),
        **dict.fromkeys([(-10, "d"), (0, "d")], (0.5, 0.5, 0.5, 0.5)),
        (0, "a"): (5.5, 2.5, 3, 2.75),
        (0, "b"): (3, -4, 5, 1),
        (10, "b"): (5, 5, 5, 5),
        **dict.fromkeys([(0, "c"), (10, "c")], (2**40, 2**40, 2**40, 2**40)),
        **dict.fromkeys([(0, "e"), (10, "e")], (3.5, 1.5, 2, 1.75)),
    }


KINDS = {"i1": 2**7, "i4": 2**31, "i8": 2**63, "u4": 2**32, "u8": 2**64, "f8": 2**60}


@st.composite
def of_any_width(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Of one type; many of them are as far from zero as its numbers can be."""
    kind = draw(st.sampled_from(list(KINDS)))
    least, most = (0 if kind[0] == "u" else -KINDS[kind]), KINDS[kind] - 1
    near = st.integers(0, 2)
    number = near.map(lambda n: most - n) | near.map(lambda n: least + n) | st.integers(least, most)
    return np.array(draw(st.lists(number, min_size=1, max_size=9)), kind)


@settings(deadline=None)
@given(
    st.lists(st.tuples(of_any_width(), st.sampled_from(["all", "parts", "restore"])), min_size=1)
)
def test_mean_is_correct_although_the_sum_overflows(batches: list[tuple[Any, str]]) -> None:
    """For batches of any types, some of them aggregated before the exchange, with restores of the
    task between batches."""
    aggregates = [ColumnAggregate(how, how, "v") for how in ("sum", "mean")]

    def operator(**settings: Any) -> OperatorHarness:
        made = WindowAggregateOperator(SLIDING, aggregates, Keys("k"))
        return OperatorHarness(made, keyed=True, **settings)

    h = operator()
    numbers: list[int] = []
    for values, how in batches:
        rows = columns([5] * len(values), k=["a"] * len(values), v=values)
        parts: list[Any] = [rows]
        if how == "parts":
            local = OperatorHarness(LocalWindowAggregateOperator(SLIDING, aggregates, Keys("k")))
            local.process_columns(rows)
            local.finish()
            parts = list(local.batches())
        for part in parts:
            h.process_columns(part)
        if how == "restore":
            h = operator(restore=h.snapshot())
        numbers += map(int, values)
    h.watermark(MAX_TIMESTAMP)
    first, second = h.values()
    assert tuple(first)[3:] == tuple(second)[3:]
    total, largest = sum(numbers), max(map(abs, numbers))
    is_double = any(values.dtype.kind == "f" for values, _ in batches)
    slack = largest * 1e-14 if is_double else 0
    assert first.mean == pytest.approx(total / len(numbers), rel=1e-15, abs=slack)
    if not is_double:
        assert (first.sum - total) % 2**64 == 0


def test_mean_continues_from_sums_stored_by_earlier_versions() -> None:
    """Earlier versions stored sums without the additional columns of a mean."""
    h = OperatorHarness(
        WindowAggregateOperator(TUMBLING, [ColumnAggregate("sum", "sum", "v")], Keys("k")),
        keyed=True,
    )
    h.process_columns(columns([1, 2], k=["a", "a"], v=[2**62, 2**62 - 1]))
    h.process_columns(columns([1], k=["b"], v=[3]))
    mean = WindowAggregateOperator(TUMBLING, [ColumnAggregate("mean", "mean", "v")], Keys("k"))
    h = OperatorHarness(mean, keyed=True, restore=h.snapshot())
    h.process_columns(columns([3, 4], k=["a", "a"], v=[2**62, 2**63 - 1]))
    h = OperatorHarness(
        WindowAggregateOperator(TUMBLING, [ColumnAggregate("mean", "mean", "v")], Keys("k")),
        keyed=True,
        restore=h.snapshot(),
    )
    h.watermark(MAX_TIMESTAMP)
    assert {row.k: row.mean for row in h.values()} == {"a": (3 * 2**62 + 2**63 - 2) / 4, "b": 3}


def test_record_between_windows_is_late_after_the_watermark() -> None:
    times = PaneTimes(3, 5, 0)
    operator = WindowAggregateOperator(times, [ColumnAggregate("n", "count")], Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    h.watermark(103)
    h.process_columns(columns([104, 103, 1], k=["a"] * 3))
    assert h.operator.context.metrics.counter("numLateRecordsDropped").get_count() == 2
    h.watermark(MAX_TIMESTAMP)
    assert h.values() == []


def test_integer_keys_are_widened_to_floats_and_text_keys_refused() -> None:
    operator = WindowAggregateOperator(TUMBLING, [ColumnAggregate("n", "count")], Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    h.process_columns(columns([1, 2], k=[1, 2], v=[0, 0]))
    h.process_columns(columns([1, 2], k=[1.0, 2.5], v=[0, 0]))
    h.process_columns(columns([1], k=pa.nulls(1), v=[0]))
    h.watermark(10)
    assert {r.k: r.n for r in h.values()} == {1: 2, 2: 1, 2.5: 1, None: 1}
    with pytest.raises(StreamError, match="column 'k' to key by is of type double, then of string"):
        h.process_columns(columns([11], k=["x"], v=[0]))


def test_window_aggregate_forgets_keys_that_do_not_come_any_more() -> None:
    aggregates = [ColumnAggregate("n", "count"), ColumnAggregate("high", "max", "v")]
    operator = WindowAggregateOperator(SLIDING, aggregates, Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    records: list[tuple[int, int, int]] = []
    most = 0
    for moment in range(0, 200, 10):  # every key comes at two or three moments, but for 0
        new = range(moment * 100, moment * 100 + 2000)
        keys = [0, *new, *(key - 1000 for key in new if key % 7 == 0)]
        batch = pa.record_batch({"k": keys, "v": range(len(keys))})
        h.process_columns(Columns(batch, np.full(len(keys), moment)))
        records += ((key, moment, value) for value, key in enumerate(keys))
        h.watermark(moment - 1)
        most = max(most, len(operator._table))
    h.watermark(MAX_TIMESTAMP)
    windows: dict[tuple[int, int], list[int]] = {}
    for key, moment, value in records:
        for start in (moment - 10, moment):
            windows.setdefault((key, start), []).append(value)
    expected = {(k, s, s + 20, len(v), max(v)) for (k, s), v in windows.items()}
    results = [tuple(row) for row in h.values()]
    assert set(results) == expected
    assert len(results) == len(expected)
    assert most < 10_000 < len({key for key, _, _ in records})


def test_column_that_a_window_cannot_aggregate_is_named() -> None:
    aggregates = [ColumnAggregate("total", "sum", "v")]
    h = OperatorHarness(WindowAggregateOperator(TUMBLING, aggregates, Keys("k")), keyed=True)
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


def test_nan_is_greater_than_every_number_in_windows() -> None:
    """In one pane, and between the panes of sliding windows."""
    extremes = [ColumnAggregate(how, how, "v") for how in ("min", "max")]
    operator = WindowAggregateOperator(SLIDING, extremes, Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    nan = float("nan")
    h.process_columns(columns([1, 2, 3], k=["a", "a", "b"], v=[nan, 2.0, nan]))
    h.process_columns(columns([11, 12], k=["a", "b"], v=[1.0, 5.0]))
    h.watermark(19)
    found = [(row.k, row.window_start, row.min, row.max) for row in h.values()]
    assert str(found) == str(
        [("a", -10, 2.0, nan), ("b", -10, nan, nan), ("a", 0, 1.0, nan), ("b", 0, 5.0, nan)]
    )


def counts() -> OperatorHarness:
    operator = WindowAggregateOperator(TUMBLING, [ColumnAggregate("n", "count")], Keys("k"))
    return OperatorHarness(operator, keyed=True)


def test_rows_and_columns_are_aggregated_together_into_columns() -> None:
    h = counts()
    h.process(Row(k="a"), Row(k="b"), at=[1, 2])
    h.process_columns(columns([3, 14], k=["a", "a"]))
    h.watermark(9)
    names = ["k", "window_start", "window_end", "n"]
    assert h.records() == [(Row.of(names, ["a", 0, 10, 2]), 9), (Row.of(names, ["b", 0, 10, 1]), 9)]
    (batch,) = h.batches()
    assert isinstance(batch, Columns)


def test_late_records_are_dropped_and_counted() -> None:
    h = counts()
    h.watermark(9)
    h.process_columns(columns([9, 10], k=["a", "b"]))
    h.watermark(19)
    assert [row.k for row in h.values()] == ["b"]
    assert h.operator._late.get_count() == 1  # type: ignore[attr-defined]


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = counts()
    h.process_columns(columns([50], k=["a"]))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_key_function_is_refused_for_window_aggregates() -> None:
    with pytest.raises(StreamError, match="key_by with the name of a column"):
        WindowAggregateOperator(TUMBLING, [], Keys(lambda row: row.k))


def test_integer_key_that_no_float_equals_is_refused_beside_float_keys() -> None:
    operator = WindowAggregateOperator(TUMBLING, [ColumnAggregate("n", "count")], Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    for keys in (pa.array([1.5]), pa.array([2**60 + 1])):
        h.process_columns(Columns(pa.record_batch({"k": keys}), np.array([0], np.int64)))
    with pytest.raises(StreamError, match="column 'k' came as double and as integers that are"):
        h.watermark(MAX_TIMESTAMP)


def test_windows_that_have_fired_do_not_fire_again_after_a_restore() -> None:
    """Their panes may still exist, for later windows."""

    def fresh(**settings: Any) -> OperatorHarness:
        made = WindowAggregateOperator(SLIDING, [ColumnAggregate("n", "count")], Keys("k"))
        return OperatorHarness(made, keyed=True, **settings)

    h = fresh()
    h.process_columns(columns([5], k=["a"]))
    h.watermark(9)
    assert [row.window_start for row in h.values()] == [-10]
    restored = fresh(restore=h.snapshot())
    restored.watermark(3)  # its sources begin anew
    restored.process_columns(columns([6], k=["a"]))  # late for the first window
    restored.watermark(19)
    assert [(row.window_start, row.n) for row in restored.values()] == [(0, 2)]


def test_window_that_fired_before_an_unaligned_barrier_does_not_fire_after_a_restore() -> None:
    def subtask(index: int, **settings: Any) -> OperatorHarness:
        made = WindowAggregateOperator(
            PaneTimes(10, 5, 0), [ColumnAggregate("n", "count")], Keys("k")
        )
        return OperatorHarness(made, keyed=True, subtask_index=index, parallelism=2, **settings)

    ahead, behind = subtask(0), subtask(1)
    keys = list(range(20))
    ahead.process_columns(columns([1] * 20, k=keys))
    ahead.process_columns(columns([6] * 20, k=keys))
    ahead.watermark(9)
    behind.watermark(3)
    taken = [behind.snapshot(), ahead.snapshot()]
    restored = subtask(0, restore=taken)
    restored.watermark(9)
    restored.watermark(20)
    found = {(row.window_start, row.n) for row in restored.values()}
    assert found == {(5, 1)}


def test_late_records_of_ended_windows_are_counted_after_rescaling() -> None:
    """Each record is in a result or is counted as late."""

    def subtask(index: int, parallelism: int, **settings: Any) -> OperatorHarness:
        made = WindowAggregateOperator(TUMBLING, [ColumnAggregate("n", "count")], Keys("k"))
        return OperatorHarness(
            made, keyed=True, subtask_index=index, parallelism=parallelism, **settings
        )

    taken, keys = [], list(range(20))
    for index, watermark in enumerate([9, 3]):
        h = subtask(index, 2)
        h.watermark(watermark)
        taken.append(h.snapshot())
    restored = subtask(0, 1, restore=taken)
    for time in (4, 14):
        restored.process_columns(columns([time] * 20, k=keys))
    assert late(restored) in range(1, 20), "the counter begins anew with the attempt"
    restored.watermark(20)
    results = [(row.window_start, row.n) for row in restored.values()]
    assert results.count((0, 1)) == 20 - late(restored)
    assert results.count((10, 1)) == 20


def late(h: OperatorHarness) -> int:
    count: int = h.operator._late.get_count()  # type: ignore[attr-defined]
    return count


def test_window_aggregate_restored_after_the_end_of_its_stream_accepts_records() -> None:
    h = counts()
    h.watermark(MAX_TIMESTAMP)
    operator = WindowAggregateOperator(TUMBLING, [ColumnAggregate("n", "count")], Keys("k"))
    restored = OperatorHarness(operator, keyed=True, restore=h.snapshot())
    restored.process_columns(columns([5], k=["a"]))
    restored.watermark(9)
    assert [row.n for row in restored.values()] == [1]


def test_additional_window_aggregate_is_refused_at_restore_while_windows_are_open() -> None:
    h = counts()
    h.process_columns(columns([5], k=["a"]))
    more = WindowAggregateOperator(TUMBLING, [ColumnAggregate("low", "min", "v")], Keys("k"))
    with pytest.raises(StreamError, match=r"operator: the state .* has no min v of the windows"):
        OperatorHarness(more, keyed=True, restore=h.snapshot())
    h.watermark(9)
    OperatorHarness(more, keyed=True, restore=h.snapshot())
