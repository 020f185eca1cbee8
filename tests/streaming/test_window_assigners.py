"""Assigners: which windows a time belongs to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.core.durations import Time
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.streaming.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkray.streaming.windowing.window import TimeWindow, merged_groups


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
