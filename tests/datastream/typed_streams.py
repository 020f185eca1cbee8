"""Programs whose types both type checkers must infer; ``test_types.py`` runs the checkers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from typing_extensions import assert_type

from flinkray.datastream import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    CoMapFunction,
    DataStream,
    JoinFunction,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    Time,
    Types,
)
from flinkray.datastream.common import SimpleStringSchema
from flinkray.datastream.common.io import InputFormat, OutputFormat
from flinkray.datastream.connectors import (
    CallbackSink,
    CollectionSource,
    IteratorSource,
    NumberSequenceSource,
)
from flinkray.datastream.connectors.file_system import FileSource, StreamFormat
from flinkray.datastream.connectors.kafka import KafkaSource
from flinkray.datastream.data_stream import CloseableIterator, ConnectedStreams, WindowedStream
from flinkray.datastream.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from flinkray.datastream.window import TimeWindow, TumblingEventTimeWindows

Pair = tuple[str, int]


def pair(word: str) -> Pair:
    return word, 1


def twice(number: int) -> Iterator[str]:
    yield str(number)
    yield str(number)


class Length(MapFunction[object, int]):
    def map(self, value: object) -> int:
        return len(str(value))


class WithoutArguments(MapFunction):
    def map(self, value: str) -> int:
        return len(value)


class Add(ReduceFunction[Pair]):
    def reduce(self, value1: Pair, value2: Pair) -> Pair:
        return value1[0], value1[1] + value2[1]


late = OutputTag("late", Types.STRING())
of_any: OutputTag[int] = OutputTag("of any")


class Divide(ProcessFunction[int, float]):
    def process_element(
        self, value: int, ctx: ProcessFunction.Context
    ) -> Iterator[float | tuple[OutputTag[str], str]]:
        yield value / 2
        yield late, str(value)


class Mean(AggregateFunction[Pair, list[int], float]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Pair, accumulator: list[int]) -> list[int]:
        return [*accumulator, value[1]]

    def get_result(self, accumulator: list[int]) -> float:
        return sum(accumulator) / len(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return acc_a + acc_b


class Count(KeyedProcessFunction[str, Pair, Pair]):
    def open(self, runtime_context: RuntimeContext) -> None:
        of = runtime_context
        self.value = of.get_state(ValueStateDescriptor("value", Types.LONG()))
        self.list = of.get_list_state(ListStateDescriptor("list", Types.STRING()))
        self.map = of.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))
        self.sum = of.get_reducing_state(ReducingStateDescriptor("sum", Add()))
        self.mean = of.get_aggregating_state(AggregatingStateDescriptor("mean", Mean()))
        assert_type(self.value, ValueState[int])
        assert_type(self.list, ListState[str])
        assert_type(self.map, MapState[str, int])
        assert_type(self.sum, ReducingState[Pair])
        assert_type(self.mean, AggregatingState[Pair, float])

    def process_element(self, value: Pair, ctx: KeyedProcessFunction.Context) -> Iterator[Pair]:
        assert_type(self.value.value(), int | None)
        yield value


class Total(MapFunction[Pair, float]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.aggregates = runtime_context.get_global_aggregate_manager()

    def map(self, value: Pair) -> float:
        mean = self.aggregates.update_global_aggregate("mean", value, Mean())
        assert_type(mean, float)
        return mean


class Letters(InputFormat[str, int]):
    def create_input_splits(self, min_num_splits: int) -> list[int]:
        return [0]

    def open(self, split: int) -> None:
        return

    def reached_end(self) -> bool:
        return True

    def next_record(self) -> str | None:
        return None


class Lines(OutputFormat[str]):
    def open(self, task_number: int, num_tasks: int) -> None:
        return

    def write_record(self, record: str) -> None:
        return


class Bounds(ProcessWindowFunction[float, str, str, TimeWindow]):
    def process(
        self,
        key: str,
        context: ProcessWindowFunction.Context,
        elements: Iterable[float],
    ) -> Iterator[str]:
        yield key


class Label(CoMapFunction[int, str, str]):
    def map1(self, value: int) -> str | None:
        return str(value) if value else None

    def map2(self, value: str) -> str:
        return value


class Joined(ProcessJoinFunction[Pair, Pair, int]):
    def process_element(self, left: Pair, right: Pair, ctx: Any) -> Iterator[int]:
        yield left[1] + right[1]


class Names(JoinFunction[Pair, Pair, str]):
    def join(self, first: Pair, second: Pair) -> str:
        return first[0] + second[0]


class Ask(AsyncFunction[int, str]):
    async def async_invoke(self, value: int) -> list[str]:
        return [str(value)]


class AskRow(AsyncFunction[Row, str]):
    async def async_invoke(self, value: Row) -> list[str]:
        return [str(value)]


env = StreamExecutionEnvironment.get_execution_environment()

# --- sources
numbers = env.from_collection([1, 2, 3])
assert_type(numbers, DataStream[int])
assert_type(env.from_collection([]), DataStream[Any])
assert_type(env.from_collection([("a",)], Types.ROW([Types.STRING()])), DataStream[Row])
assert_type(env.from_sequence(1, 3), DataStream[int])
assert_type(env.from_source(NumberSequenceSource(1, 3)), DataStream[int])
assert_type(env.from_source(CollectionSource(["a"])), DataStream[str])
assert_type(env.from_source(IteratorSource.of(lambda: [1.5])), DataStream[float])
assert_type(env.from_source(CollectionSource([""]), type_info=Types.LONG()), DataStream[int])
assert_type(env.create_input(Letters()), DataStream[str])
assert_type(env.create_input(Letters(), Types.LONG()), DataStream[int])
lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "lines.txt")
assert_type(env.from_source(lines.build()), DataStream[str])
clicks = KafkaSource.builder().set_value_only_deserializer(SimpleStringSchema())
assert_type(env.from_source(clicks.set_topics("clicks").build()), DataStream[str])

# --- functions
assert_type(numbers.map(lambda number: number / 2), DataStream[float])
assert_type(numbers.map(str), DataStream[str])
assert_type(numbers.map(str).map(str.upper).map(len), DataStream[int])
assert_type(numbers.map(Length()), DataStream[int])
assert_type(numbers.map(WithoutArguments()), DataStream[Any])
assert_type(numbers.map(lambda number: (number,), Types.ROW([Types.INT()])), DataStream[Row])
assert_type(numbers.map(str, output_type=Types.LIST(Types.STRING())), DataStream[list[str]])
assert_type(numbers.flat_map(twice), DataStream[str])
assert_type(numbers.flat_map(lambda number: [number, number]), DataStream[int])
assert_type(numbers.filter(lambda number: number > 1), DataStream[int])
assert_type(numbers.process(Divide()), DataStream[float])
assert_type(numbers.process(Divide()).get_side_output(late), DataStream[str])
assert_type(numbers.process(Divide()).get_side_output(of_any), DataStream[int])
assert_type(numbers.union(numbers), DataStream[int])
assert_type(numbers.union(numbers.map(str)), DataStream[int | str])
assert_type(numbers.rebalance(), DataStream[int])
assert_type(numbers.map(str).name("texts").set_parallelism(1), DataStream[str])

# --- keyed streams
words = env.from_collection(["to be", "or not"]).flat_map(lambda line: line.split())
pairs = words.map(pair)
keyed = pairs.key_by(lambda one: one[0])
assert_type(keyed, KeyedStream[Pair, str])
assert_type(pairs.key_by("f0"), KeyedStream[Pair, Any])
assert_type(pairs.key_by("f0", Types.STRING()), KeyedStream[Pair, str])
assert_type(keyed.key_by(lambda one: one[1]), KeyedStream[Pair, int])
assert_type(keyed.sum(1), DataStream[Pair])
assert_type(keyed.reduce(lambda one, other: (one[0], one[1] + other[1])), DataStream[Pair])
assert_type(keyed.reduce(Add()), DataStream[Pair])
assert_type(keyed.process(Count()), DataStream[Pair])
assert_type(keyed.map(lambda one: one[1]), DataStream[int])
assert_type(keyed.filter(lambda one: one[1] > 0), DataStream[Pair])
in_lambda = words.map(lambda word: (word, 1)).key_by(lambda one: one[0])
summed = in_lambda.reduce(lambda one, other: (one[0], one[1] + other[1]))
assert_type(summed.map(lambda one: one[1] + 1), DataStream[int])

# --- windows, two streams, asynchronous functions
windows = keyed.window(TumblingEventTimeWindows.of(5))
assert_type(windows, WindowedStream[Pair, str, TimeWindow])
assert_type(windows.reduce(Add()), DataStream[Pair])
assert_type(windows.aggregate(Mean()), DataStream[float])
assert_type(windows.aggregate(Mean(), Bounds()), DataStream[str])
assert_type(windows.allowed_lateness(5).aggregate(Mean(), output_type=Types.INT()), DataStream[int])
assert_type(numbers.connect(words), ConnectedStreams[int, str])
assert_type(numbers.connect(words).map(Label()), DataStream[str])
assert_type(
    keyed.interval_join(keyed).between(-1, 1).upper_bound_exclusive().process(Joined()),
    DataStream[int],
)
joined = pairs.join(pairs).where(lambda one: one[0]).equal_to(lambda one: one[0])
joining = joined.window(TumblingEventTimeWindows.of(5))
assert_type(joining.apply(Names()), DataStream[str])
assert_type(joining.apply(lambda one, other: one[1] + other[1]), DataStream[int])
assert_type(AsyncDataStream.ordered_wait(numbers, Ask(), Time.seconds(1)), DataStream[str])
assert_type(AsyncDataStream.unordered_wait(keyed, AskRow(), Time.seconds(1)), DataStream[str])

# --- results, and names without type arguments
seen: list[int] = []
numbers.sink_to(CallbackSink(seen.append))
numbers.add_sink(seen.append)
words.write_using_output_format(Lines())
any_stream: DataStream = words
assert_type(any_stream.map(lambda value: value.anything), DataStream[Any])
collect: Callable[[], CloseableIterator[Pair]] = pairs.execute_and_collect
collect_rows: Callable[[], CloseableIterator[Row]] = keyed.execute_and_collect
assert_type(numbers.execute_and_collect(limit=1), list[int])
assert_type(env.from_collection(["a"]).key_by(len).execute_and_collect(limit=1), list[Row])
