"""Batch mode: keyed operators are given one key after the other, in bounded memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flinkray.datastream import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Configuration, Time
from flinkray.datastream.state import MapStateDescriptor, ValueStateDescriptor
from flinkray.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
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


def test_batch_mode_processes_records_and_timers_of_one_key_before_the_next_key(env: Any) -> None:
    env.set_parallelism(1)
    results = keyed(env, ("a", 3), ("b", 2), ("a", 1), ("b", 9)).process(Timers())
    assert list(results.execute_and_collect()) == [
        ("a", "record", 1), ("a", "record", 3), ("a", "timer", 101, 3),
        ("a", "timer", MAX_TIMESTAMP - 1, 3),
        ("b", "record", 2), ("b", "record", 9), ("b", "timer", 102, 9),
        ("b", "timer", MAX_TIMESTAMP - 1, 9),
    ]  # fmt: skip


class Number(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def map(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return value[0], self.count.value()


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


def test_each_key_has_its_own_global_window_in_batch_mode(env: Any) -> None:
    windows = env.from_collection("aababab").key_by(lambda v: v).window(GlobalWindows.create())
    firing = windows.trigger(CountTrigger.of(3)).process(Size())
    assert sorted(firing.execute_and_collect()) == [("a", 3), ("b", 3)]


class Size(Bounds):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, len(list(elements))


class Both(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        before, after = self.last.value(), f"1:{value[1]}"
        self.last.update(after)
        yield ctx.get_current_key(), before, after

    def process_element2(self, value: Any, ctx: Any) -> Any:
        before, after = self.last.value(), f"2:{value[1]}"
        self.last.update(after)
        yield ctx.get_current_key(), before, after


def test_two_inputs_are_processed_in_order_of_time_in_batch_mode(env: Any) -> None:
    first, second = keyed(env, ("a", 1), ("a", 5), ("b", 4)), keyed(env, ("a", 3), ("b", 2))
    results = sorted(first.connect(second).process(Both()).execute_and_collect(), key=str)
    assert results == [
        ("a", "1:1", "2:3"), ("a", "2:3", "1:5"), ("a", None, "1:1"),
        ("b", "2:2", "1:4"), ("b", None, "2:2"),
    ]  # fmt: skip


class Pairs(ProcessJoinFunction[Any, Any, Any]):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        yield left[1], right[1]


def test_interval_join_in_batch_mode_finds_all_pairs(env: Any) -> None:
    """WI-15"""
    left, right = keyed(env, ("a", 9), ("a", 1)), keyed(env, ("a", 2), ("a", 8), ("b", 1))
    joined = left.interval_join(right).between(-1, 1).process(Pairs())
    assert sorted(joined.execute_and_collect()) == [(1, 2), (9, 8)]


RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")
UNKNOWN: OutputTag[Any] = OutputTag("unknown")


class Rules(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        factor = ctx.get_broadcast_state(RULES).get(value[0])
        yield (UNKNOWN, value) if factor is None else value[1] * factor

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)


def test_broadcast_side_is_processed_before_all_keyed_records(env: Any) -> None:
    rules = env.from_collection([("a", 10), ("b", 100)]).broadcast(RULES)
    results = keyed(env, ("a", 1), ("b", 2), ("c", 3)).connect(rules).process(Rules())
    assert sorted(results.execute_and_collect()) == [10, 200]


class Enrich(BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value[0], ctx.get_broadcast_state(RULES).get(value[0])

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)


@pytest.mark.parametrize("memory", ["1kb", "1mb"])
def test_broadcast_side_is_processed_before_all_records_without_keys(env: Any, memory: str) -> None:
    """Also if one source feeds both sides, and if the records do not fit into memory."""
    env.configure(Configuration().set_string("execution.sorted-inputs.memory", memory))
    everything = env.from_collection([(number % 10, number) for number in range(50_000)])
    rules = everything.filter(lambda value: value[1] >= 49_990).broadcast(RULES)
    results = everything.rebalance().connect(rules).process(Enrich()).execute_and_collect()
    assert sorted(results) == [(n, 49_990 + n) for n in range(10) for _ in range(5_000)]


def test_memory_for_sorting_is_configured_by_the_option_name_of_flink(env: Any) -> None:
    env.configure(Configuration().set_string("execution.sorted-inputs.memory", "1kb"))
    keyed(env, ("a", 1)).process(Timers())
    (operator,) = [
        node.operator
        for node in env.get_stream_graph().nodes
        if isinstance(node.operator, SortedInputsOperator)
    ]
    assert operator._memory == 1024


def test_error_in_batch_mode_names_the_operator_and_the_record(env: Any) -> None:
    def fails(value: Any) -> Any:
        raise ValueError("no")

    class Fails(Number):
        def map(self, value: Any) -> Any:
            return fails(value)

    stream = keyed(env, ("a", 1)).map(Fails()).name("failing")
    with pytest.raises(
        Exception, match=r"(?s)ValueError: no.*operator 'failing'.*record \('a', 1\)"
    ):
        list(stream.execute_and_collect())
