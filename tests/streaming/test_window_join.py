"""Joins of two streams in windows: by functions and on columns, with the same results."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.datastream import (
    CoGroupFunction,
    JoinFunction,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkray.streaming.columnar.window_operators import WindowBatchesOperator, WindowJoinOperator
from flinkray.streaming.elements import Columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.keying import Keys
from flinkray.streaming.row import Row
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.operator_harness import OperatorHarness

TEN = TumblingEventTimeWindows.of(10)
BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda value, _: value[1]
)


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(clock=ManualClock()).set_parallelism(2)


def stream(env: Any, *values: Any) -> Any:
    return env.from_collection(list(values)).assign_timestamps_and_watermarks(BY_TIME)


def joined(env: Any, left: Any, right: Any, assigner: Any) -> Any:
    first, second = stream(env, *left), stream(env, *right)
    keyed = first.join(second).where(lambda v: v[0]).equal_to(lambda v: v[0])
    return keyed.window(assigner)


class Pair(JoinFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.subtasks = runtime_context.get_number_of_parallel_subtasks()

    def join(self, first: Any, second: Any) -> Any:
        return first[1], second[1], self.subtasks


def test_records_of_a_key_and_window_are_paired(env: Any) -> None:
    windows = joined(env, [("a", 1), ("a", 8), ("b", 2)], [("a", 3), ("a", 10), ("c", 1)], TEN)
    assert sorted(windows.apply(Pair()).execute_and_collect()) == [(1, 3, 2), (8, 3, 2)]


def test_pairs_meet_in_every_sliding_window_they_share(env: Any) -> None:
    windows = joined(env, [("a", 4)], [("a", 6)], SlidingEventTimeWindows.of(10, 5))
    results = windows.apply(lambda a, b: (a[1], b[1])).execute_and_collect()
    assert list(results) == [(4, 6)]
    windows = joined(env, [("a", 6)], [("a", 7)], SlidingEventTimeWindows.of(10, 5))
    assert list(windows.apply(lambda a, b: (a[1], b[1])).execute_and_collect()) == [(6, 7)] * 2


def test_session_spans_both_streams(env: Any) -> None:
    windows = joined(env, [("a", 1), ("a", 30)], [("a", 4), ("a", 7)],
                     EventTimeSessionWindows.with_gap(4))  # fmt: skip
    results = windows.apply(lambda a, b: (a[1], b[1])).execute_and_collect()
    assert sorted(results) == [(1, 4), (1, 7)]


def test_trigger_and_evictor_of_a_join(env: Any) -> None:
    data = [("a", 1), ("a", 2)], [("a", 3)]
    windows = joined(env, *data, TEN).evictor(CountEvictor.of(1)).allowed_lateness(5)
    assert list(windows.apply(lambda a, b: 1).execute_and_collect()) == []
    windows = joined(env, *data, TEN).trigger(PurgingTrigger.of(CountTrigger.of(4)))
    assert list(windows.apply(lambda a, b: 1).execute_and_collect()) == []


class Sizes(CoGroupFunction[Any, Any, Any]):
    def co_group(self, first: Any, second: Any) -> Any:
        yield len(first), len(second)


def test_co_group_sees_keys_that_only_one_stream_has(env: Any) -> None:
    first, second = stream(env, ("a", 1), ("b", 2)), stream(env, ("b", 3), ("b", 4), ("c", 5))
    grouped = first.co_group(second).where(lambda v: v[0]).equal_to(lambda v: v[0]).window(TEN)
    assert sorted(grouped.apply(Sizes()).execute_and_collect()) == [(0, 1), (1, 0), (1, 2)]


@pytest.mark.parametrize("keys", [list(range(5)), ["x", "y", None]])
@pytest.mark.parametrize("seed", range(3))
def test_columns_join_as_records_do(keys: Any, seed: int) -> None:
    """Batches, watermarks and late records at random, both ways."""
    chance = random.Random(seed)
    operator = WindowJoinOperator(10, 3, Keys("k"), Keys("key"))
    h = OperatorHarness(operator, keyed=True)
    pairs: Counter[Any] = Counter()
    kept: list[list[Any]] = [[], []]
    watermark = -100
    for step in range(60):
        side = chance.randrange(2)
        rows = [(chance.choice(keys), step * 10 + n, chance.randrange(100)) for n in range(4)]
        h.process_columns(columns(["k", "key"][side], rows), on=side)
        start = {row: (row[2] - 3) // 10 for row in rows}
        kept[side] += [row for row in rows if (start[row] + 1) * 10 + 2 > watermark]
        if chance.random() < 0.3:
            watermark += chance.randrange(12)
            for on in (0, 1):
                h.watermark(watermark, on=on)
    for on in (0, 1):
        h.watermark(1000, on=on)
    for first in kept[0]:
        for second in kept[1]:
            same_window = (first[2] - 3) // 10 == (second[2] - 3) // 10
            if same_window and first[0] == second[0] is not None:
                pairs[first[1], second[1]] += 1
    records = h.records()
    assert Counter((row.v, row.v_right) for row, _ in records) == pairs
    assert len(pairs) > 50
    for row, time in records:
        assert row.window_start <= row.t < row.window_end == time + 1 == row.window_start + 10


def columns(key: str, rows: Any) -> Columns:
    kind = pa.int64() if isinstance(rows[0][0], int) else pa.string()
    names = [key, "v", "t"]
    arrays = [pa.array(values) for values in zip(*rows, strict=True)]
    arrays[0] = pa.array([row[0] for row in rows], kind)
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    return Columns(batch, np.array([row[2] for row in rows], np.int64))


def test_rows_of_open_windows_survive_a_restore_and_are_divided_by_key() -> None:
    def fresh(**settings: Any) -> Any:
        operator = WindowJoinOperator(10, 0, Keys("k"), Keys("key"))
        return OperatorHarness(operator, keyed=True, **settings)

    h = fresh()
    h.process_columns(columns("k", [(1, 10, 1), (2, 20, 2), (1, 11, 15)]), on=0)
    state = h.snapshot()
    h.process_columns(columns("k", [(1, 12, 3)]), on=0)
    again = fresh(restore=state)
    again.process_columns(columns("key", [(1, 30, 4), (2, 40, 5), (1, 50, 17)]), on=1)
    for on in (0, 1):
        again.watermark(100, on=on)
    assert sorted((row.v, row.v_right) for row in again.values()) == [(10, 30), (11, 50), (20, 40)]


def test_late_rows_are_dropped_and_counted() -> None:
    operator = WindowBatchesOperator(lambda rows: rows, 10, 0, Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    h.watermark(9)
    h.process_columns(columns("k", [(1, 1, 9), (1, 2, 10)]))
    h.watermark(19)
    assert [row.v for row in h.values()] == [2]
    assert operator._late.get_count() == 1


def test_function_gets_all_rows_of_a_window_at_once_in_order_of_windows() -> None:
    seen: list[list[int]] = []

    def first(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows["v"].to_pylist())
        return rows.slice(0, 1)

    h = OperatorHarness(WindowBatchesOperator(first, 10, 0, Keys("k")), keyed=True)
    h.process_columns(columns("k", [(1, 1, 12), (2, 2, 3)]))
    h.process(Row(k=3, v=3, t=14), at=14)
    h.process_columns(columns("k", [(1, 4, 7)]))
    h.watermark(50)
    assert seen == [[2, 4], [1, 3]]
    assert [(row.v, row.window_end, time) for row, time in h.records()] == [
        (2, 10, 9),
        (1, 20, 19),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda w: w.trigger(CountTrigger.of(2)).columns(), "without triggers"),
        (lambda w: w.columns(), "names of columns"),
    ],
)
def test_join_of_columns_says_what_it_needs(env: Any, make: Any, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        make(joined(env, [("a", 1)], [("a", 1)], TEN))


def test_both_keys_are_needed(env: Any) -> None:
    with pytest.raises(StreamError, match="equal_to"):
        stream(env, ("a", 1)).join(stream(env, ("a", 1))).where(lambda v: v).window(TEN)
    with pytest.raises(TypeError, match="WindowAssigner"):
        joined(env, [], [], "10 s")


def test_key_column_that_is_not_there_is_named() -> None:
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("other")), keyed=True)
    with pytest.raises(StreamError, match="no column 'other'"):
        h.process_columns(columns("k", [(1, 1, 1)]), on=1)


def test_rows_without_time_are_refused() -> None:
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("k")), keyed=True)
    batch = columns("k", [(1, 1, 1)]).batch
    with pytest.raises(StreamError, match="no timestamps"):
        h.process_columns(Columns(batch), on=0)
