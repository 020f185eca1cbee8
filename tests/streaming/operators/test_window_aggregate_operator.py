"""Window aggregates of columns give what records one by one give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.streaming.columnar.local_aggregate import LocalWindowAggregateOperator
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes, is_part
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import (
    IDLE,
    MAX_TIMESTAMP,
    Barrier,
    Columns,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.time.combined_watermarks import ValveOutput, WatermarkValve
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    columns_of,
)

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


PANES = PaneTimes(10, 10, 0)
ALL_AGGREGATES = [
    ColumnAggregate("n", "count"),
    *(ColumnAggregate(how, how, "v") for how in ("sum", "min", "max", "mean")),
]
KEYS = {
    "int": (st.integers(-3, 3), pa.int64()),
    "text or null": (st.sampled_from(["a", "b", None]), pa.string()),
    "dictionary": (st.sampled_from(["a", "b"]), pa.dictionary(pa.int32(), pa.string())),
}
NUMBERS = {
    "int8": (st.integers(-128, 127), pa.int8()),
    "uint64": (st.integers(0, 2**64 - 1), pa.uint64()),
    "float": (st.integers(-(2**20), 2**20).map(float) | st.just(float("nan")), pa.float64()),
}


def local(times: PaneTimes = PANES, **limits: int) -> OperatorHarness:
    return OperatorHarness(LocalWindowAggregateOperator(times, ALL_AGGREGATES, Keys("k"), **limits))


def final(times: PaneTimes) -> OperatorHarness:
    return OperatorHarness(WindowAggregateOperator(times, ALL_AGGREGATES, Keys("k")), keyed=True)


def late_of_panes(h: OperatorHarness) -> int:
    count: int = h.operator.context.metrics.counter("numLateRecordsDropped").get_count()
    return count


class Two:
    """A subtask that two feed, each with a watermark of its own."""

    def __init__(self, times: PaneTimes) -> None:
        self.harness = final(times)
        self._watermarks = [-(10**6)] * 2

    def add(self, batches: list[Columns]) -> None:
        for batch in batches:
            self.harness.process_columns(batch)

    def watermark(self, feeder: int, timestamp: int) -> None:
        before = min(self._watermarks)
        self._watermarks[feeder] = max(timestamp, self._watermarks[feeder])
        if min(self._watermarks) > before:
            self.harness.watermark(min(self._watermarks))

    def results(self) -> Iterator[tuple[str, int | None]]:
        """Texts, as NaN is not NaN, in no particular order of keys."""
        return iter(sorted((repr(tuple(row)), time) for row, time in self.harness.records()))


@pytest.mark.parametrize("numbers", list(NUMBERS))
@pytest.mark.parametrize("kind", list(KEYS))
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_windows_from_local_panes_of_two_tasks_equal_those_of_all_records(
    kind: str, numbers: str, data: Any
) -> None:
    some_keys, key_type = KEYS[kind]
    some_numbers, number_type = NUMBERS[numbers]
    row = st.tuples(some_keys, some_numbers, st.integers(-30, 60))
    records = st.lists(row, min_size=1, max_size=8)
    steps = data.draw(
        st.lists(st.tuples(st.integers(0, 1), records | st.integers(-20, 70)), max_size=12)
    )
    size, slide = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    times = PaneTimes(size, slide, data.draw(st.integers(0, slide - 1)))
    most = data.draw(st.sampled_from([1, 1 << 20]))
    halves = [local(times, most_numbers=most) for _ in range(2)]
    all_records, parts = Two(times), Two(times)
    at_most = [-(10**6)] * 2
    for feeder, step in [*steps, (0, MAX_TIMESTAMP), (1, MAX_TIMESTAMP)]:
        half = halves[feeder]
        if isinstance(step, int):
            if step <= at_most[feeder]:
                continue  # time never goes back
            at_most[feeder] = step
            half.watermark(step)
            parts.add(columns_of(half))
            for each in (all_records, parts):
                each.watermark(feeder, step)
            continue
        keys, values, at = zip(*step, strict=True)
        batch = columns(at, k=pa.array(keys, key_type), v=pa.array(values, number_type))
        all_records.add([batch])
        half.process_columns(batch)
        parts.add(columns_of(half))
    assert list(parts.results()) == list(all_records.results())
    if slide <= size:  # else some records are in no window
        assert late_of_panes(parts.harness) == late_of_panes(all_records.harness)


def rows_of(h: OperatorHarness) -> list[tuple[Any, ...]]:
    """Key, begin of the pane, count and sum of all parts that were put out since."""
    found = []
    for each in columns_of(h):
        assert is_part(each.batch)
        assert each.timestamps is not None
        rows = each.batch.select(["k", "__count_of_part", "sum v"]).to_pylist()
        for row, time in zip(rows, each.timestamps.tolist(), strict=True):
            found.append((row["k"], time, row["__count_of_part"], row["sum v"]))
    return found


def test_local_pane_emits_one_row_per_key_before_the_watermark_that_ends_it() -> None:
    h = local()
    h.process_columns(columns([1, 12, 3], k=["a", "a", "b"], v=[1, 2, 3]))
    h.process_columns(columns([4], k=["a"], v=[4]))
    h.watermark(8)
    assert h.output() == [Watermark(8)]
    h.watermark(9)
    assert h.output()[-1] == Watermark(9)
    assert rows_of(h) == [("a", 0, 2, 5), ("b", 0, 1, 3)]
    h.watermark(MAX_TIMESTAMP)
    assert rows_of(h) == [("a", 10, 1, 2)]


@pytest.mark.parametrize("what", ["barrier", "idleness", "end"])
def test_local_panes_are_emitted_before_a_barrier_at_idleness_and_at_the_end(what: str) -> None:
    h = local()
    h.process_columns(columns([1], k=["a"], v=[1]))
    if what == "barrier":
        h.operator.prepare_snapshot_pre_barrier(Barrier(1, 0))
    elif what == "idleness":
        h.status(True)
        assert h.output()[-1] == IDLE
    else:
        h.finish()
    assert rows_of(h) == [("a", 0, 1, 1)]
    h.process_columns(columns([2], k=["a"], v=[2]))
    h.watermark(9)
    assert rows_of(h) == [("a", 0, 1, 2)]


def test_records_late_only_for_the_local_task_are_forwarded_at_once() -> None:
    """After the exchange, where other tasks delay the watermark, they may be in time."""
    h = local()
    h.watermark(12)
    h.process_columns(columns([5, 15], k=["a", "a"], v=[1, 2]))
    assert rows_of(h) == [("a", 0, 1, 1)]


def test_records_of_a_local_task_that_becomes_active_after_idleness_are_not_late() -> None:
    halves, valve, behind = [local(), local()], WatermarkValve(2), final(PANES)

    def pass_on(feeder: int) -> None:
        for batch in columns_of(halves[feeder]):
            behind.process_columns(batch)
        for element in halves[feeder].output():
            if isinstance(element, Watermark):
                tell(valve.watermark(feeder, element.timestamp))
            elif isinstance(element, WatermarkStatus):
                tell(valve.status(feeder, element == IDLE))

    def tell(output: ValveOutput) -> None:
        output.tell(lambda timestamp: behind.watermark(timestamp), lambda _: None)

    halves[1].watermark(5)
    halves[1].status(True)
    pass_on(1)
    halves[0].watermark(100)
    pass_on(0)
    halves[1].status(False)
    halves[1].watermark(95)
    halves[1].process_columns(columns([105, 105], k=["a", "a"], v=[1, 2]))
    pass_on(1)
    halves[0].watermark(109)
    pass_on(0)
    assert [row["n"] for row, _ in behind.records()] == [2]
    assert late_of_panes(behind) == 0


def test_batches_are_forwarded_unaggregated_if_keys_of_the_sample_hardly_repeat() -> None:
    h = local(sample=4)
    h.process_columns(columns([1, 2, 3], k=["a", "b", "c"], v=[1, 2, 3]))
    h.watermark(9)
    assert len(rows_of(h)) == 3
    h.process_columns(columns([11, 12, 25], k=["a", "b", "c"], v=[1, 2, 3]))
    h.watermark(19)
    assert rows_of(h) == [("a", 10, 1, 1), ("b", 10, 1, 2), ("c", 20, 1, 3)]
    batch = columns([31, 32], k=["a", "a"], v=[1, 2])
    h.process_columns(batch)
    assert h.batches() == [batch]


def test_local_panes_are_forwarded_when_they_reach_their_memory_limit() -> None:
    h = local(most_numbers=3)
    h.process_columns(columns([1, 11], k=["a", "a"], v=[1, 2]))
    assert rows_of(h) == []
    h.process_columns(columns([2], k=["b"], v=[3]))
    assert rows_of(h) == [("a", 0, 1, 1), ("b", 0, 1, 3), ("a", 10, 1, 2)]


def test_rows_and_columns_without_timestamps_are_forwarded_by_local_windows() -> None:
    h = local()
    row = Row.of(["k", "v"], ["a", 1])
    h.process(row, at=3)
    untimed = columns(k=["a"], v=[1])
    h.process_columns(untimed)
    assert h.values() == [row, *untimed.to_block().values]
    empty = Columns(untimed.batch.slice(0, 0), np.empty(0, np.int64))
    h.process_columns(empty)
    assert h.batches()[-1] is empty


def test_column_that_cannot_be_aggregated_is_refused_with_its_name() -> None:
    with pytest.raises(StreamError, match="no column 'k' to key by"):
        local().process_columns(columns([1], v=[1]))
    with pytest.raises(StreamError, match="no column 'v' to aggregate"):
        local().process_columns(columns([1], k=[1]))
    with pytest.raises(StreamError, match="column 'v' has 1 nulls"):
        local().process_columns(columns([1, 1], k=[1, 1], v=[1, None]))
