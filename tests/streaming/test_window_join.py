"""Joins of two streams in windows: by functions and on columns, with the same results."""

from __future__ import annotations

from typing import Any

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
from flinkray.streaming.errors import StreamError
from flinkray.testing.manual_clock import ManualClock

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
def test_invalid_join_of_columns_raises_an_error_that_says_what_it_needs(
    env: Any, make: Any, message: str
) -> None:
    with pytest.raises(StreamError, match=message):
        make(joined(env, [("a", 1)], [("a", 1)], TEN))


def test_join_without_equal_to_or_window_assigner_is_refused(env: Any) -> None:
    with pytest.raises(StreamError, match="equal_to"):
        stream(env, ("a", 1)).join(stream(env, ("a", 1))).where(lambda v: v).window(TEN)
    with pytest.raises(TypeError, match="WindowAssigner"):
        joined(env, [], [], "10 s")
