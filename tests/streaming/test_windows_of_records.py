"""Windows: assigners, evictors and joins."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.core.durations import Time
from flinkray.datastream import (
    CoGroupFunction,
    JoinFunction,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.window import CountTrigger, PurgingTrigger
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.streaming.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkray.streaming.windowing.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    TimeEvictor,
    TimestampedValue,
)
from flinkray.streaming.windowing.window import TimeWindow, merged_groups
from flinkray.testing.manual_clock import ManualClock

WINDOW: Any = None


def difference(one: float, other: float) -> float:
    return other - one


@pytest.mark.parametrize(
    ("make", "given", "left"),
    [
        (lambda after: CountEvictor.of(2, after), [1, 2, 3], [2, 3]),
        (lambda after: CountEvictor.of(2, after), [1], [1]),
        (lambda after: CountEvictor.of(0, after), [1, 2], []),
        (lambda after: TimeEvictor.of(5, after), [1, 9, 4, 5], [9, 5]),
        (lambda after: DeltaEvictor.of(3, difference, after), [1, 2, 5, 4], [2, 5, 4]),
        (lambda after: DeltaEvictor.of(3, difference, after), [0, math.nan, 4], [math.nan, 4]),
        (lambda after: DeltaEvictor.of(3, difference, after), [], []),
    ],
)
def test_each_evictor_removes_its_records_before_or_after_the_window_function(
    make: Any, given: list[float], left: list[float]
) -> None:
    """Before the window function is called, or after the call. Records that cannot be compared
    stay."""
    elements = [TimestampedValue(v, 0 if math.isnan(v) else int(v)) for v in given]
    before: Evictor = make(False)
    after: Evictor = make(True)
    for evict, stays in [
        (before.evict_before, left), (before.evict_after, given),
        (after.evict_before, given), (after.evict_after, left),
    ]:  # fmt: skip
        assert [repr(element.value) for element in evict(elements, WINDOW)] == list(
            map(repr, stays)
        )


def test_time_evictor_keeps_records_without_a_timestamp() -> None:
    elements = [TimestampedValue("a", None), TimestampedValue("b", None)]
    assert TimeEvictor.of(5).evict_before(elements, WINDOW) == elements


def windows(assigner: Any, timestamp: int) -> list[tuple[int, int]]:
    return [tuple(window) for window in assigner.assign_windows(None, timestamp, None)]


def test_tumbling_window_begins_where_the_previous_window_ends() -> None:
    """WI-01"""
    assigner = TumblingEventTimeWindows.of(Time.milliseconds(5000))
    assert windows(assigner, 0) == windows(assigner, 4999) == [(0, 5000)]
    assert windows(assigner, 5000) == [(5000, 10000)]


def test_tumbling_windows_are_shifted_by_their_offset() -> None:
    """WI-01"""
    shifted = TumblingEventTimeWindows.of(Time.seconds(5), Time.milliseconds(100))
    assert windows(shifted, 100) == [(100, 5100)]
    back = TumblingEventTimeWindows.of(Time.seconds(5), Time.milliseconds(-100))
    assert windows(back, 0) == [(-100, 4900)]
    assert windows(back, 4900) == [(4900, 9900)]


@pytest.mark.parametrize(("size", "offset"), [(1000, 1000), (1000, -1000), (-1, 0), (0, 0)])
def test_offset_of_a_whole_window_or_a_negative_size_is_refused(size: int, offset: int) -> None:
    """WI-01"""
    with pytest.raises(ValueError, match=r"abs\(offset\) < size"):
        TumblingEventTimeWindows.of(Time.milliseconds(size), Time.milliseconds(offset))


@pytest.mark.parametrize(
    ("offset", "timestamp", "start"),
    [
        (0, -8, -14), (0, -7, -7), (0, -1, -7), (0, 0, 0), (0, 6, 0), (0, 7, 7),
        (3, -3, -4), (3, 3, 3), (-2, -4, -9), (-2, -2, -2), (-2, 12, 12),
    ],
)  # fmt: skip
def test_windows_before_the_epoch_begin_at_multiples_of_the_size_plus_offset(
    offset: int, timestamp: int, start: int
) -> None:
    """WI-03"""
    assert TimeWindow.get_window_start_with_offset(timestamp, offset, 7) == start
    assert windows(TumblingEventTimeWindows.of(7, offset), timestamp) == [(start, start + 7)]


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(-49, 49), st.integers(-1000, 1000))
def test_record_gets_all_sliding_windows_containing_its_time(
    size: int, slide: int, offset: int, timestamp: int
) -> None:
    if abs(offset) >= slide:
        return
    found = windows(SlidingEventTimeWindows.of(size, slide, offset), timestamp)
    expected = [
        (start, start + size)
        for start in range(timestamp, timestamp - size, -1)
        if (start - offset) % slide == 0
    ]
    assert found == expected


def test_record_without_a_timestamp_is_refused_by_event_time_windows() -> None:
    with pytest.raises(StreamError, match="assign_timestamps_and_watermarks"):
        windows(TumblingEventTimeWindows.of(5), MIN_TIMESTAMP)


def test_session_windows_that_touch_are_merged() -> None:
    """WI-04"""
    assert merged_groups([TimeWindow(6, 8), TimeWindow(9, 11), TimeWindow(8, 10)]) == [
        (TimeWindow(6, 11), [TimeWindow(6, 8), TimeWindow(8, 10), TimeWindow(9, 11)])
    ]
    assert len(merged_groups([TimeWindow(0, 2), TimeWindow(3, 4)])) == 2


def test_session_gap_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        EventTimeSessionWindows.with_gap(Time.milliseconds(0))
    with pytest.raises(StreamError, match="positive"):
        windows(EventTimeSessionWindows.with_dynamic_gap(lambda _: -1), 5)


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


def test_join_pairs_records_of_equal_key_and_window(env: Any) -> None:
    windows = joined(env, [("a", 1), ("a", 8), ("b", 2)], [("a", 3), ("a", 10), ("c", 1)], TEN)
    assert sorted(windows.apply(Pair()).execute_and_collect()) == [(1, 3, 2), (8, 3, 2)]


def test_records_are_joined_once_for_each_sliding_window_they_share(env: Any) -> None:
    windows = joined(env, [("a", 4)], [("a", 6)], SlidingEventTimeWindows.of(10, 5))
    results = windows.apply(lambda a, b: (a[1], b[1])).execute_and_collect()
    assert list(results) == [(4, 6)]
    windows = joined(env, [("a", 6)], [("a", 7)], SlidingEventTimeWindows.of(10, 5))
    assert list(windows.apply(lambda a, b: (a[1], b[1])).execute_and_collect()) == [(6, 7)] * 2


def test_session_of_a_join_includes_records_of_both_streams(env: Any) -> None:
    windows = joined(env, [("a", 1), ("a", 30)], [("a", 4), ("a", 7)],
                     EventTimeSessionWindows.with_gap(4))  # fmt: skip
    results = windows.apply(lambda a, b: (a[1], b[1])).execute_and_collect()
    assert sorted(results) == [(1, 4), (1, 7)]


def test_join_uses_its_evictor_and_trigger(env: Any) -> None:
    data = [("a", 1), ("a", 2)], [("a", 3)]
    windows = joined(env, *data, TEN).evictor(CountEvictor.of(1)).allowed_lateness(5)
    assert list(windows.apply(lambda a, b: 1).execute_and_collect()) == []
    windows = joined(env, *data, TEN).trigger(PurgingTrigger.of(CountTrigger.of(4)))
    assert list(windows.apply(lambda a, b: 1).execute_and_collect()) == []


class Sizes(CoGroupFunction[Any, Any, Any]):
    def co_group(self, first: Any, second: Any) -> Any:
        yield len(first), len(second)


def test_co_group_calls_the_function_for_keys_of_only_one_stream(env: Any) -> None:
    first, second = stream(env, ("a", 1), ("b", 2)), stream(env, ("b", 3), ("b", 4), ("c", 5))
    grouped = first.co_group(second).where(lambda v: v[0]).equal_to(lambda v: v[0]).window(TEN)
    assert sorted(grouped.apply(Sizes()).execute_and_collect()) == [(0, 1), (1, 0), (1, 2)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda w: w.trigger(CountTrigger.of(2)).columns(), "without triggers"),
        (lambda w: w.columns(), "names of columns"),
    ],
)
def test_error_about_an_invalid_join_of_columns_says_what_the_join_needs(
    env: Any, make: Any, message: str
) -> None:
    with pytest.raises(StreamError, match=message):
        make(joined(env, [("a", 1)], [("a", 1)], TEN))


def test_join_without_equal_to_or_window_assigner_is_refused(env: Any) -> None:
    with pytest.raises(StreamError, match="equal_to"):
        stream(env, ("a", 1)).join(stream(env, ("a", 1))).where(lambda v: v).window(TEN)
    with pytest.raises(TypeError, match="WindowAssigner"):
        joined(env, [], [], "10 s")
