"""Programs as in PyFlink's documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest

from flinkray.datastream import (
    CoFlatMapFunction,
    DataStream,
    OutputTag,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from flinkray.datastream.common import Encoder, Instant, Row, Types, WatermarkStrategy
from flinkray.datastream.common.serializer import TypeSerializer
from flinkray.datastream.common.time import Duration, Time
from flinkray.datastream.common.watermark_strategy import TimestampAssigner
from flinkray.datastream.connectors.file_system import (
    FileEnumeratorProvider,
    FileSink,
    FileSource,
    FileSplitAssignerProvider,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from flinkray.datastream.functions import (
    AggregateFunction,
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
from flinkray.streaming.operator_errors import OperatorError
from flinkray.testing import DataStreamTestSinkFunction
from tests.datastream.pyflink_streams import PAIR, Collect, RememberMap, results


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


def test_window_after_a_window_uses_the_timestamps_of_the_first_windows_results() -> None:
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


TAG: OutputTag[Any] = OutputTag("side", Types.INT())
NAMED: OutputTag[Any] = OutputTag("named", Types.ROW_NAMED(["x", "y"], [Types.INT(), Types.INT()]))


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


def test_process_function_may_return_a_generator_a_list_or_none(env: Any) -> None:
    """PF-14"""
    assert results(env.from_collection([1, 2, 3]).process(NoneOrList())) == [1, 1, 3, 3]


def test_chained_operators_with_one_tag_have_separate_side_outputs(env: Any) -> None:
    """PF-14"""
    first = env.from_collection([1, 2]).process(Sides(), Types.INT())
    second = first.map(lambda v: v * 10).process(Sides())
    of_first: list[int] = []
    of_second: list[int] = []
    first.get_side_output(TAG).add_sink(Collect(of_first))
    second.get_side_output(TAG).map(lambda v: v).add_sink(Collect(of_second))
    assert results(second) == [10, 20]
    assert (sorted(of_first), sorted(of_second)) == ([2, 3], [11, 21])


def test_side_output_has_values_of_both_connected_inputs(env: Any) -> None:
    """PF-14"""
    connected = env.from_collection([1, 2]).connect(env.from_collection(["a"]))
    both = connected.flat_map(CoSides())
    side: list[Any] = []
    both.get_side_output(TAG).add_sink(Collect(side))
    assert results(both) == ["1", "2", "a"]
    assert sorted(side, key=str) == [1, 2, "a" * 10]


def test_tagged_values_that_nobody_reads_do_not_reach_the_main_output(env: Any) -> None:
    """PF-14"""
    assert results(env.from_collection([1]).process(Sides())) == [1]


class Points(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield NAMED, Row(value, 2)
        yield value


@pytest.mark.parametrize("parallelism", [1, 2])
def test_side_output_values_have_the_type_of_the_tag(env: Any, parallelism: int) -> None:
    """PF-14: in the same task or in another task, keyed or not."""
    env.set_parallelism(1)
    points = env.from_collection([1, 2]).process(Points())
    env.set_parallelism(parallelism)
    side = points.get_side_output(NAMED)
    assert sorted(results(side.map(lambda row: (row.x, row.y)))) == [(1, 2), (2, 2)]
    by_x = side.key_by(lambda row: row.x)
    assert sorted(results(by_x.map(lambda row: row.as_dict()["x"]))) == [1, 2]


def test_rows_keep_python_numbers_whatever_type_is_declared(env: Any) -> None:
    numbers = env.from_collection([("a", 2**31 - 1), ("a", 1)])
    sums = numbers.map(lambda v: v, PAIR).key_by(lambda v: v[0]).sum(1)
    assert [v for _, v in sums.execute_and_collect()][-1] == 2**31
    tenths = env.from_collection([1]).map(lambda v: v / 10, Types.FLOAT())
    assert list(tenths.execute_and_collect()) == [0.1]


def test_numbers_in_columns_have_the_range_and_precision_of_their_type(env: Any) -> None:
    def columns(value: Any, kind: Any) -> Any:
        return env.from_collection([value], kind).map_batches(lambda b: b).execute_and_collect()

    assert [row.value for row in columns(0.1, Types.FLOAT())] == [0.10000000149011612]
    with pytest.raises(OperatorError, match=r"128 too large to fit|128 not in range"):
        list(columns(128, Types.BYTE()))
    table = pa.table({"k": ["a", "a"], "v": [2**63 - 1, 1]})
    sums = [row.v for row in env.from_arrow(table).key_by("k").sum("v").execute_and_collect()]
    assert sums == [2**63 - 1, -(2**63)]


def test_collecting_returns_a_list_with_a_limit_and_an_iterator_without(env: Any) -> None:
    """PF-18"""
    stream = env.from_collection([1, 2, 3])
    assert stream.execute_and_collect(limit=2) == [1, 2]
    assert stream.execute_and_collect(limit=100) == [1, 2, 3]
    with env.from_collection([4, 5]).execute_and_collect("job name") as iterator:
        assert next(iterator) == 4
        assert list(iterator) == [5]


class Custom:
    def __init__(self, value: int) -> None:
        self.value = value


def test_objects_of_custom_classes_pass_through_untyped_streams(env: Any) -> None:
    """PF-19"""
    stream = env.from_collection([Custom(1), Custom(2)]).map(lambda c: Custom(c.value * 10))
    assert results(stream.rebalance().map(lambda c: c.value)) == [10, 20]


def test_row_types_make_rows_with_field_names(env: Any) -> None:
    stream = env.from_collection([(1, "a")], Types.ROW([Types.INT(), Types.STRING()]))
    assert results(stream.map(str)) == ["Row(f0=1, f1='a')"]
    named = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    assert results(stream.map(lambda r: (r[0], r.f1), named)) == [Row.of(["id", "name"], [1, "a"])]
    assert results(stream.map(lambda r: r, PAIR)) == [(1, "a")]


def test_instants_can_be_values_and_keys(env: Any) -> None:
    moments = [(Instant.of_epoch_milli(milli),) for milli in (5, -1, 5)]
    stream = env.from_collection(moments, Types.TUPLE([Types.INSTANT()])).key_by(lambda v: v[0])
    before = list(stream.map(RememberMap()).execute_and_collect())
    assert sorted(before, key=str) == [Instant(0, 5_000_000), None, None]
    for nanos in (-1, 1_000_000_000):
        with pytest.raises(ValueError, match="nanos must be 0 to 999999999"):
            Instant(0, nanos)


def test_file_source_accepts_the_enumerators_and_split_assigner_of_flink(
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
