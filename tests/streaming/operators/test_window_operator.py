"""The window operator: firing, lateness, merging, purging."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from flinkray.core.durations import Time
from flinkray.state.errors import StateError
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import ProcessWindowFunction, ReduceFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from flinkray.streaming.windowing.contents import (
    ListContents,
    Process,
    ReduceContents,
    TimestampedContents,
)
from flinkray.streaming.windowing.evictors import CountEvictor
from flinkray.streaming.windowing.operator import WindowOperator, WindowSpec
from flinkray.streaming.windowing.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)
from flinkray.streaming.windowing.window import TimeWindow
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_failure_is_told,
    assert_time_passes_and_the_end_adds_nothing,
    columns,
    failure,
    unlike_five,
)

LATE: OutputTag[Any] = OutputTag("late")


class SumSecond(ReduceFunction[Any]):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1]


class WithBounds(ProcessWindowFunction[Any, Any, Any, Any]):
    """(key, sum, start, end)"""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        return [(key, sum(value[1] for value in elements), window.start, window.end)]


def spec_of(assigner: Any, trigger: Trigger | None = None, **settings: Any) -> WindowSpec:
    settings.setdefault("contents", ReduceContents(SumSecond()))
    return WindowSpec(assigner, trigger or assigner.get_default_trigger(), **settings)


def harness(assigner: Any, trigger: Trigger | None = None, **settings: Any) -> OperatorHarness:
    operator = WindowOperator(spec_of(assigner, trigger, **settings), BY_FIRST)
    return OperatorHarness(operator, keyed=True, side_outputs=["late"])


def restored_from(h: OperatorHarness) -> OperatorHarness:
    operator: Any = h.operator
    return OperatorHarness(
        type(operator)(operator.spec, operator.keys), keyed=True, restore=h.snapshot()
    )


def sessions(gap: int = 3000, **settings: Any) -> OperatorHarness:
    return harness(
        EventTimeSessionWindows.with_gap(Time.milliseconds(gap)),
        contents=ListContents(),
        evaluation=Process(WithBounds(), True),
        **settings,
    )


def feed_sessions(h: OperatorHarness) -> None:
    for key, value, time in [
        ("key2", 1, 0), ("key2", 2, 1000), ("key2", 3, 2500),
        ("key1", 1, 10), ("key1", 2, 1000),
    ]:  # fmt: skip
        h.process((key, value), at=time)


def test_sessions_merge_and_results_have_the_last_timestamp_of_the_session() -> None:
    """WI-04, WI-05"""
    h = sessions()
    feed_sessions(h)
    restored = restored_from(h)
    for each in (h, restored):  # a snapshot and restore in the middle change nothing
        for value, time in [(4, 5501), (5, 6000), (5, 6000), (6, 6050)]:
            each.process(("key2", value), at=time)
        each.process(("key1", 3), at=2000)
        each.watermark(12000)
        output = each.output()
        assert output[-1] == Watermark(12000)
        assert sorted(output[:-1]) == [
            (("key1", 6, 10, 5000), 4999),
            (("key2", 6, 0, 5500), 5499),
            (("key2", 20, 5501, 9050), 9049),
        ]


def test_sessions_that_touch_are_merged_by_the_operator() -> None:
    """WI-04"""
    h = sessions(2)
    for time in (6, 9, 8):
        h.process(("a", 1), at=time)
    h.watermark(100)
    assert h.values() == [("a", 3, 6, 11)]


def test_session_of_length_zero_merges_into_a_session_that_covers_it() -> None:
    """WI-10: also into a session that ends where it is."""

    class PointSessions(EventTimeSessionWindows):
        def assign_windows(
            self, element: Any, timestamp: int, context: Any
        ) -> Collection[TimeWindow]:
            return (TimeWindow(timestamp, timestamp + (0 if element[1] == 33 else 3000)),)

    h = harness(
        PointSessions.with_gap(Time.seconds(3)),
        contents=ListContents(),
        evaluation=Process(WithBounds(), True),
    )
    for key, value, time in [
        ("key2", 1, 0), ("key2", 33, 1000), ("key2", 33, 2500),
        ("key1", 1, 10), ("key1", 2, 1000), ("key1", 33, 2500),
    ]:  # fmt: skip
        h.process((key, value), at=time)
    h.watermark(12000)
    assert sorted(h.values()) == [("key1", 36, 10, 4000), ("key2", 67, 0, 3000)]


def test_late_record_fires_its_purged_window_again_until_cleanup() -> None:
    """WI-06"""
    h = harness(
        TumblingEventTimeWindows.of(Time.seconds(2)),
        PurgingTrigger.of(EventTimeTrigger.create()),
        allowed_lateness=500,
        late_tag=LATE,
    )
    h.process(("key2", 1), at=500)
    h.process(("key2", 1), at=1900)
    h.watermark(2300)
    assert h.records() == [(("key2", 2), 1999)]
    h.process(("key2", 1), at=1997)
    assert h.records() == [(("key2", 1), 1999)]
    h.watermark(6000)
    h.process(("key2", 1), at=1998)
    assert h.records() == []
    assert h.side("late") == [("key2", 1)]


def test_record_is_late_only_if_its_merged_session_is_late() -> None:
    """WI-08"""
    h = sessions(late_tag=LATE)
    h.process(("key2", 1), at=11600)
    h.watermark(14600)
    assert h.values() == [("key2", 1, 11600, 14600)]
    h.process(("key2", 1), at=10000)
    assert h.side("late") == [("key2", 1)]
    h.process(("key2", 2), at=14500)
    h.watermark(20000)
    assert h.values() == [("key2", 2, 14500, 17500)]


def test_record_behind_the_watermark_that_extends_an_open_session_is_not_late() -> None:
    """WI-08"""
    h = sessions(late_tag=LATE)
    h.process(("a", 1), at=5000)
    h.watermark(6000)
    h.process(("a", 2), at=2500)  # [2500, 5500) has ended, [2500, 8000) has not
    h.watermark(9000)
    assert h.side("late") == []
    assert h.values() == [("a", 3, 2500, 8000)]


def test_global_windows_have_no_timers_and_processing_windows_ignore_lateness() -> None:
    """WI-09"""
    everything = harness(GlobalWindows.create(), CountTrigger.of(2))
    everything.process(("a", 1), ("a", 2), ("a", 3))
    operator: Any = everything.operator
    assert operator.timers.number_of_event_time_timers() == 0
    assert operator.timers.number_of_processing_time_timers() == 0
    assert everything.records() == [(("a", 3), MAX_TIMESTAMP)]
    processing = harness(TumblingProcessingTimeWindows.of(10), allowed_lateness=1000)
    processing.process(("a", 1), ("a", 2))
    processing.processing_time(9)
    assert processing.records() == [(("a", 3), 9)]
    assert not len(processing.operator.table)  # type: ignore[attr-defined]


def test_processing_time_session_ends_when_no_record_comes_for_the_gap() -> None:
    h = harness(ProcessingTimeSessionWindows.with_gap(Time.milliseconds(3)))
    h.process(("a", 1))
    h.processing_time(1)
    h.process(("a", 2))
    h.processing_time(2)
    assert h.values() == []
    h.processing_time(3)
    assert h.values() == [("a", 3)]


def test_continuous_trigger_fires_at_multiples_of_its_interval_after_a_merge_too() -> None:
    """WI-11"""
    h = sessions(trigger=ContinuousEventTimeTrigger.of(Time.seconds(2)))
    feed_sessions(h)
    restored = restored_from(h)
    for each in (h, restored):
        each.watermark(2000)
        assert sorted(each.records()) == [
            (("key1", 3, 10, 4000), 3999), (("key2", 6, 0, 5500), 5499),
        ]  # fmt: skip
        each.process(("key2", 4), at=4000)
        each.watermark(4000)
        assert sorted(each.records()) == [
            (("key1", 3, 10, 4000), 3999), (("key2", 10, 0, 7000), 6999),
        ]  # fmt: skip
        each.watermark(8000)
        assert sorted(each.records()) == [(("key2", 10, 0, 7000), 6999)] * 2


class Scripted(Trigger):
    """Answers what the record's value says, and takes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        self.calls.append(("element", tuple(window)))
        return getattr(TriggerResult, element[2])  # type: ignore[no-any-return]

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        self.calls.append(("merge", tuple(window)))

    def clear(self, window: Any, ctx: Any) -> None:
        self.calls.append(("clear", tuple(window)))


def scripted_record(value: Any, result: str) -> tuple[str, Any, str]:
    return "a", value, result


class SumScripted(ReduceFunction[Any]):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return "a", value1[1] + value2[1], ""


def test_trigger_result_fire_emits_and_purge_clears_the_window() -> None:
    """WI-12"""
    h = harness(TumblingEventTimeWindows.of(10), Scripted(), contents=ReduceContents(SumScripted()))
    emitted = []
    for value, result in [
        (1, "CONTINUE"), (2, "FIRE"), (4, "FIRE_AND_PURGE"), (8, "PURGE"), (16, "FIRE"),
    ]:  # fmt: skip
        h.process(scripted_record(value, result), at=0)
        emitted.append([out[1] for out in h.values()])
    assert emitted == [[], [3], [7], [], [16]]


def test_purged_session_window_does_not_fire_but_still_merges() -> None:
    """WI-12"""
    h = harness(
        EventTimeSessionWindows.with_gap(10),
        PurgingTrigger.of(CountTrigger.of(1)),
        contents=ListContents(),
        evaluation=Process(WithBounds(), True),
    )
    h.process(("a", 1), at=0)
    assert h.values() == [("a", 1, 0, 10)]
    h.process(("a", 2), at=5)  # merges with the emptied window
    assert h.values() == [("a", 2, 0, 15)]
    h.watermark(50)
    assert h.values() == []
    assert not len(h.operator._in_flight)  # type: ignore[attr-defined]


class Numbers(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return [[value[1] for value in elements]]


@pytest.mark.parametrize(
    ("after", "expected"), [(False, [[1], [2], [4]]), (True, [[1], [1, 2], [2, 4]])]
)
def test_evicted_records_are_absent_at_the_next_firing(
    after: bool, expected: list[list[int]]
) -> None:
    h = harness(
        TumblingEventTimeWindows.of(10),
        Scripted(),
        contents=TimestampedContents(),
        evaluation=Process(Numbers(), True),
        evictor=CountEvictor.of(1, after),
    )
    for value in (1, 2, 4):
        h.process(scripted_record(value, "FIRE"), at=0)
    assert h.values() == expected


def test_record_of_a_window_that_the_watermark_just_ended_is_late() -> None:
    h = harness(TumblingEventTimeWindows.of(10), contents=ListContents(), late_tag=LATE)
    h.watermark(9)
    h.process(("a", 1), at=9)
    assert h.side("late") == [("a", 1)]
    assert not len(h.operator.table)  # type: ignore[attr-defined]


def test_session_window_of_a_late_record_is_not_stored() -> None:
    h = sessions(gap=10, late_tag=LATE)
    h.watermark(100)
    h.process(("a", 1), at=50)
    assert h.side("late") == [("a", 1)]
    assert not len(h.operator._in_flight)  # type: ignore[attr-defined]


def test_each_window_has_its_own_copy_of_a_mutable_record() -> None:
    h = harness(SlidingEventTimeWindows.of(10, 5), Scripted(), contents=ListContents())
    h.process(scripted_record(["one"], "CONTINUE"), at=7)
    table: Any = h.operator.table  # type: ignore[attr-defined]
    first, second = (table.get(place)[0] for place in table.places())
    assert first == second
    assert first[1] is not second[1]


def test_session_windows_merge_before_the_trigger_sees_their_new_record() -> None:
    """WI-13"""
    trigger = Scripted()
    h = harness(
        EventTimeSessionWindows.with_gap(10), trigger, contents=ReduceContents(SumScripted())
    )
    h.process(scripted_record(1, "CONTINUE"), at=0)
    h.process(scripted_record(2, "CONTINUE"), at=20)
    h.process(scripted_record(4, "CONTINUE"), at=10)
    assert trigger.calls == [
        ("element", (0, 10)),
        ("element", (20, 30)),
        ("merge", (0, 30)),
        ("clear", (0, 10)),
        ("clear", (20, 30)),
        ("element", (0, 30)),
    ]
    operator: Any = h.operator
    assert operator.timers.number_of_event_time_timers() == 1
    assert [operator.table.get(place) for place in operator.table.places()] == [("a", 7, "")]


def test_trigger_that_cannot_merge_is_refused_for_session_windows() -> None:
    """WI-13"""

    class Alone(Scripted):
        def can_merge(self) -> bool:
            return False

    with pytest.raises(StreamError, match="Alone cannot be used with windows that merge"):
        spec_of(EventTimeSessionWindows.with_gap(10), Alone())


def test_merging_into_a_window_that_has_ended_raises_an_error() -> None:
    """WI-13"""

    class Shrinking(EventTimeSessionWindows):
        def merge_windows(self, windows: Any, callback: Any) -> None:
            several = list(windows)
            if len(several) > 1:
                callback.merge(several, TimeWindow(0, 5))

    h = harness(Shrinking.with_gap(100))
    h.process(("a", 1), at=0)
    h.watermark(50)
    with pytest.raises(StreamError, match="has ended already"):
        h.process(("a", 1), at=60)


def test_record_that_is_assigned_no_window_is_late_by_its_own_timestamp() -> None:
    """WI-14"""

    class Nowhere(WindowAssigner):
        def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
            return ()

        def get_default_trigger(self, env: Any = None) -> Trigger:
            return EventTimeTrigger()

        def is_event_time(self) -> bool:
            return True

    h = harness(Nowhere(), late_tag=LATE, allowed_lateness=10)
    h.watermark(100)
    h.process(("a", 1), at=105)
    h.process(("a", 2), at=91)
    assert h.side("late") == []
    h.process(("a", 3), at=90)
    assert h.side("late") == [("a", 3)]
    assert h.values() == []


class PerWindowCount(ProcessWindowFunction[Any, Any, Any, Any]):
    """Counts its firings per window and per key."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        from flinkray.state import ValueStateDescriptor

        counts: list[int] = []
        for store in (context.window_state(), context.global_state()):
            state = store.get_state(ValueStateDescriptor(f"fired-{len(counts)}", default_value=0))
            state.update(state.value() + 1)
            counts.append(state.value())
        yield (key, *counts)

    def clear(self, context: Any) -> None:
        from flinkray.state import ValueStateDescriptor

        context.window_state().get_state(ValueStateDescriptor("fired-0", default_value=0)).clear()


def test_window_state_is_kept_per_window_and_global_state_per_key() -> None:
    h = harness(
        TumblingEventTimeWindows.of(10),
        CountTrigger.of(1),
        contents=ListContents(),
        evaluation=Process(PerWindowCount(), True),
    )
    h.process(("a", 1), ("a", 1), ("a", 1), ("b", 1), at=[1, 2, 11, 3])
    assert h.values() == [("a", 1, 1), ("a", 2, 2), ("a", 1, 3), ("b", 1, 1)]
    h.watermark(9)
    assert h.operator.keyed_state.number_of_entries("fired-0") == 1  # type: ignore[union-attr]


def test_window_state_is_refused_for_merging_windows() -> None:
    """State that a function kept for a window was lost with each merge."""
    h = harness(
        EventTimeSessionWindows.with_gap(Time.milliseconds(10)),
        contents=ListContents(),
        evaluation=Process(PerWindowCount(), True),
    )
    h.process(("a", 1), at=1)
    with pytest.raises(StreamError, match=r"no state of windows that merge.*global_state"):
        h.watermark(10_000)


@pytest.mark.parametrize("purging", [False, True])
def test_state_of_a_trigger_is_removed_with_its_window(purging: bool) -> None:
    """WI-12: otherwise each window that ends before its trigger fires leaves state for ever."""
    counting = CountTrigger.of(3)
    h = harness(
        TumblingEventTimeWindows.of(10), PurgingTrigger.of(counting) if purging else counting
    )
    h.process(("a", 1), ("a", 1), ("b", 1), ("a", 1), at=[1, 2, 3, 11])
    state = h.operator.keyed_state
    assert state is not None
    assert state.number_of_entries("trigger-count") == 3
    h.watermark(9)
    assert state.number_of_entries("trigger-count") == 1
    h.watermark(19)
    assert state.number_of_entries("trigger-count") == 0
    assert h.values() == []


def test_function_gets_columns_as_rows_with_their_keys_and_timestamps() -> None:
    spec = spec_of(
        EventTimeSessionWindows.with_gap(3),
        contents=ListContents(),
        evaluation=Process(Rows(), True),
    )
    h = OperatorHarness(WindowOperator(spec, Keys("k")), keyed=True)
    h.process_columns(columns([1, 2, 3], k=["a", "b", "a"], v=[1, 2, 4]))
    h.watermark(100)
    assert sorted(h.records()) == [(("a", [1, 4]), 5), (("b", [2]), 4)]


class Rows(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, [row.v for row in elements]


def test_window_function_is_opened_and_closed() -> None:
    calls: list[Any] = []

    class Noted(WithBounds):
        def open(self, runtime_context: Any) -> None:
            calls.append(runtime_context.get_index_of_this_subtask())

        def close(self) -> None:
            calls.append("closed")

    spec = spec_of(
        GlobalWindows.create(), CountTrigger.of(9), contents=ListContents(),
        evaluation=Process(Noted(), True),
    )  # fmt: skip
    h = OperatorHarness(WindowOperator(spec, BY_FIRST), keyed=True, subtask_index=1, parallelism=2)
    h.operator.close()
    assert calls == [1, "closed"]


def test_window_function_that_was_not_opened_is_not_closed() -> None:
    calls: list[Any] = []

    class Noted(WithBounds):
        def close(self) -> None:
            calls.append("closed")

    class Failing(ListContents):
        def table(self, state: Any) -> Any:
            raise StateError("it was stored as something else")

    spec = spec_of(
        GlobalWindows.create(), CountTrigger.of(9), contents=Failing(),
        evaluation=Process(Noted(), True),
    )  # fmt: skip
    with pytest.raises(StateError, match="something else"):
        OperatorHarness(WindowOperator(spec, BY_FIRST), keyed=True)
    assert calls == []


def test_watermarks_pass_through_and_the_end_of_input_fires_no_window() -> None:
    h = sessions()
    h.process(("a", 1), at=50_000)
    assert_time_passes_and_the_end_adds_nothing(h)


class SumUnlikeFive(ReduceFunction[Any]):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return unlike_five(value2)


class Unlike(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return [unlike_five(value) for value in elements]


def test_error_on_a_record_names_operator_subtask_and_record() -> None:
    contents = ReduceContents(SumUnlikeFive())
    spec = spec_of(EventTimeSessionWindows.with_gap(10), contents=contents)
    operator = WindowOperator(spec, BY_FIRST)
    values = ("a", 1), ("a", 4), ("a", 5), ("a", 6)
    assert_failure_is_told(operator, *values, at=[1, 2, 3, 4], record=("a", 5), keyed=True)


def test_error_when_a_window_fires_names_window_and_key() -> None:
    def act(h: OperatorHarness) -> None:
        h.process(("a", 5), at=1)
        h.watermark(100)

    spec = spec_of(
        EventTimeSessionWindows.with_gap(10), contents=ListContents(),
        evaluation=Process(Unlike(), True),
    )  # fmt: skip
    error = failure(WindowOperator(spec, BY_FIRST), act, keyed=True)
    assert error.occasion == "window TimeWindow(start=1, end=11) of key 'a'"
