"""Programs as PyFlink's users write them; of them only the imports' first words are changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from flinkray.datastream import (
    DataStream,
    OutputTag,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from flinkray.datastream.common import Encoder, Row, Types, WatermarkStrategy
from flinkray.datastream.common.serializer import TypeSerializer
from flinkray.datastream.common.time import Duration, Time
from flinkray.datastream.common.watermark_strategy import TimestampAssigner
from flinkray.datastream.connectors.file_system import (
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from flinkray.datastream.functions import (
    AggregateFunction,
    CoMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    ProcessWindowFunction,
)
from flinkray.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkray.datastream.window import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    MergingWindowAssigner,
    SlidingEventTimeWindows,
    TimeWindow,
    TimeWindowSerializer,
    Trigger,
    TumblingEventTimeWindows,
)
from flinkray.testing import DataStreamTestSinkFunction


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING])
def test_word_count_program_reads_and_writes_files(tmp_path: Path, mode: Any) -> None:
    """PF-08"""
    (tmp_path / "in.txt").write_text("To be, or not to be\nthat is the question\nto be\n")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(mode)
    env.set_parallelism(1)
    ds: DataStream = env.from_source(
        source=FileSource.for_record_stream_format(
            StreamFormat.text_line_format(), str(tmp_path / "in.txt")
        )
        .process_static_file_set()
        .build(),
        watermark_strategy=WatermarkStrategy.for_monotonous_timestamps(),
        source_name="file_source",
    )

    def split(line: str) -> Any:
        yield from line.lower().replace(",", "").split()

    ds = (
        ds.flat_map(split)
        .map(lambda i: (i, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda i: i[0])
        .reduce(lambda i, j: (i[0], i[1] + j[1]))
    )
    ds.sink_to(
        sink=FileSink.for_row_format(
            base_path=str(tmp_path / "out"), encoder=Encoder.simple_string_encoder()
        )
        .with_output_file_config(
            OutputFileConfig.builder().with_part_prefix("prefix").with_part_suffix(".ext").build()
        )
        .with_rolling_policy(RollingPolicy.default_rolling_policy())
        .build()
    )
    env.execute()
    (written,) = (tmp_path / "out").glob("????-??-??--??/*")  # a folder for the hour, as there
    assert written.name.startswith("prefix")
    assert written.name.endswith(".ext")
    lines = written.read_text().splitlines()
    assert "(be,3)" in lines
    assert len(lines) == (8 if mode is RuntimeExecutionMode.BATCH else 12)


class MyTimestampAssigner(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


WATERMARKS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    MyTimestampAssigner()
)


class CountWindowProcessFunction(ProcessWindowFunction[tuple, tuple, str, Any]):  # type: ignore[type-arg]
    def process(self, key: str, context: Any, elements: Any) -> Any:
        return [(key, context.window().start, context.window().end, len(list(elements)))]


@pytest.mark.parametrize(
    ("assigner", "expected"),
    [
        (
            SlidingEventTimeWindows.of(Time.milliseconds(5), Time.milliseconds(2)),
            ["(hi,-2,3,2)", "(hi,0,5,4)", "(hi,2,7,4)", "(hi,4,9,3)", "(hi,6,11,2)", "(hi,8,13,2)",
             "(hi,12,17,1)", "(hi,14,19,1)"],
        ),
        (
            EventTimeSessionWindows.with_gap(Time.milliseconds(5)),
            ["(hi,1,14,7)", "(hi,15,20,1)"],
        ),
    ],
)  # fmt: skip
def test_window_program_counts_the_records_of_each_window(
    assigner: Any, expected: list[str]
) -> None:
    """PF-04"""
    env = StreamExecutionEnvironment.get_execution_environment()
    data_stream = env.from_collection(
        [("hi", 1), ("hi", 2), ("hi", 3), ("hi", 4), ("hi", 5), ("hi", 8), ("hi", 9), ("hi", 15)],
        type_info=Types.TUPLE([Types.STRING(), Types.INT()]),
    )
    sink = DataStreamTestSinkFunction()
    data_stream.assign_timestamps_and_watermarks(WATERMARKS).key_by(
        lambda x: x[0], key_type=Types.STRING()
    ).window(assigner).process(
        CountWindowProcessFunction(),
        Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()]),
    ).add_sink(sink)
    env.execute("windows")
    assert sorted(sink.get_results()) == sorted(expected)


def test_side_output_program_separates_main_and_side_results() -> None:
    """PF-14"""
    env = StreamExecutionEnvironment.get_execution_environment()
    tag: OutputTag[int] = OutputTag("side", Types.INT())

    class MyProcessFunction(ProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
            yield value[0]
            yield tag, value[1]

    ds = env.from_collection(
        [("a", 0), ("b", 1), ("c", 2)], type_info=Types.ROW([Types.STRING(), Types.INT()])
    )
    ds2 = ds.process(MyProcessFunction(), output_type=Types.STRING())
    main_sink, side_sink = DataStreamTestSinkFunction(), DataStreamTestSinkFunction()
    ds2.add_sink(main_sink)
    ds2.get_side_output(tag).map(lambda i: i * 10, output_type=Types.INT()).add_sink(side_sink)
    env.execute("side_outputs")
    assert main_sink.get_results() == ["a", "b", "c"]
    assert side_sink.get_results() == ["0", "10", "20"]


class Sum(AggregateFunction[Any, Any, Any]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def test_keyed_process_function_uses_timers_and_all_kinds_of_state(capsys: Any) -> None:
    """PF-16, PF-22"""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_config().set_auto_watermark_interval(2000)

    class MyProcess(KeyedProcessFunction[Any, Any, Any]):
        def open(self, runtime_context: RuntimeContext) -> None:
            ttl = (
                StateTtlConfig.new_builder(Time.seconds(1))
                .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
                .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
                .build()
            )
            value: ValueStateDescriptor[int] = ValueStateDescriptor("value_state", Types.INT())
            value.enable_time_to_live(ttl)
            self.value_state = runtime_context.get_state(value)
            self.list_state = runtime_context.get_list_state(
                ListStateDescriptor("list_state", Types.INT())
            )
            self.map_state = runtime_context.get_map_state(
                MapStateDescriptor("map_state", Types.INT(), Types.STRING())
            )
            self.reducing_state = runtime_context.get_reducing_state(
                ReducingStateDescriptor("reducing_state", lambda i, j: i * j, Types.INT())
            )
            self.aggregating_state = runtime_context.get_aggregating_state(
                AggregatingStateDescriptor("aggregating_state", Sum(), Types.INT())
            )

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.value_state.update(value[0])
            self.list_state.add(value[0])
            self.map_state.put(value[0], value[1])
            self.reducing_state.add(value[0])
            self.aggregating_state.add(value[0])
            ctx.timer_service().register_event_time_timer(value[2] + 1000)

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield Row(
                ctx.get_current_key(),
                self.value_state.value(),
                list(self.list_state.get()),
                sorted(f"{k}={v}" for k, v in self.map_state.items()),
                self.reducing_state.get(),
                self.aggregating_state.get(),
                timestamp,
            )

    class Third(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return int(value[2])

    strategy = WatermarkStrategy.for_bounded_out_of_orderness(
        Duration.of_seconds(2)
    ).with_timestamp_assigner(Third())
    env.from_collection(
        [(2, "hi", 5), (3, "hi", 6), (4, "lo", 7)],
        type_info=Types.ROW([Types.INT(), Types.STRING(), Types.LONG()]),
    ).assign_timestamps_and_watermarks(strategy).key_by(
        lambda value: value[1], key_type=Types.STRING()
    ).process(MyProcess()).print()
    env.execute("process")
    assert capsys.readouterr().out.splitlines() == [
        "+I[hi, 3, [2, 3], ['2=hi', '3=hi'], 6, 5, 1005]",
        "+I[hi, 3, [2, 3], ['2=hi', '3=hi'], 6, 5, 1006]",
        "+I[lo, 4, [4], ['4=lo'], 4, 4, 1007]",
    ]


def test_broadcast_state_program_applies_rules_to_keyed_records() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    descriptor: MapStateDescriptor[str, int] = MapStateDescriptor(
        "rules", Types.STRING(), Types.INT()
    )

    class MyKeyedBroadcastProcessFunction(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
        def __init__(self, map_state_desc: Any) -> None:
            self._map_state_desc = map_state_desc
            self._cache: Any = None

        def open(self, ctx: RuntimeContext) -> None:
            self._cache = ctx.get_list_state(ListStateDescriptor("waiting", Types.INT()))

        def process_element(self, value: Any, ctx: Any) -> Any:
            self._cache.add(value[1])
            ctx.timer_service().register_event_time_timer(100)

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(self._map_state_desc)[value[0]] = value[1]

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            rules = ctx.get_broadcast_state(self._map_state_desc)
            for value in self._cache.get():
                yield ctx.get_current_key(), value * rules[ctx.get_current_key()]

    keyed_stream = (
        env.from_collection([("a", 1), ("b", 2), ("a", 3)])
        .assign_timestamps_and_watermarks(WATERMARKS)
        .key_by(lambda x: x[0], key_type=Types.STRING())
    )
    broadcast_stream = env.from_collection([("a", 10), ("b", 100)]).broadcast(descriptor)
    sink = DataStreamTestSinkFunction()
    keyed_stream.connect(broadcast_stream).process(
        MyKeyedBroadcastProcessFunction(descriptor)
    ).add_sink(sink)
    env.execute("broadcast")
    assert sorted(sink.get_results(True, False)) == [("a", 10), ("a", 30), ("b", 200)]


def test_co_map_and_co_process_programs_combine_connected_streams() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()

    class MyCoMapFunction(CoMapFunction[Any, Any, Any]):
        def map1(self, value: Any) -> Any:
            return Row(value[0], str(value[1] + 1))

        def map2(self, value: Any) -> Any:
            return Row(value[0], value[1].upper())

    row_type = Types.ROW([Types.STRING(), Types.STRING()])
    numbers = env.from_collection([("a", 1), ("b", 2)], Types.ROW([Types.STRING(), Types.INT()]))
    letters = env.from_collection([("a", "x"), ("b", "y")], row_type)
    sink = DataStreamTestSinkFunction()
    numbers.connect(letters).map(MyCoMapFunction(), output_type=row_type).add_sink(sink)
    env.execute("co_map")
    assert sorted(sink.get_results()) == ["+I[a, 2]", "+I[a, X]", "+I[b, 3]", "+I[b, Y]"]

    class Enrich(KeyedCoProcessFunction[Any, Any, Any, Any]):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.total = runtime_context.get_reducing_state(
                ReducingStateDescriptor("total", lambda a, b: a + b, Types.STRING())
            )

        def process_element1(self, value: Any, ctx: Any) -> Any:
            self.total.add(str(value[1]))
            ctx.timer_service().register_event_time_timer(1)

        def process_element2(self, value: Any, ctx: Any) -> Any:
            self.total.add(value[1])
            ctx.timer_service().register_event_time_timer(1)

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield ctx.get_current_key(), "".join(sorted(self.total.get() or ""))

    counts = env.from_collection([("a", 1), ("b", 2)])
    names = env.from_collection([("a", "x"), ("b", "y")])
    counts.connect(names).key_by(lambda a: a[0], lambda b: b[0], key_type=Types.STRING()).process(
        Enrich()
    ).add_sink(sink)
    env.execute("co_process")
    assert sorted(sink.get_results(True)) == ["('a', '1x')", "('b', '2y')"]


def test_collect_returns_rows_and_print_shows_rows_with_their_subtask(capsys: Any) -> None:
    """PF-18"""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    row_type = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])
    people = env.from_collection([("Ada", 36), ("Max", 5)], row_type)
    with people.execute_and_collect("collect") as results:
        assert [(row.name, row["age"]) for row in results] == [("Ada", 36), ("Max", 5)]
    people.rebalance().print("people")
    env.execute()
    lines = sorted(capsys.readouterr().out.splitlines())
    assert [line.split("> ")[1] for line in sorted(lines, key=lambda t: t.split("> ")[1])] == [
        "+I[Ada, 36]",
        "+I[Max, 5]",
    ]
    assert {line.split("> ")[0] for line in lines} == {"people:1", "people:2"}


def test_window_behind_a_window_uses_the_times_of_the_first() -> None:
    """PF-05"""
    env = StreamExecutionEnvironment.get_execution_environment()
    data = env.from_collection([("a", 1), ("b", 2), ("a", 13), ("b", 25)])
    counted = (
        data.assign_timestamps_and_watermarks(WATERMARKS)
        .key_by(lambda v: v[0])
        .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        .process(CountWindowProcessFunction())
        .window_all(TumblingEventTimeWindows.of(Time.milliseconds(20)))
        .reduce(lambda a, b: ("all", min(a[1], b[1]), max(a[2], b[2]), a[3] + b[3]))
    )
    assert list(counted.execute_and_collect()) == [("all", 0, 20, 3), ("b", 20, 30, 1)]


class MergingByTen(MergingWindowAssigner):
    """Windows of ten milliseconds from each record on, merged where they overlap."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        return [TimeWindow(timestamp, timestamp + 10)]

    def get_default_trigger(self, env: Any = None) -> Trigger:
        return EventTimeTrigger.create()

    def get_window_serializer(self) -> TypeSerializer[TimeWindow]:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True

    def merge_windows(
        self,
        windows: Iterable[TimeWindow],
        callback: MergingWindowAssigner.MergeCallback[TimeWindow],
    ) -> None:
        TimeWindow.merge_windows(windows, callback)


class Bounds(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, context.window().end, len(list(elements))


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


def test_custom_window_assigner_of_a_program_merges_windows() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    data = env.from_collection([("a", 1), ("a", 9), ("a", 40), ("b", 5)])
    windows = (
        data.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
        )
        .key_by(lambda v: v[0])
        .window(MergingByTen())
    )
    with windows.process(Bounds()).execute_and_collect() as results:
        found = [results.next() for _ in range(3)]
        with pytest.raises(StopIteration):
            results.next()
    assert found == [("b", 5, 15, 1), ("a", 1, 19, 2), ("a", 40, 50, 1)]
    assert get_type_hints(MergingByTen.merge_windows)["callback"].__args__ == (TimeWindow,)
    assert MergingByTen().get_window_serializer() == TimeWindowSerializer()
