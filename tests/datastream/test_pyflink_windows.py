"""Watermarks, windows and timers behave as PyFlink's (PYFLINK-API's PF cases)."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    Row,
    RuntimeExecutionMode,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.common import Time
from flinkray.datastream.functions import KeyedStateStore
from flinkray.datastream.state import ListStateDescriptor, ValueStateDescriptor
from flinkray.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkray.streaming.time.watermarks import PerElementWatermarks
from tests.datastream.pyflink_streams import (
    MONOTONOUS,
    PAIR,
    Collect,
    SecondColumn,
    keyed,
    results,
    stamped,
)

PER_ELEMENT = WatermarkStrategy.for_generator(PerElementWatermarks).with_timestamp_assigner(
    SecondColumn()
)


class StartEndCount(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        return [(key, window.start, window.end, len(list(elements)))]


def test_watermarks_are_periodic_so_a_late_record_still_merges_sessions(env: Any) -> None:
    """PF-01"""
    windows = keyed(env, 0, 8, 4).window(EventTimeSessionWindows.with_gap(Time.milliseconds(5)))
    assert results(windows.process(StartEndCount())) == [("hi", 0, 13, 3)]


def test_watermarks_per_element_make_records_late(env: Any) -> None:
    """PF-01"""
    env.set_parallelism(1)
    tag: OutputTag[Row] = OutputTag("late-data", type_info=Types.ROW([Types.STRING(), Types.INT()]))
    main = (
        keyed(env, 0, 8, 4, 6, strategy=PER_ELEMENT)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(5)))
        .allowed_lateness(0)
        .side_output_late_data(tag)
        .process(StartEndCount())
    )
    late: list[Any] = []
    main.get_side_output(tag).add_sink(Collect(late))
    assert results(main) == [("hi", 0, 5, 1), ("hi", 5, 10, 2)]
    assert late == [Row(f0="hi", f1=4)]


class OwnTime(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return int(element[1])


def test_sessions_that_touch_are_merged(env: Any) -> None:
    """PF-02"""
    static = keyed(env, 6, 8, 9).window(EventTimeSessionWindows.with_gap(Time.milliseconds(2)))
    assert results(static.process(StartEndCount())) == [("hi", 6, 11, 3)]
    dynamic = keyed(env, 1, 2, 3, 4).window(EventTimeSessionWindows.with_dynamic_gap(OwnTime()))
    assert results(dynamic.process(StartEndCount())) == [("hi", 1, 8, 4)]


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_union_of_streams_with_and_without_timestamps_keeps_each_timestamp(
    env: Any, mode: Any
) -> None:
    class Stamp(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield *value, ctx.timestamp()

    env.set_runtime_mode(mode).set_parallelism(2)
    plain = env.from_collection([("a", 1), ("b", 2)])
    stamped = env.from_collection([("a", 3), ("b", 4)]).assign_timestamps_and_watermarks(MONOTONOUS)
    both = plain.union(stamped).map(lambda value: value).key_by(lambda value: value[0])
    assert sorted(both.process(Stamp()).execute_and_collect()) == [
        ("a", 1, None), ("a", 3, 3), ("b", 2, None), ("b", 4, 4),
    ]  # fmt: skip


def test_first_sliding_window_begins_before_the_first_record(env: Any) -> None:
    """PF-04"""
    assigner = SlidingEventTimeWindows.of(Time.milliseconds(5), Time.milliseconds(2))
    windows = results(keyed(env, 1, 2, 3, 4, 5, 8, 9, 15).window(assigner).process(StartEndCount()))
    assert ("hi", -2, 3, 2) in windows
    assert sorted(window[3] for window in windows) == [1, 1, 2, 2, 2, 3, 4, 4]


class SetsTimer(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_end_of_input_fires_every_window_and_timer(env: Any, mode: Any) -> None:
    """PF-05, PF-22: the interval of the watermarks is longer than the program runs."""
    env.get_config().set_auto_watermark_interval(2000)
    env.set_runtime_mode(mode)
    assert results(keyed(env, 5, 7).process(SetsTimer())) == [("hi", 1005), ("hi", 1007)]
    windows = keyed(env, 1, 9).window(TumblingEventTimeWindows.of(Time.milliseconds(5)))
    assert results(windows.process(StartEndCount())) == [("hi", 0, 5, 1), ("hi", 5, 10, 1)]


class SumAndCount(AggregateFunction[Any, Any, Any]):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class OnlyElement(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (only,) = elements
        yield key, context.window().end, only


def test_window_function_after_reduce_or_aggregate_gets_one_element_per_window(env: Any) -> None:
    """PF-06"""
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(5))
    reduced = keyed(env, 1, 2, 8).window(tumbling).reduce(
        lambda a, b: (a[0], a[1] + b[1]), window_function=OnlyElement()
    )  # fmt: skip
    assert results(reduced) == [("hi", 10, ("hi", 8)), ("hi", 5, ("hi", 3))]
    aggregated = keyed(env, 1, 2, 8).window(tumbling).aggregate(
        SumAndCount(),
        window_function=OnlyElement(),
        accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()]),
        output_type=Types.TUPLE([Types.STRING(), Types.LONG(), PAIR]),
    )  # fmt: skip
    assert results(aggregated) == [("hi", 10, (8, 1)), ("hi", 5, (3, 2))]
    sessions = keyed(env, 1, 8, 4).window(EventTimeSessionWindows.with_gap(4))
    assert results(sessions.aggregate(SumAndCount())) == [(13, 3)]


class CountAll(ProcessAllWindowFunction[Any, Any, Any]):
    def process(self, context: Any, elements: Any) -> Any:
        yield len(list(elements))


class CountOf(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, len(list(elements))


def test_global_windows_with_a_purging_count_trigger_give_full_windows_only(env: Any) -> None:
    """PF-07"""
    windows = keyed(env, *range(7)).window(GlobalWindows.create())
    purging = windows.trigger(PurgingTrigger.of(CountTrigger.of(2)))
    assert results(purging.process(CountOf())) == [("hi", 2)] * 3


def test_window_all_reduces_all_records_of_a_session(env: Any) -> None:
    """PF-02"""
    windows = stamped(env, 6, 8, 9).window_all(EventTimeSessionWindows.with_gap(2))
    assert results(windows.reduce(lambda a, b: (a[0], a[1] + b[1]))) == [("hi", 23)]
    assert results(env.from_collection(range(5)).count_window_all(2).process(CountAll())) == [2, 2]


class OneValue(KeyedStateStore):
    """A store with which a program tests its window functions."""

    def get_state(self, state_descriptor: Any) -> Any:
        return state_descriptor.name


def test_custom_state_store_raises_an_error_for_kinds_of_state_it_does_not_override() -> None:
    store = OneValue()
    assert store.get_state(ValueStateDescriptor("v")) == "v"
    with pytest.raises(NotImplementedError, match="OneValue has no list state"):
        store.get_list_state(ListStateDescriptor("l"))
