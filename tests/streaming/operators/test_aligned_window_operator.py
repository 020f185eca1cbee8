"""Tumbling and sliding windows of event time, the short way, which gives the same results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import ProcessWindowFunction, ReduceFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.windowing.aligned import AlignedWindowOperator, make_window_operator
from flinkray.streaming.windowing.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flinkray.streaming.windowing.contents import ListContents, PassOn, Process, ReduceContents
from flinkray.streaming.windowing.operator import WindowOperator, WindowSpec
from flinkray.streaming.windowing.triggers import CountTrigger
from flinkray.streaming.windowing.window import TimeWindow
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)

LATE: OutputTag[Any] = OutputTag("late")
TEN = TumblingEventTimeWindows.of(10)


class SumSecond(ReduceFunction[Any]):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1]


def spec_of(assigner: Any, **settings: Any) -> WindowSpec:
    settings.setdefault("contents", ReduceContents(SumSecond()))
    return WindowSpec(assigner, assigner.get_default_trigger(), **settings)


def harness(assigner: Any, restore: Any = None, **settings: Any) -> OperatorHarness:
    operator = AlignedWindowOperator(spec_of(assigner, **settings), BY_FIRST)
    return OperatorHarness(operator, keyed=True, side_outputs=["late"], restore=restore)


class FromTen(TumblingEventTimeWindows):
    """Windows that are not those of its size."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return [TimeWindow(10, 20)]


class FromTwenty(SlidingEventTimeWindows):
    def windows_of(self, timestamp: int) -> list[TimeWindow]:
        return [TimeWindow(20, 30)]


@pytest.mark.parametrize("assigner", [FromTen(5, 5, 0), FromTwenty(10, 5, 0)])
def test_custom_window_assigner_uses_the_general_window_operator(assigner: Any) -> None:
    assert type(make_window_operator(spec_of(assigner), BY_FIRST)) is WindowOperator
    assert isinstance(make_window_operator(spec_of(TEN), BY_FIRST), AlignedWindowOperator)


def test_late_record_between_windows_goes_to_the_late_side_output() -> None:
    h = harness(SlidingEventTimeWindows.of(3, 5), late_tag=LATE)
    h.watermark(100)
    h.process(("a", 1), at=1)
    h.process(("a", 2), at=99)  # between windows
    h.process(("a", 3), at=104)  # so, too, and in time
    assert h.side("late") == [("a", 1), ("a", 2)]


records = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(0, 3)), max_size=40
)


def test_dropped_late_records_are_counted() -> None:
    h = harness(TumblingEventTimeWindows.of(10))
    h.watermark(100)
    h.process(("a", 1), ("a", 2), at=[5, 7])
    assert h.operator.number_late_records_dropped.get_count() == 2  # type: ignore[attr-defined]


def test_largest_allowed_lateness_does_not_overflow_the_cleanup_time() -> None:
    """WI-09"""
    h = harness(TumblingEventTimeWindows.of(1000), allowed_lateness=MAX_TIMESTAMP - 500)
    window = TimeWindow(0, 1000)
    operator: Any = h.operator
    assert operator.cleanup_time(window) == MAX_TIMESTAMP
    h.process(("a", 1), at=10)
    assert operator.timers.number_of_event_time_timers() == 1  # for firing; none for cleaning up
    h.watermark(5000)
    assert h.values() == [("a", 1)]
    assert len(operator.table) == 1


@settings(deadline=None)
@given(
    records, st.integers(1, 12), st.integers(1, 12), st.integers(0, 8), st.booleans(), st.booleans()
)
def test_aligned_and_general_window_operator_have_equal_results(
    events: list[tuple[str, int, int]],
    size: int,
    slide: int,
    lateness: int,
    as_lists: bool,
    can_change: bool,
) -> None:
    """WI-05, WI-06, WI-07"""
    outputs = []
    for make in (AlignedWindowOperator, WindowOperator):
        contents = ListContents() if as_lists else ReduceContents(SumSecond())
        settings: Any = {"contents": contents, "allowed_lateness": lateness, "late_tag": LATE}

        def begun(restore: Any = None, make: Any = make, settings: Any = settings) -> Any:
            operator = make(spec_of(SlidingEventTimeWindows.of(size, slide), **settings), BY_FIRST)
            return OperatorHarness(operator, keyed=True, side_outputs=["late"], restore=restore)

        h = begun()
        result: list[Any] = []
        watermark = -1
        for number, (key, time, then) in enumerate(events):
            mutable = can_change and number % 2
            h.process([key, number] if mutable else (key, number), (key, 100), at=[time, time + 1])
            if then == 0 and time > watermark:
                watermark = time
                h.watermark(time)
            fired = h.output()
            result.append((sorted(fired, key=str), h.side("late")))
            if then == 1:
                h.snapshot(number)
            elif then == 2 and not lateness:
                h = begun(h.snapshot(number))
                watermark = -1
        h.watermark(MAX_TIMESTAMP)
        result.append(sorted(h.output(), key=str))
        outputs.append(result)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("keys", "stored"), [(10, 0), (5000, 5000)])
def test_many_combined_records_go_into_the_table_after_their_block(keys: int, stored: int) -> None:
    h = harness(TEN)
    h.process(*[(key, 1) for key in range(keys)], at=5)
    operator: Any = h.operator
    assert len(operator.table) == stored
    h.watermark(9)
    assert sorted(h.values()) == [(key, 1) for key in range(keys)]
    assert not len(operator.table)


def test_results_of_windows_keep_their_order_from_portion_to_portion() -> None:
    h = harness(TEN, evaluation=PassOn())
    records = [(key, 1) for key in range(10)]
    h.process(*records, *records, *records, at=[5] * 10 + [15] * 10 + [25] * 10)
    h.watermark(100)
    expected = [(record, end) for end in (9, 19, 29) for record in records]
    assert [(it.value, it.timestamp) for it in h.output() if type(it) is Record] == expected
    assert [len(batch) for batch in h.batches()] == [16, 14]


def test_results_fired_by_one_watermark_are_one_batch() -> None:
    h = harness(TumblingEventTimeWindows.of(10), evaluation=PassOn())
    h.process(("a", 1), ("b", 2), ("a", 3), at=[1, 2, 15])
    h.watermark(100)
    assert [len(batch) for batch in h.batches()] == [3]
    assert [type(e) for e in h.output()] == [Record, Record, Record, Watermark]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (spec_of(TEN), AlignedWindowOperator),
        (spec_of(SlidingEventTimeWindows.of(10, 5)), AlignedWindowOperator),
        (spec_of(TumblingProcessingTimeWindows.of(10)), WindowOperator),
        (spec_of(EventTimeSessionWindows.with_gap(10)), WindowOperator),
        (WindowSpec(TEN, CountTrigger.of(2), ReduceContents(SumSecond())), WindowOperator),
    ],
)
def test_aligned_operator_is_used_for_default_event_time_windows(
    spec: WindowSpec, kind: type[WindowOperator]
) -> None:
    assert type(make_window_operator(spec, BY_FIRST)) is kind


def test_function_gets_columns_as_rows_with_their_keys_and_timestamps() -> None:
    contents = ReduceContents(lambda a, b: Row(k=a.k, v=a.v + b.v))
    h = OperatorHarness(
        AlignedWindowOperator(spec_of(TEN, contents=contents), Keys("k")), keyed=True
    )
    h.process_columns(columns([1, 2, 3], k=["a", "b", "a"], v=[1, 2, 4]))
    h.watermark(9)
    assert h.records() == [(Row(k="a", v=5), 9), (Row(k="b", v=2), 9)]


def test_aligned_window_operator_refuses_records_without_timestamps() -> None:
    with pytest.raises(StreamError, match="no timestamps"):
        harness(TEN).process(("a", 1))


def test_open_windows_fire_after_a_restore() -> None:
    h = harness(TEN, allowed_lateness=5)
    h.process(("a", 1), ("b", 2), ("a", 4), at=[1, 2, 13])
    restored = harness(TEN, h.snapshot(), allowed_lateness=5)
    restored.process(("a", 8), at=9)
    restored.watermark(9)
    assert sorted(restored.records()) == [(("a", 9), 9), (("b", 2), 9)]
    restored.watermark(30)
    assert restored.records() == [(("a", 4), 19)]
    operator: Any = restored.operator
    assert not len(operator.table)


def test_watermarks_pass_through_and_the_end_of_input_fires_no_window() -> None:
    h = harness(TEN)
    h.process(("a", 1), at=50)
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_on_a_record_names_operator_subtask_and_record() -> None:
    contents = ReduceContents(lambda a, b: unlike_five(b))
    operator = AlignedWindowOperator(spec_of(TEN, contents=contents), BY_FIRST)
    values = ("a", 1), ("a", 4), ("a", 5), ("a", 6)
    assert_failure_is_told(operator, *values, at=1, record=("a", 5), keyed=True)


class Unlike(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return [unlike_five(value) for value in elements]


def test_error_when_a_window_fires_names_window_and_key() -> None:
    def act(h: OperatorHarness) -> None:
        h.process(("a", 5), at=1)
        h.watermark(100)

    spec = spec_of(TEN, contents=ListContents(), evaluation=Process(Unlike(), True))
    error = failure(AlignedWindowOperator(spec, BY_FIRST), act, keyed=True)
    assert error.occasion == "window TimeWindow(start=0, end=10) of key 'a'"
