"""Batch mode: keyed operators are given one key after the other, in bounded memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flinkray.datastream import (
    KeyedProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Configuration, Time
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkray.streaming.operators.batch_mode import SortedInputsOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from flinkray.testing.manual_clock import ManualClock

BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda value, _: value[1]
)


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment(clock=ManualClock()).set_parallelism(2)
    return env.set_runtime_mode(RuntimeExecutionMode.BATCH)


def stream(env: Any, *values: Any) -> Any:
    return env.from_collection(list(values)).assign_timestamps_and_watermarks(BY_TIME)


def keyed(env: Any, *values: Any) -> Any:
    return stream(env, *values).key_by(lambda v: v[0])


# --- sorting --------------------------------------------------------------------------------------


def test_values_of_local_classes_are_sorted_in_files(env: Any) -> None:
    """PF-19"""

    class Custom:
        def __init__(self, number: int) -> None:
            self.number = number

    env.configure(Configuration().set_string("execution.sorted-inputs.memory", "1b"))
    stream = env.from_collection([Custom(n) for n in range(5)]).key_by(lambda v: v.number % 2)

    class Numbers(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            assert isinstance(value, Custom)
            yield value.number

    assert sorted(stream.process(Numbers()).execute_and_collect()) == [0, 1, 2, 3, 4]


# --- functions ------------------------------------------------------------------------------------


class Timers(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))
        self.keys: set[Any] = set()

    def process_element(self, value: Any, ctx: Any) -> Any:
        assert ctx.timer_service().current_watermark() == MIN_TIMESTAMP
        key = ctx.get_current_key()
        if self.seen.value() is None:
            assert key not in self.keys
            self.keys.add(key)
            ctx.timer_service().register_event_time_timer(value[1] + 100)
            ctx.timer_service().register_processing_time_timer(MAX_TIMESTAMP - 1)
        self.seen.update(value[1])
        yield key, "record", value[1]

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.timer_service().current_watermark() == MAX_TIMESTAMP
        yield ctx.get_current_key(), "timer", timestamp, self.seen.value()


class Bounds(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, context.window().end, len(list(elements))


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(Time.milliseconds(10)),
        SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(4)),
        EventTimeSessionWindows.with_gap(Time.milliseconds(3)),
    ],
)
def test_windows_in_batch_mode_equal_those_in_streaming_mode(env: Any, assigner: Any) -> None:
    chance = random.Random(1)
    data = [(chance.choice("abc"), chance.randrange(100)) for _ in range(200)]
    results = {}
    for mode in (RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING):
        env.set_runtime_mode(mode)
        windows = keyed(env, *data).window(assigner).process(Bounds())
        results[mode] = sorted(windows.execute_and_collect())
    assert results[RuntimeExecutionMode.BATCH] == results[RuntimeExecutionMode.STREAMING]
    assert len(results[RuntimeExecutionMode.BATCH]) > 20


class Pairs(ProcessJoinFunction[Any, Any, Any]):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        yield left[1], right[1]


def test_interval_join_in_batch_mode_finds_all_pairs(env: Any) -> None:
    """WI-15"""
    left, right = keyed(env, ("a", 9), ("a", 1)), keyed(env, ("a", 2), ("a", 8), ("b", 1))
    joined = left.interval_join(right).between(-1, 1).process(Pairs())
    assert sorted(joined.execute_and_collect()) == [(1, 2), (9, 8)]


def test_memory_for_sorting_is_configured_by_the_option_name_of_flink(env: Any) -> None:
    env.configure(Configuration().set_string("execution.sorted-inputs.memory", "1kb"))
    keyed(env, ("a", 1)).process(Timers())
    (operator,) = [
        node.operator
        for node in env.get_stream_graph().nodes
        if isinstance(node.operator, SortedInputsOperator)
    ]
    assert operator._memory == 1024
