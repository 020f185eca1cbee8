"""Behaviours of PyFlink that are easy to miss (PYFLINK-API's PF cases)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkray.core.errors import ConfigurationError
from flinkray.datastream import (
    AggregateFunction,
    CheckpointingMode,
    CoFlatMapFunction,
    Configuration,
    EmbeddedRocksDBStateBackend,
    ExecutionConfig,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    FilterFunction,
    FlatMapFunction,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MemorySize,
    OutputTag,
    PredefinedOptions,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    Row,
    RuntimeExecutionMode,
    SlotSharingGroup,
    StreamExecutionEnvironment,
    TimestampAssigner,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.common import (
    Duration,
    Instant,
    RestartStrategies,
    SimpleStringSchema,
    Time,
)
from flinkray.datastream.common.typeinfo import BasicTypeInfo
from flinkray.datastream.connectors.file_system import (
    FileEnumeratorProvider,
    FileSource,
    FileSplitAssignerProvider,
    OutputFileConfig,
    StreamFormat,
)
from flinkray.datastream.functions import BaseBroadcastProcessFunction
from flinkray.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkray.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkray.streaming.errors import OperatorError, StreamError
from flinkray.streaming.time.watermarks import PerElementWatermarks

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])


class SecondColumn(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondColumn())
PER_ELEMENT = WatermarkStrategy.for_generator(PerElementWatermarks).with_timestamp_assigner(
    SecondColumn()
)


class StartEndCount(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        return [(key, window.start, window.end, len(list(elements)))]


def results(stream: Any) -> list[Any]:
    return sorted(stream.execute_and_collect(), key=str)


def stamped(env: Any, *times: int, strategy: Any = MONOTONOUS) -> Any:
    data = env.from_collection([("hi", time) for time in times], type_info=PAIR)
    return data.assign_timestamps_and_watermarks(strategy)


def keyed(env: Any, *times: int, strategy: Any = MONOTONOUS) -> Any:
    return stamped(env, *times, strategy=strategy).key_by(lambda v: v[0], key_type=Types.STRING())


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
    assert late == [("hi", 4)]


class Collect:
    """A sink function that is not copied."""

    shared = True

    def __init__(self, into: list[Any]) -> None:
        self.into = into

    def invoke(self, value: Any) -> None:
        self.into.append(value)


class OwnTime(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return int(element[1])


def test_sessions_that_only_touch_merge(env: Any) -> None:
    """PF-02"""
    static = keyed(env, 6, 8, 9).window(EventTimeSessionWindows.with_gap(Time.milliseconds(2)))
    assert results(static.process(StartEndCount())) == [("hi", 6, 11, 3)]
    dynamic = keyed(env, 1, 2, 3, 4).window(EventTimeSessionWindows.with_dynamic_gap(OwnTime()))
    assert results(dynamic.process(StartEndCount())) == [("hi", 1, 8, 4)]


def test_numbers_are_those_of_python_whatever_type_is_declared(env: Any) -> None:
    numbers = env.from_collection([("a", 2**31 - 1), ("a", 1)])
    sums = numbers.map(lambda v: v, PAIR).key_by(lambda v: v[0]).sum(1)
    assert [v for _, v in sums.execute_and_collect()][-1] == 2**31
    tenths = env.from_collection([1]).map(lambda v: v / 10, Types.FLOAT())
    assert list(tenths.execute_and_collect()) == [0.1]


def test_numbers_that_become_columns_have_their_declared_type(env: Any) -> None:
    def columns(value: Any, kind: Any) -> Any:
        return env.from_collection([value], kind).map_batches(lambda b: b).execute_and_collect()

    assert [row.value for row in columns(0.1, Types.FLOAT())] == [0.10000000149011612]
    with pytest.raises(OperatorError, match=r"128 too large to fit|128 not in range"):
        list(columns(128, Types.BYTE()))
    table = pa.table({"k": ["a", "a"], "v": [2**63 - 1, 1]})
    sums = [row.v for row in env.from_arrow(table).key_by("k").sum("v").execute_and_collect()]
    assert sums == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_streams_with_and_without_timestamps_form_a_union(env: Any, mode: Any) -> None:
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


def test_window_function_behind_reduce_and_aggregate_sees_one_element(env: Any) -> None:
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


def test_global_windows_with_a_purging_count_give_full_windows_only(env: Any) -> None:
    """PF-07"""
    windows = keyed(env, *range(7)).window(GlobalWindows.create())
    purging = windows.trigger(PurgingTrigger.of(CountTrigger.of(2)))
    assert results(purging.process(CountOf())) == [("hi", 2)] * 3


def test_window_all_reduce(env: Any) -> None:
    """PF-02"""
    windows = stamped(env, 6, 8, 9).window_all(EventTimeSessionWindows.with_gap(2))
    assert results(windows.reduce(lambda a, b: (a[0], a[1] + b[1]))) == [("hi", 23)]
    assert results(env.from_collection(range(5)).count_window_all(2).process(CountAll())) == [2, 2]


LETTERS = [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 1)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (RuntimeExecutionMode.STREAMING, ["a", "ab", "c", "cd", "cde"]),
        (RuntimeExecutionMode.BATCH, ["ab", "cde"]),
        (RuntimeExecutionMode.AUTOMATIC, ["ab", "cde"]),
    ],
)
def test_streaming_puts_out_every_update_and_batch_the_last(
    env: Any, mode: Any, expected: list[str]
) -> None:
    """PF-08"""
    env.set_runtime_mode(mode)
    reduced = env.from_collection(LETTERS).key_by(lambda v: v[1]).reduce(
        lambda a, b: (a[0] + b[0], b[1])
    )  # fmt: skip
    assert results(reduced.map(lambda v: v[0])) == expected


@pytest.mark.parametrize(
    ("how", "streaming", "batch"),
    [
        ("sum", [(1, 5), (1, 8), (1, 9), (2, 4)], [(1, 9), (2, 4)]),
        ("min", [(1, 1), (1, 3), (1, 5), (2, 4)], [(1, 1), (2, 4)]),
        ("max", [(1, 5), (1, 5), (1, 5), (2, 4)], [(1, 5), (2, 4)]),
        ("min_by", [(1, 1), (1, 3), (1, 5), (2, 4)], [(1, 1), (2, 4)]),
        ("max_by", [(1, 5), (1, 5), (1, 5), (2, 4)], [(1, 5), (2, 4)]),
    ],
)
@pytest.mark.parametrize("kind", ["tuple", "row by position", "row by name"])
def test_aggregates_of_tuples_and_rows(
    env: Any, how: str, streaming: Any, batch: Any, kind: str
) -> None:
    """PF-08, PF-10"""
    data = [(1, 5), (2, 4), (1, 3), (1, 1)]
    row_type = Types.ROW_NAMED(["k", "v"], [Types.INT(), Types.INT()])
    for mode, expected in (("STREAMING", streaming), ("BATCH", batch)):
        env.set_runtime_mode(RuntimeExecutionMode[mode])
        stream = env.from_collection(data, None if kind == "tuple" else row_type)
        aggregated = getattr(stream.key_by(lambda v: v[0]), how)("v" if "name" in kind else 1)
        assert sorted(map(tuple, results(aggregated))) == expected


def test_aggregates_of_bare_numbers_need_no_position(env: Any) -> None:
    """PF-10"""
    numbers = env.from_collection([1, 2, 3, 4, 5])
    assert results(numbers.key_by(lambda v: v % 2).sum()) == [1, 2, 4, 6, 9]
    assert results(numbers.key_by(lambda v: v % 2).max(0)) == [1, 2, 3, 4, 5]
    with pytest.raises(Exception, match="only position 0"):
        results(numbers.key_by(lambda v: v % 2).sum(1))
    with pytest.raises(TypeError, match="position or its name"):
        numbers.key_by(lambda v: v).sum(1.5)


class Remembering:
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.STRING()))

    def swap(self, value: Any) -> Any:
        before = self.last.value()
        self.last.update(value[0])
        return before


class RememberMap(Remembering, MapFunction[Any, Any]):
    def map(self, value: Any) -> Any:
        return self.swap(value)


class RememberFilter(Remembering, FilterFunction[Any]):
    def filter(self, value: Any) -> bool:
        return self.swap(value) is not None


class RememberFlat(Remembering, FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        yield self.swap(value)


def test_plain_functions_on_keyed_streams_have_state(env: Any) -> None:
    """PF-11"""
    stream = env.from_collection(LETTERS).key_by(lambda v: v[1])
    assert results(stream.map(RememberMap())) == [None, None, "a", "c", "d"]
    assert results(stream.filter(RememberFilter())) == [("b", 0), ("d", 1), ("e", 1)]
    assert results(stream.flat_map(RememberFlat())) == [None, None, "a", "c", "d"]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("shuffle", ()), ("rebalance", ()), ("rescale", ()), ("broadcast", ()), ("forward", ()),
        ("name", ("x",)), ("get_name", ()), ("uid", ("x",)), ("set_uid_hash", ("x",)),
        ("set_parallelism", (1,)), ("set_max_parallelism", (1,)),
        ("partition_custom", (lambda k, n: 0, lambda v: v)),
    ],
)  # fmt: skip
def test_keyed_stream_refuses_what_makes_no_sense_on_it(
    env: Any, method: str, arguments: tuple[Any, ...]
) -> None:
    """PF-13, PF-24"""
    stream = env.from_collection([1]).key_by(lambda v: v)
    with pytest.raises(StreamError, match=f"{method} is not supported on a KeyedStream"):
        getattr(stream, method)(*arguments)


TAG: OutputTag[Any] = OutputTag("side", Types.INT())


class Sides(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value
        yield TAG, value + 1


class NoneOrList(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value, value] if value % 2 else None


class CoSides(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield str(value)
        yield TAG, value

    def flat_map2(self, value: Any) -> Any:
        yield TAG, value * 10
        yield value


def test_process_may_return_generator_list_or_none(env: Any) -> None:
    """PF-14"""
    assert results(env.from_collection([1, 2, 3]).process(NoneOrList())) == [1, 1, 3, 3]


def test_side_outputs_of_chained_operators_with_one_tag(env: Any) -> None:
    """PF-14"""
    first = env.from_collection([1, 2]).process(Sides(), Types.INT())
    second = first.map(lambda v: v * 10).process(Sides())
    of_first: list[int] = []
    of_second: list[int] = []
    first.get_side_output(TAG).add_sink(Collect(of_first))
    second.get_side_output(TAG).map(lambda v: v).add_sink(Collect(of_second))
    assert results(second) == [10, 20]
    assert (sorted(of_first), sorted(of_second)) == ([2, 3], [11, 21])


def test_side_output_from_both_inputs(env: Any) -> None:
    """PF-14"""
    connected = env.from_collection([1, 2]).connect(env.from_collection(["a"]))
    both = connected.flat_map(CoSides())
    side: list[Any] = []
    both.get_side_output(TAG).add_sink(Collect(side))
    assert results(both) == ["1", "2", "a"]
    assert sorted(side, key=str) == [1, 2, "a" * 10]


def test_tagged_values_that_nobody_asks_for_do_not_reach_the_main_output(env: Any) -> None:
    """PF-14"""
    assert results(env.from_collection([1]).process(Sides())) == [1]


class StateHabits(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        ttl = StateTtlConfig.new_builder(Time.seconds(1)).never_return_expired().build()
        map_descriptor: MapStateDescriptor[int, str] = MapStateDescriptor(
            "m", Types.INT(), Types.STRING()
        )
        map_descriptor.enable_time_to_live(ttl)
        self.value = runtime_context.get_state(ValueStateDescriptor("v", Types.INT()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("l", Types.INT()))
        self.map = runtime_context.get_map_state(map_descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (
            self.value.value(),
            list(self.list.get()),
            dict(self.map.items()),
            value[1] in self.map,
        )
        self.value.update(value[1])
        self.list.add(value[1])
        self.map[value[1]] = value[0]
        assert self.map[value[1]] == value[0]


def test_empty_list_state_is_an_empty_iterable_and_maps_index(env: Any) -> None:
    """PF-16, PF-22: values with a time to live that has not passed are all there."""
    stream = env.from_collection([("a", 1), ("a", 2)]).key_by(lambda v: v[0])
    assert results(stream.process(StateHabits())) == [
        (1, [1], {1: "a"}, False),
        (None, [], {}, False),
    ]


def test_times_to_live_tell_what_was_set() -> None:
    config = StateTtlConfig.new_builder(Time.days(1)).cleanup_full_snapshot().build()
    strategies: Any = config.get_cleanup_strategies()
    assert config.get_ttl() == Time.days(1)
    assert (strategies.in_full_snapshot(), strategies.is_cleanup_in_background()) == (True, True)
    assert strategies.get_incremental_cleanup_strategy().get_cleanup_size() == 5
    compaction = strategies.get_rocksdb_compact_filter_cleanup_strategy()
    assert compaction.get_query_time_after_num_entries() == 1000
    assert compaction.get_periodic_compaction_time() == Duration.of_days(30)
    assert pickle.loads(pickle.dumps(config)) == config


def test_cleanup_that_is_set_stays_when_the_one_in_the_background_is_disabled() -> None:
    builder = StateTtlConfig.new_builder(1).set_ttl(Time.seconds(2)).cleanup_incrementally(7, True)
    hour = Duration.of_hours(1)
    builder.cleanup_in_rocksdb_compact_filter(17, hour).disable_cleanup_in_background()
    strategies: Any = builder.build().get_cleanup_strategies()
    assert builder.build().get_ttl() == Time.seconds(2)
    assert (strategies.in_full_snapshot(), strategies.is_cleanup_in_background()) == (False, False)
    search = strategies.get_incremental_cleanup_strategy()
    assert (search.get_cleanup_size(), search.run_cleanup_for_every_record()) == (7, True)
    compaction = strategies.get_rocksdb_compact_filter_cleanup_strategy()
    assert compaction.get_query_time_after_num_entries() == 17
    assert compaction.get_periodic_compaction_time() == hour
    disabled = StateTtlConfig.new_builder(1).disable_cleanup_in_background().build()
    assert disabled.get_cleanup_strategies().get_incremental_cleanup_strategy() is None
    assert disabled.get_cleanup_strategies().get_rocksdb_compact_filter_cleanup_strategy() is None
    with pytest.raises(ValueError, match="time to live must be positive, got 0 ms"):
        builder.set_ttl(0)


def test_collecting_gives_a_list_with_a_limit_and_an_iterator_without(env: Any) -> None:
    """PF-18"""
    stream = env.from_collection([1, 2, 3])
    assert stream.execute_and_collect(limit=2) == [1, 2]
    assert stream.execute_and_collect(limit=100) == [1, 2, 3]
    with env.from_collection([4, 5]).execute_and_collect("job name") as iterator:
        assert next(iterator) == 4
        assert list(iterator) == [5]


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_collecting_a_keyed_stream_gives_rows_of_key_and_value(env: Any, mode: Any) -> None:
    env.set_runtime_mode(mode)
    keyed = env.from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(lambda v: v[0])
    pairs = [("a", ("a", 1)), ("a", ("a", 3)), ("b", ("b", 2))]
    expected = [Row(f0=key, f1=value) for key, value in pairs]
    assert results(keyed) == expected
    assert sorted(keyed.execute_and_collect(limit=9), key=str) == expected
    typed = env.from_collection([1], Types.INT()).key_by(lambda v: v, Types.DOUBLE())
    ((key, value),) = typed.execute_and_collect()
    assert (type(key), type(value)) == (float, int)


def test_collecting_keyed_columns_gives_rows_of_key_and_row(env: Any) -> None:
    keyed = env.from_arrow(pa.table({"k": ["a"], "v": [1]})).key_by("k")
    assert keyed.execute_and_collect(limit=1) == [Row(f0="a", f1=Row(k="a", v=1))]


class Custom:
    def __init__(self, value: int) -> None:
        self.value = value


def test_custom_classes_travel_through_untyped_streams(env: Any) -> None:
    """PF-19"""
    stream = env.from_collection([Custom(1), Custom(2)]).map(lambda c: Custom(c.value * 10))
    assert results(stream.rebalance().map(lambda c: c.value)) == [10, 20]


def test_checkpoint_defaults(env: Any) -> None:
    """PF-20"""
    config = env.get_checkpoint_config()
    assert config.get_checkpoint_interval() == env.get_checkpoint_interval() == -1
    assert not config.is_checkpointing_enabled()
    assert config.get_checkpoint_timeout() == 600000
    assert config.get_min_pause_between_checkpoints() == 0
    assert config.get_max_concurrent_checkpoints() == 1
    assert config.get_tolerable_checkpoint_failure_number() == 0
    assert config.is_fail_on_checkpointing_errors()
    none = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    assert config.get_externalized_checkpoint_retention() is none
    assert not config.is_externalized_checkpoints_enabled()
    assert not config.is_unaligned_checkpoints_enabled()
    assert env.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    env.enable_checkpointing(1000, CheckpointingMode.AT_LEAST_ONCE)
    assert env.get_checkpoint_interval() == 1000
    assert config.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE


def test_slot_sharing_groups_hold_everything_or_nothing() -> None:
    """PF-21"""
    empty = SlotSharingGroup.builder("g").build()
    assert empty.get_cpu_cores() is None
    assert empty.get_task_heap_memory() is None
    assert empty.get_task_off_heap_memory() is None
    assert empty.get_managed_memory() is None
    assert empty.get_external_resources() == {}
    for half in (
        SlotSharingGroup.builder("g").set_cpu_cores(1),
        SlotSharingGroup.builder("g").set_task_heap_memory_mb(100),
        SlotSharingGroup.builder("g").set_external_resource("gpu", 1),
    ):
        with pytest.raises(ValueError, match="set both, or none"):
            half.build()
    full = SlotSharingGroup.builder("g").set_cpu_cores(1).set_task_heap_memory_mb(100)
    built = full.set_external_resource("gpu", 2).build()
    assert built.get_task_heap_memory() == MemorySize.of_mebi_bytes(100)
    assert built.get_external_resources() == {"gpu": 2}


def test_environment_is_configured_by_flinks_names(env: Any) -> None:
    """PF-21"""
    assert env.is_changelog_state_backend_enabled() is None
    env.enable_changelog_state_backend(True)
    assert env.is_changelog_state_backend_enabled() is True
    env.configure(Configuration().set_string("execution.buffer-timeout", "1 min"))
    assert env.get_buffer_timeout() == 60000
    other = Configuration().set_integer("parallelism.default", 7)
    other.set_string("pipeline.auto-watermark-interval", "300 ms")
    other.set_string("execution.runtime-mode", "BATCH")
    configured = StreamExecutionEnvironment.get_execution_environment(other)
    assert configured.get_parallelism() == 7
    assert configured.get_config().get_auto_watermark_interval() == 300


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    "enable",
    [
        lambda env: env.enable_checkpointing(1000),
        lambda env: env.get_checkpoint_config().set_checkpoint_interval(1000),
        lambda env: env.configure(
            Configuration().set_string("execution.checkpointing.interval", "1 s")
        ),
    ],
)
def test_whoever_enables_checkpoints_is_told_once_that_there_are_none(
    enable: Any, env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    enable(env)
    enable(env)
    (told,) = warnings_of(caplog)
    assert told.startswith("Checkpoints are enabled, every 1000 ms, but none are taken yet.")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (
            lambda env: env.set_state_backend(EmbeddedRocksDBStateBackend()),
            "The state backend EmbeddedRocksDBStateBackend has no effect",
        ),
        (
            lambda env: env.configure(Configuration().set_string("state.backend.type", "rocksdb")),
            "The state backend EmbeddedRocksDBStateBackend has no effect",
        ),
        (
            lambda env: env.enable_changelog_state_backend(True),
            "The changelog state backend is enabled and has no effect",
        ),
        (
            lambda env: env.set_python_requirements("requirements.txt"),
            "set_python_requirements has no effect in one process, and clusters refuse it: install "
            "the packages with pip in the Python that runs functions, which is this one or",
        ),
        (
            lambda env: env.configure(Configuration().set_string("python.requirements", "a#b")),
            "set_python_requirements has no effect in one process, and clusters refuse it: install "
            "the packages with pip in the Python that runs functions, which is this one or",
        ),
        (
            lambda env: env.configure(Configuration().set_string("python.executable", "python3")),
            "set_python_executable has no effect in one process, and clusters refuse it: functions",
        ),
    ],
)
def test_setting_without_effect_says_so_at_once(
    setting: Any, told: str, env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    setting(env)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(told)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("execution.checkpointing.timeout", "1 min", "no checkpoints are taken yet."),
        ("state.checkpoints.dir", "/checkpoints", "no checkpoints are taken yet."),
        ("state.backend.incremental", "true", "no checkpoints are taken yet."),
        (
            "taskmanager.numberOfTaskSlots",
            "4",
            "it is set for a cluster or its client (docs/configuration.md), not for a program.",
        ),
        (
            "pipeline.max-paralelism",
            "4",
            "it is not known; the nearest is pipeline.max-parallelism.",
        ),
        ("of.my.own", "4", "it is not known."),
    ],
)
def test_setting_without_effect_is_named_once(
    key: str, value: str, told: str, env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = Configuration().set_string(key, value)
    env.configure(configuration)
    env.configure(configuration)
    assert warnings_of(caplog) == [f"The setting {key} has no effect: {told}"]


def with_fixed_delay(env: Any) -> None:
    env.configure(Configuration().set_string("restart-strategy.type", "fixed-delay"))


@pytest.mark.parametrize(
    "choose",
    [
        with_fixed_delay,
        lambda env: env.set_restart_strategy(RestartStrategies.failure_rate_restart(1, 1, 1)),
    ],
)
def test_restart_strategy_of_a_program_in_one_process_is_warned_of_once(
    choose: Any, env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    choose(env)
    assert warnings_of(caplog) == []  # it may go to a cluster yet
    for _ in range(2):
        env.from_collection([1]).print()
        env.execute()
    of_type = [told for told in warnings_of(caplog) if "restart-strategy.type" in told]
    assert of_type == [
        "The setting restart-strategy.type has no effect: a program that runs in one process ends "
        "with its first failure."
    ]
    assert len(set(warnings_of(caplog))) == len(warnings_of(caplog))


def test_no_restart_is_what_happens_in_one_process(
    env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.from_collection([1]).print()
    env.execute()
    assert warnings_of(caplog) == []


def test_settings_that_have_an_effect_are_not_warned_of(
    env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = Configuration().set_string("pipeline.name", "named")
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_string("restart-strategy.fixed-delay.attempts", "3")
    configuration.set_string("execution.sorted-inputs.memory", "1mb")
    configuration.set_string("execution.shutdown-on-attached-exit", "true")
    configuration.set_string("pipeline.operator-chaining.enabled", "False")
    configuration.set_string("pipeline.object-reuse", "true")
    env.configure(configuration)
    assert warnings_of(caplog) == []
    assert not env.is_chaining_enabled()
    assert env.get_config().is_object_reuse_enabled()


def test_settings_of_checkpoints_are_kept(env: Any) -> None:
    configuration = Configuration().set_string("execution.checkpointing.timeout", "1 min")
    configuration.set_string("execution.checkpointing.mode", "at-least-once")
    configuration.set_string("execution.checkpointing.min-pause", "2 s")
    configuration.set_string("execution.checkpointing.max-concurrent-checkpoints", "3")
    configuration.set_string("execution.checkpointing.tolerable-failed-checkpoints", "4")
    configuration.set_string(
        "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION"
    )
    configuration.set_string("execution.checkpointing.unaligned.enabled", "true")
    configuration.set_string("execution.checkpointing.unaligned.forced", "true")
    configuration.set_string("execution.checkpointing.aligned-checkpoint-timeout", "5 s")
    configuration.set_string("execution.checkpointing.dir", "file:///checkpoints")
    configuration.set_string("execution.checkpointing.savepoint-dir", "file:///savepoints")
    checkpoints = env.configure(configuration).get_checkpoint_config()
    assert checkpoints.get_checkpointing_mode().name == "AT_LEAST_ONCE"
    assert checkpoints.get_checkpoint_timeout() == 60_000
    assert checkpoints.get_min_pause_between_checkpoints() == 2000
    assert checkpoints.get_max_concurrent_checkpoints() == 3
    assert checkpoints.get_tolerable_checkpoint_failure_number() == 4
    assert checkpoints.is_externalized_checkpoints_enabled()
    assert checkpoints.is_unaligned_checkpoints_enabled()
    assert checkpoints.is_force_unaligned_checkpoints()
    assert checkpoints.get_alignment_timeout() == Duration.of_seconds(5)
    assert checkpoints.get_checkpoint_storage() is not None
    assert env.get_default_savepoint_directory() == "file:///savepoints"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("pipeline.operator-chaining", "no", "it must be true or false"),
        ("execution.runtime-mode", "fast", "it must be one of STREAMING, BATCH, AUTOMATIC"),
        ("parallelism.default", "many", "invalid literal"),
        ("parallelism.default", "0", "parallelism must be at least 1, got 0"),
        ("execution.buffer-timeout", "soon", "soon"),
    ],
)
def test_value_that_a_setting_cannot_have_is_refused_with_its_key(
    key: str, value: str, told: str, env: Any
) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        env.configure(Configuration().set_string(key, value))
    assert key in str(caught.value)


def test_state_backend_that_is_in_memory_is_what_there_is(
    env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert env.get_state_backend() is None
    backend = HashMapStateBackend()
    assert env.set_state_backend(backend).get_state_backend() is backend
    env.configure(Configuration().set_string("state.backend.type", "hashmap"))
    env.enable_changelog_state_backend(False)
    assert warnings_of(caplog) == []
    with pytest.raises(TypeError, match="a StateBackend is needed, got 'rocksdb'"):
        env.set_state_backend("rocksdb")
    with pytest.raises(ConfigurationError, match="must be one of hashmap, rocksdb, got 'tape'"):
        env.configure(Configuration().set_string("state.backend.type", "tape"))


def test_settings_of_rocksdb_are_checked_and_kept() -> None:
    backend = EmbeddedRocksDBStateBackend()
    assert not backend.is_incremental_checkpoints_enabled()
    assert backend.get_predefined_options() is PredefinedOptions.DEFAULT
    backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
    assert backend.get_predefined_options() is PredefinedOptions.FLASH_SSD_OPTIMIZED
    assert backend.get_number_of_transfer_threads() == 4
    backend.set_number_of_transfer_threads(8)
    assert backend.get_number_of_transfer_threads() == 8
    with pytest.raises(ValueError, match="at least 1, got 0"):
        backend.set_number_of_transfer_threads(0)
    for path, wrong in (("s3://a/b", "of another file system"), ("a/b", "relative")):
        with pytest.raises(ValueError, match=wrong):
            backend.set_db_storage_paths("/data", path)
    assert backend.get_db_storage_paths() == []
    with pytest.raises(ConfigurationError, match="there is no JVM"):
        backend.set_options("org.example.Factory")


def test_checkpoint_storages_have_pyflinks_defaults_and_bounds(env: Any) -> None:
    storage = JobManagerCheckpointStorage()
    assert (storage.get_checkpoint_path(), storage.get_savepoint_path()) == (None, None)
    assert storage.get_max_state_size() == JobManagerCheckpointStorage.DEFAULT_MAX_STATE_SIZE
    assert JobManagerCheckpointStorage("file:///a/", 7).get_checkpoint_path() == "file:///a"
    with pytest.raises(ValueError, match="must be positive, got 0 bytes"):
        JobManagerCheckpointStorage(max_state_size=0)
    with pytest.raises(ValueError, match="must be 0 to 1048576 bytes, got 1048577"):
        FileSystemCheckpointStorage("file:///a", (1 << 20) + 1)
    assert FileSystemCheckpointStorage("file:///a", 0).get_write_buffer_size() == 4096
    config = env.get_checkpoint_config()
    assert config.set_checkpoint_storage(storage).get_checkpoint_storage() is storage
    with pytest.raises(TypeError, match="a CheckpointStorage is needed, got 'file:///a'"):
        config.set_checkpoint_storage("file:///a")


def test_checkpoint_storage_has_a_plain_path() -> None:
    """PF-21"""
    storage = FileSystemCheckpointStorage("file:///var/checkpoints/")
    assert storage.get_checkpoint_path() == "file:///var/checkpoints"
    assert storage.get_min_file_size_threshold() == 20480


def test_row_types_make_rows_with_field_names(env: Any) -> None:
    stream = env.from_collection([(1, "a")], Types.ROW([Types.INT(), Types.STRING()]))
    assert results(stream.map(str)) == ["Row(f0=1, f1='a')"]
    named = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    assert results(stream.map(lambda r: (r[0], r.f1), named)) == [Row.of(["id", "name"], [1, "a"])]
    assert results(stream.map(lambda r: r, PAIR)) == [(1, "a")]


def test_instants_are_values_and_keys(env: Any) -> None:
    moments = [(Instant.of_epoch_milli(milli),) for milli in (5, -1, 5)]
    stream = env.from_collection(moments, Types.TUPLE([Types.INSTANT()])).key_by(lambda v: v[0])
    before = list(stream.map(RememberMap()).execute_and_collect())
    assert sorted(before, key=str) == [Instant(0, 5_000_000), None, None]
    for nanos in (-1, 1_000_000_000):
        with pytest.raises(ValueError, match="nanos must be 0 to 999999999"):
            Instant(0, nanos)


def test_text_in_an_encoding_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="no encoding is called 'UTF-9'"):
        SimpleStringSchema("UTF-9")


def test_options_are_read_as_what_their_text_is_of() -> None:
    config = Configuration.from_dict({"a": "7", "b": "TRUE", "c": "0.5"})
    config.set_bytearray("d", bytearray(b"\x00\xff"))
    assert (config.get_integer("a", 0), config.get_float("a", 0.0)) == (7, 7.0)
    assert (config.get_boolean("b", False), config.get_float("c", 0.0)) == (True, 0.5)
    assert config.get_bytearray("d", bytearray()) == bytearray(b"\x00\xff")
    assert config.get_integer("none", 3) == 3
    assert config.key_set() == {"a", "b", "c", "d"}
    told = {"before": "kept"}
    Configuration().add_all(config, "in.").add_all_to_dict(told)
    texts = {"in.a": "7", "in.b": "TRUE", "in.c": "0.5"}
    assert told == {"before": "kept", **texts, "in.d": bytearray(b"\x00\xff")}


def test_options_are_put_into_a_dictionary_as_what_they_were_set_as() -> None:
    config = Configuration().set_integer("a", 7).set_boolean("b", True).set_float("c", 0.5)
    told: dict[str, Any] = {}
    config.set_string("d", "9").add_all_to_dict(told)
    assert told == {"a": 7, "b": True, "c": 0.5, "d": "9"}
    assert {key: type(value) for key, value in told.items()}["b"] is bool
    assert str(config) == "{a=7, b=true, c=0.5, d=9}"


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda config: config.get_integer("key", 0), "key must be a whole number, got 'maybe'"),
        (lambda config: config.get_boolean("key", True), "key must be true or false, got 'maybe'"),
        (lambda config: config.get_float("key", 0.0), "key must be a number, got 'maybe'"),
        (
            lambda config: config.get_bytearray("key", bytearray()),
            "key must be bytes in Base64, got 'maybe'",
        ),
    ],
)
def test_option_of_another_type_is_refused_by_name(read: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        read(Configuration().set_string("key", "maybe"))


def test_lists_in_options_are_of_semicolons_or_yaml() -> None:
    parse = Configuration.parse_list_value
    assert parse("- a\n- b") == parse("[a, 'b']") == parse("a; b;") == ["a", "b"]
    assert parse("") == parse(None) == []


def test_execution_settings_have_pyflinks_defaults(env: Any) -> None:
    config = StreamExecutionEnvironment().get_config()
    assert config.get_parallelism() == ExecutionConfig.PARALLELISM_DEFAULT
    assert config.set_parallelism(3).set_parallelism(-2).get_parallelism() == 3
    for wrong in (0, -3):
        with pytest.raises(ValueError, match="parallelism must be at least 1"):
            config.set_parallelism(wrong)
    for wrong in (0, (1 << 15) + 1):
        with pytest.raises(ValueError, match="max parallelism must be 1 to 32768"):
            config.set_max_parallelism(wrong)
    assert config.is_closure_cleaner_enabled()
    assert config.has_auto_generated_uids_enabled()
    assert not config.has_generic_types_disabled()
    assert not config.is_force_kryo_enabled()
    assert not config.is_force_avro_enabled()
    assert not config.is_object_reuse_enabled()
    assert not config.is_use_snapshot_compression()
    assert env.get_config() == StreamExecutionEnvironment().set_parallelism(2).get_config()
    assert env.get_config() != config


def test_execution_setting_that_a_program_cannot_have_is_refused() -> None:
    config = ExecutionConfig()
    with pytest.raises(ConfigurationError, match=r"^set_\w+.*: .*leave it out, .*flinkray info"):
        config.set_latency_tracking_interval(100)
    assert config.set_latency_tracking_interval(0).get_latency_tracking_interval() == 0


def test_a_program_sets_how_long_its_tasks_may_take_to_be_cancelled(env: Any) -> None:
    config = env.get_config()
    unset = (config.get_task_cancellation_interval(), config.get_task_cancellation_timeout())
    assert unset == (1000, 30_000)
    env.configure(Configuration().set_string("task.cancellation.interval", "5 s"))
    config.set_task_cancellation_timeout(4000)
    times = (config.get_task_cancellation_interval(), config.get_task_cancellation_timeout())
    assert times == (5000, 4000)
    env.from_collection([1]).print()
    settings = env._job(env.get_stream_graph()).configuration
    assert settings == {
        "task.cancellation.interval": "5 s",
        "task.cancellation.timeout": "4 s",
    }
    for setter in (config.set_task_cancellation_interval, config.set_task_cancellation_timeout):
        with pytest.raises(ValueError, match="a time must be positive, got 0 ms"):
            setter(0)


def test_operators_need_uids_where_none_are_generated(env: Any) -> None:
    env.configure(Configuration().set_string("pipeline.auto-generate-uids", "false"))
    doubled = env.from_collection([1]).uid("one").map(lambda v: 2 * v).name("double")
    with pytest.raises(StreamError, match=r"^double has no uid.*uid\("):
        env.get_execution_plan()
    assert list(doubled.set_uid_hash("0" * 32).execute_and_collect()) == [2]


def test_classes_are_found_inside_of_classes_where_pyflink_has_them() -> None:
    assert isinstance(SlotSharingGroup.builder("a"), SlotSharingGroup.Builder)
    assert isinstance(StateTtlConfig.new_builder(1), StateTtlConfig.Builder)
    builder = OutputFileConfig.OutputFileConfigBuilder().with_part_prefix("a")
    assert builder.build() == OutputFileConfig.builder().with_part_prefix("a").build()
    assert issubclass(
        BaseBroadcastProcessFunction.Context, BaseBroadcastProcessFunction.BaseContext
    )
    on_timer = KeyedBroadcastProcessFunction.OnTimerContext
    assert issubclass(on_timer, KeyedBroadcastProcessFunction.ReadOnlyContext)
    assert hasattr(on_timer, "time_domain")


def test_basic_types_have_names_of_their_own() -> None:
    kinds = ["STRING", "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "CHAR"]
    kinds += ["BIG_INT", "BIG_DEC", "INSTANT"]
    assert [getattr(BasicTypeInfo, f"{kind}_TYPE_INFO")() for kind in kinds] == [
        getattr(Types, kind)() for kind in kinds
    ]


def test_a_file_source_takes_flinks_enumerators_and_split_assigner(
    env: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    (tmp_path / "b.txt").write_text("3\n")
    for enumerator in (
        FileEnumeratorProvider.default_splittable_file_enumerator(),
        FileEnumeratorProvider.default_non_splittable_file_enumerator(),
    ):
        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path))
        source.set_file_enumerator(enumerator)
        source.set_split_assigner(FileSplitAssignerProvider.locality_aware_split_assigner())
        lines = env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "lines")
        assert results(lines) == ["1", "2", "3"]


def test_results_of_accumulators_are_empty(env: Any) -> None:
    env.from_collection([1]).print()
    client = env.execute_async()
    result = client.get_job_execution_result().result()
    assert (result.get_all_accumulator_results(), result.get_accumulator_result("a")) == ({}, None)
    assert client.get_accumulators().result() == {}
