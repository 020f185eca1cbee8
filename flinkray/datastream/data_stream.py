"""Streams: the records of operators, and what can be done with them, as in PyFlink's module.

What is done with a stream of one kind gives one of another kind, and back, so that their classes
know each other.  That is why they are all here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

import pyarrow as pa

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.data_stream_sink import DataStreamSink
from flinkray.datastream.environment_settings import EnvironmentSettings
from flinkray.datastream.field_aggregates import FieldReduce, PickBy, Position
from flinkray.datastream.inserted_functions import (
    KeyAndValue,
    KeyOfTagged,
    OfBoth,
    OfPairs,
    Tag,
)
from flinkray.datastream.operator_settings import StreamSettings
from flinkray.datastream.queryable_state_stream import QueryableStateStream
from flinkray.datastream.record_batches import RecordBatches
from flinkray.datastream.window_operator_builder import WindowOperatorBuilder
from flinkray.state.descriptors import MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from flinkray.streaming.columnar.conversion import schema_of
from flinkray.streaming.columnar.key_and_value import KeyAndValueOperator
from flinkray.streaming.columnar.keyed_aggregate import (
    BatchKeyedAggregateOperator,
    KeyedAggregateOperator,
)
from flinkray.streaming.columnar.keyed_batches import KeyedBatchOperator
from flinkray.streaming.columnar.local_aggregate import LocalAggregateOperator
from flinkray.streaming.columnar.map_batches import MapBatchesOperator
from flinkray.streaming.columnar.serialize_batches import SerializeBatchesOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.batch_functions import KeyedBatchFunction, KeyedGroupFunction
from flinkray.streaming.functions.functions import (
    AggregateFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    NullByteKeySelector,
    ProcessFunction,
    ProcessJoinFunction,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.signatures import expect_function, expect_kind
from flinkray.streaming.functions.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from flinkray.streaming.operators.basic import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProjectOperator,
)
from flinkray.streaming.operators.broadcast import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
)
from flinkray.streaming.operators.groups import KeyedGroupOperator
from flinkray.streaming.operators.interval_join import IntervalJoinOperator
from flinkray.streaming.operators.keyed import (
    BatchReduceOperator,
    KeyedFilterOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
    ReduceOperator,
)
from flinkray.streaming.operators.look_up import LookUpOperator
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.process import KeyedProcessOperator, ProcessOperator
from flinkray.streaming.operators.queryable import QueryableStateOperator
from flinkray.streaming.operators.timestamps import TimestampsAndWatermarksOperator
from flinkray.streaming.operators.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from flinkray.streaming.program.transformations import (
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
)
from flinkray.streaming.records.keying import Keys, require_same_keys
from flinkray.streaming.records.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    KeyGroupPartitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
    StreamPartitioner,
)
from flinkray.streaming.records.type_inference import type_of_result
from flinkray.streaming.records.typeinfo import RowTypeInfo, TypeInformation, Types, expect_type
from flinkray.streaming.sinks.simple import PrintOperator, SinkFunctionOperator
from flinkray.streaming.sinks.sink import Sink
from flinkray.streaming.sinks.spark import SparkEpochSink, check_columns
from flinkray.streaming.sinks.writer_operator import SinkWriterOperator
from flinkray.streaming.time.watermarks import WatermarkStrategy
from flinkray.streaming.windowing.assigners import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    WindowAssigner,
)
from flinkray.streaming.windowing.contents import (
    AggregateContents,
    ListContents,
    ReduceContents,
    WindowContents,
)
from flinkray.streaming.windowing.evictors import Evictor
from flinkray.streaming.windowing.triggers import Trigger

if TYPE_CHECKING:
    from flinkray.core.ids import JobVertexID
    from flinkray.datastream.common.execution_config import ExecutionConfig
    from flinkray.datastream.spark_table import SparkTable
    from flinkray.scheduler.graph.job_graph import JobVertex
    from flinkray.spark.user_code import SparkEpochFunction

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CloseableIterator",
    "CoGroupedStreams",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "JoinedStreams",
    "KeyedStream",
    "WindowedStream",
]


class StreamProgram(EnvironmentSettings, ABC):
    """What streams know of their
    :class:`~flinkray.datastream.StreamExecutionEnvironment`: the program so far."""

    def __init__(self) -> None:
        super().__init__()
        self._transformations: list[Transformation] = []
        self._spark_stages: dict[JobVertexID, JobVertex] = {}
        self._tables: dict[SparkTable, DataStream] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: it and its streams stay in the process of the "
            "program, and functions run in others"
        )

    @property
    def to_be_executed(self) -> tuple[Transformation, ...]:
        """The operators that the next execution runs."""
        return tuple(self._transformations)

    def add_spark_stage(self, stage: JobVertex) -> None:
        """For sources that read it, or sinks that hand epochs over to it."""
        self._spark_stages[stage.vertex_id] = stage

    def add(self, transformation: OperatorTransformation) -> DataStream:
        """Make an operator part of the program, with the parallelism that the environment has
        now."""
        transformation.parallelism = self.get_parallelism()
        self._transformations.append(transformation)
        return DataStream(self, transformation)

    @abstractmethod
    def from_stage_of_epochs(
        self,
        stage: JobVertex,
        watermark_strategy: WatermarkStrategy | None,
        name: str,
        type_info: TypeInformation | None,
    ) -> DataStream:
        """What a Spark stage makes of a stream's epochs; the stage is added to the job."""

    @abstractmethod
    def from_table(self, table: SparkTable) -> DataStream:
        """The rows of a table, which are read once, whoever looks them up."""

    @abstractmethod
    def collect_results(
        self, stream: DataStream, job_name: str | None, limit: int | None
    ) -> CloseableIterator | list[Any]:
        """See :meth:`DataStream.execute_and_collect`."""


class DataStream(StreamSettings):
    """A stream of records.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> env.from_collection([1, 2, 3]).map(lambda x: x * 10).execute_and_collect(limit=3)
    [10, 20, 30]
    """

    def __init__(self, env: StreamProgram, transformation: Transformation) -> None:
        self._env = env
        self._stream = transformation

    # --- about the stream -----------------------------------------------------------------------

    def get_name(self) -> str:
        """The operator's name."""
        return self._stream.name

    def get_type(self) -> TypeInformation:
        """The declared type of the records; pickled bytes where none is known."""
        return self._stream.type_info or Types.PICKLED_BYTE_ARRAY()

    def get_execution_environment(self) -> StreamProgram:
        """Where the program began: its StreamExecutionEnvironment."""
        return self._env

    def get_execution_config(self) -> ExecutionConfig:
        """That of the environment."""
        return self._env.get_config()

    # --- record by record -----------------------------------------------------------------------

    def map(self, func: Any, output_type: TypeInformation | None = None) -> DataStream:
        """One value for each value.

        Args:
            func: a MapFunction, or a function of a value.
            output_type: what it returns; read from its type hints if not given.
        """
        expect_function(func, "map", "a MapFunction")
        output_type = output_type or type_of_result(getattr(func, "map", func))
        return self._then("Map", MapOperator(func), output_type)

    def flat_map(self, func: Any, output_type: TypeInformation | None = None) -> DataStream:
        """Any number of values for each value: a generator, a list or None."""
        expect_function(func, "flat_map", "a FlatMapFunction")
        return self._then("FlatMap", FlatMapOperator(func), output_type)

    def filter(self, func: Any) -> DataStream:
        """The values for which *func* returns true."""
        expect_function(func, "filter", "a FilterFunction")
        return self._then("Filter", FilterOperator(func), self._stream.type_info, typed=False)

    def process(self, func: ProcessFunction[Any, Any], output_type: Any = None) -> DataStream:
        """Any number of results, side outputs (``yield tag, value``) and time."""
        what = "process on a stream without keys needs a ProcessFunction"
        expect_kind(func, ProcessFunction, what)
        return self._then("PROCESS", ProcessOperator(func), output_type)

    def project(self, *field_indexes: int) -> DataStream:
        """Some fields of rows or tuples."""
        if not field_indexes or any(not isinstance(index, int) for index in field_indexes):
            raise TypeError(f"project takes the positions of fields, got {field_indexes!r}")
        known = self._stream.type_info
        projected: TypeInformation | None = None
        if isinstance(known, RowTypeInfo):
            projected = Types.ROW_NAMED(
                [known.field_names[index] for index in field_indexes],
                [known.field_types[index] for index in field_indexes],
            )
        elif hasattr(known, "field_types"):
            projected = Types.TUPLE([known.field_types[index] for index in field_indexes])
        return self._then("Projection", ProjectOperator(field_indexes), projected, typed=False)

    def map_batches(
        self, func: Callable[..., Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """Calls *func* with whole Arrow record batches; it returns a batch, a table, several, or
        None.  Streams of Python values are turned into columns for it.

        >>> import pyarrow as pa, pyarrow.compute as pc
        >>> from flinkray.datastream import StreamExecutionEnvironment
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> def doubled(batch):
        ...     return pa.record_batch({"x": pc.multiply(batch["x"], 2)})
        >>> env.from_arrow(pa.table({"x": [1, 2]})).map_batches(doubled).execute_and_collect(2)
        [Row(x=2), Row(x=4)]
        """
        expect_function(func, "map_batch", "an object with map_batch")
        operator = MapBatchesOperator(func, self._stream.type_info)
        return self._then("MapBatches", operator, output_type)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Give the records timestamps, and the stream watermarks."""
        stream = self._then(
            "Timestamps/Watermarks",
            TimestampsAndWatermarksOperator(watermark_strategy),
            self._stream.type_info,
            typed=False,
        )
        stream._transformation.batch_operator = TimestampsAndWatermarksOperator(
            watermark_strategy, progressive=False
        )
        return stream

    # --- where records go -----------------------------------------------------------------------

    def key_by(self, key_selector: Any, key_type: TypeInformation | None = None) -> KeyedStream:
        """Records of one key go to one subtask and share state.

        Args:
            key_selector: a KeySelector, a function, or the name of a field; with a name, streams of
                columns stay columns.
            key_type: to which all keys are converted; without it they are what the selector gives.
        """
        if key_type is not None:
            expect_type(key_type)
        return KeyedStream(self, Keys(key_selector, key_type))

    def union(self, *streams: DataStream) -> DataStream:
        """The records of this and other streams, in no particular order.  They are of no declared
        type unless all streams are of the same."""
        inputs = [self._stream, *(_values(stream)._stream for stream in streams)]
        declared = self._stream.type_info
        is_one = all(_are_one(stream.type_info, declared) for stream in inputs)
        return DataStream(
            self._env, UnionTransformation("Union", declared if is_one else None, inputs)
        )

    @overload
    def connect(self, ds: DataStream) -> ConnectedStreams: ...
    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...
    def connect(
        self, ds: DataStream | BroadcastStream
    ) -> ConnectedStreams | BroadcastConnectedStream:
        """Two streams, of different types maybe, for one operator; two keyed streams share state
        and timers."""
        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds)
        return ConnectedStreams(self, ds)

    def join(self, other: DataStream) -> JoinedStreams:
        """Pairs with another stream's records of the same key and window:
        ``.where(key).equal_to(key).window(assigner).apply(function)``."""
        return JoinedStreams(self, other)

    def co_group(self, other: DataStream) -> CoGroupedStreams:
        """The records of both streams by key and window, built up as with :meth:`join`."""
        return CoGroupedStreams(self, other)

    @overload
    def broadcast(self) -> DataStream: ...
    @overload
    def broadcast(
        self,
        descriptor: MapStateDescriptor[Any, Any],
        /,
        *broadcast_state_descriptors: MapStateDescriptor[Any, Any],
    ) -> BroadcastStream: ...
    def broadcast(
        self, *broadcast_state_descriptors: MapStateDescriptor[Any, Any]
    ) -> DataStream | BroadcastStream:
        """Every record to every subtask; with descriptors, to be connected as broadcast state."""
        partitioned = self._partitioned(BroadcastPartitioner())
        if not broadcast_state_descriptors:
            return partitioned
        return BroadcastStream(partitioned, broadcast_state_descriptors)

    def shuffle(self) -> DataStream:
        """Each record to a random subtask."""
        return self._partitioned(ShufflePartitioner())

    def rebalance(self) -> DataStream:
        """To all subtasks in turn."""
        return self._partitioned(RebalancePartitioner())

    def rescale(self) -> DataStream:
        """In turn to the few subtasks that belong to the sending one."""
        return self._partitioned(RescalePartitioner())

    def forward(self) -> DataStream:
        """To the subtask with the same number."""
        return self._partitioned(ForwardPartitioner())

    def partition_custom(self, partitioner: Any, key_selector: Any) -> DataStream:
        """To the subtask that a function of key and number of subtasks says."""
        expect_function(partitioner, "partition", "a Partitioner", 2)
        return self._partitioned(CustomPartitioner(partitioner, Keys(key_selector)))

    def window_all(self, window_assigner: Any) -> AllWindowedStream:
        """Windows over all records; they are evaluated by one subtask."""
        return AllWindowedStream(self._keyed_by_nothing(), window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream:
        """Windows of so many records, whatever their key."""
        return AllWindowedStream(self._keyed_by_nothing(), count_assigner(size, slide))

    def _keyed_by_nothing(self) -> KeyedStream:
        return self.key_by(NullByteKeySelector(), Types.BYTE())

    def get_side_output(self, output_tag: OutputTag[Any]) -> DataStream:
        """What the operator sent to a side output."""
        if not isinstance(output_tag, OutputTag):
            raise TypeError(f"get_side_output takes an OutputTag, got {output_tag!r}")
        return DataStream(
            self._env,
            SideOutputTransformation(
                output_tag.tag_id,
                output_tag.type_info,
                input=self._stream,
                tag_id=output_tag.tag_id,
            ),
        )

    # --- the end --------------------------------------------------------------------------------

    def add_sink(self, sink_func: Any) -> DataStreamSink:
        """Hand every value to a SinkFunction, or to a plain function.  One with a method
        ``set_input_type`` is told the stream's type by it, None where none is known."""
        expect_function(sink_func, "invoke", "a SinkFunction")
        if hasattr(sink_func, "set_input_type"):
            sink_func.set_input_type(self._stream.type_info)
        return self.end_with("Sink: Unnamed", SinkFunctionOperator(sink_func))

    def sink_to(self, sink: Sink[Any]) -> DataStreamSink:
        """Write into a Sink."""
        if not isinstance(sink, Sink):
            raise TypeError(f"sink_to takes a Sink, got {sink!r}; functions go to add_sink")
        return self.end_with("Sink: Writer", SinkWriterOperator(sink, self._stream.type_info))

    def to_spark(
        self,
        function: SparkEpochFunction,
        name: str = "Spark",
        *,
        executors: int = 1,
        cpu: float = 1,
        memory: int | str = "1g",
        spark_conf: Mapping[str, object] | None = None,
        session: str | None = None,
    ) -> DataStreamSink:
        """Hand the rows of each checkpoint to ``function(dataframe, checkpoint_id)``, one after the
        other, when it is complete.

        The function runs in the slots of the job, beside the program.  What dies meanwhile, it is
        given the same rows with the same id again until it has returned; so it is to write them
        such that a second time changes nothing.  Without checkpoints there is one call, at the end.
        See docs/spark.md.

        Args:
            executors: Spark executors, each in a slot of its own.
            cpu: cores of each of these slots.
            memory: of each, as ``"1500m"``, ``"2g"`` or bytes.
            spark_conf: Spark properties; those that flinkray sets itself are refused.
            session: name of a Spark session that stages and jobs share, which has these executors;
                see :func:`flinkray.spark_job`.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
            SinkError: Spark knows no such type as a column of the stream's declared type has.
        """
        from flinkray.client.spark_stages import ExecutorSlots, epochs_spark_stage

        slots = ExecutorSlots(executors, cpu, memory, spark_conf, session)
        stage = epochs_spark_stage(function, name, slots, is_read=False)
        return self._into_stage(stage, name, is_read=False)

    def through_spark(
        self,
        function: SparkEpochFunction,
        watermark_strategy: WatermarkStrategy | None = None,
        name: str = "Spark",
        type_info: TypeInformation | None = None,
        *,
        executors: int = 1,
        cpu: float = 1,
        memory: int | str = "1g",
        spark_conf: Mapping[str, object] | None = None,
        session: str | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Have Spark make something of the rows of each checkpoint, when it is complete: the stream
        of the rows of the DataFrames that ``function(dataframe, checkpoint_id)`` returns, in
        batches of columns.

        The function runs in the slots of the job, beside the program, and is called for one
        checkpoint after the other.  All of its DataFrames have the same columns.  See
        docs/spark.md.

        Args:
            watermark_strategy: of the stream that comes back, which has no timestamps by itself.
            type_info: what its rows are to be, if that is not what the columns are.
            executors: Spark executors, each in a slot of its own.
            cpu: cores of each of these slots.
            memory: of each, as ``"1500m"``, ``"2g"`` or bytes.
            spark_conf: Spark properties; those that flinkray sets itself are refused.
            session: name of a Spark session that stages and jobs share, which has these executors;
                see :func:`flinkray.spark_job`.
            uid: of the source that comes back, for savepoints; those of the sink for Spark follow
                from it.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
            SinkError: Spark knows no such type as a column of the stream's declared type has.
        """
        from flinkray.client.spark_stages import ExecutorSlots, epochs_spark_stage

        slots = ExecutorSlots(executors, cpu, memory, spark_conf, session)
        stage = epochs_spark_stage(function, name, slots, is_read=True)
        sink = self._into_stage(stage, name, is_read=True)
        stream = self._env.from_stage_of_epochs(stage, watermark_strategy, name, type_info)
        if uid is not None:
            sink.uid(f"To Spark: {uid}")
            stream.uid(uid)
        return stream

    def _into_stage(self, stage: JobVertex, name: str, is_read: bool) -> DataStreamSink:
        declared = None if self._stream.type_info is None else self._stream.type_info.to_arrow()
        if declared is not None:
            check_columns(schema_of(declared))
        self._env.add_spark_stage(stage)
        sink = SparkEpochSink(stage.vertex_id, name, is_read)
        operator = SinkWriterOperator(sink, self._stream.type_info)
        return self.end_with(f"Sink: {name}: Writer", operator)

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Write every value on a line of standard output."""
        operator = PrintOperator(sink_identifier, self._stream.type_info)
        return self.end_with("Sink: Print to Std. Out", operator)

    @overload
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: None = None
    ) -> CloseableIterator: ...
    @overload
    def execute_and_collect(self, job_execution_name: int) -> list[Any]: ...
    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[Any]: ...
    @overload
    def execute_and_collect(self, *, limit: int) -> list[Any]: ...
    def execute_and_collect(
        self, job_execution_name: str | int | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Run the program and give this stream's records: at most *limit* in a list, or all by an
        iterator, which closes the program when it is closed.  Those of a keyed stream are rows of
        key and value, f0 and f1."""
        if isinstance(job_execution_name, int):
            job_execution_name, limit = None, job_execution_name
        return self._env.collect_results(self._collected(), job_execution_name, limit)

    def execute_and_collect_arrow(self, job_execution_name: str | None = None) -> RecordBatches:
        """Run the program and give this stream's records as ``pyarrow.RecordBatch``: an iterator,
        which ends the program when it is closed.  Columns never become Python objects on the way;
        streams of Python values are turned into columns.

        >>> import pyarrow as pa
        >>> from flinkray.datastream import StreamExecutionEnvironment
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> squares = env.from_sequence(1, 3).map(lambda n: (n, n * n))
        >>> pa.Table.from_batches(squares.execute_and_collect_arrow())["f1"].to_pylist()
        [1, 4, 9]
        """
        collected = self._collected_columns()
        operator = SerializeBatchesOperator(collected._stream.type_info)
        serialized = collected._then("Serialize Batches", operator, None, typed=False)
        return RecordBatches(serialized.execute_and_collect(job_execution_name))

    def _collected(self) -> DataStream:
        """The stream of what PyFlink takes the records for where it does not look at keys: in
        :meth:`execute_and_collect`, and in asynchronous functions."""
        return self

    def _collected_columns(self) -> DataStream:
        """The same as columns."""
        return self

    # --- building -------------------------------------------------------------------------------

    def _then(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        typed: bool = True,
        **settings: Any,
    ) -> DataStream:
        """A stream of the results of one more operator."""
        transformation = OperatorTransformation(
            name,
            output_type,
            operator=operator,
            inputs=[self._stream],
            convert=expect_type(output_type).converter() if typed and output_type else None,
            **settings,
        )
        return self._env.add(transformation)

    def end_with(self, name: str, operator: StreamOperator) -> DataStreamSink:
        """For sinks: an operator that nothing follows."""
        transformation = OperatorTransformation(
            name, operator=operator, inputs=[self._stream], kind="Data Sink"
        )
        self._env.add(transformation)
        return DataStreamSink(transformation)

    def _partitioned(self, partitioner: StreamPartitioner) -> DataStream:
        transformation = PartitionTransformation(
            partitioner.name.capitalize(),
            self._stream.type_info,
            input=self._stream,
            partitioner=partitioner,
        )
        return DataStream(self._env, transformation)

    def _by_key(self, keys: Keys, always: bool = False) -> Transformation:
        return PartitionTransformation(
            "Hash",
            self._stream.type_info,
            input=self._stream,
            partitioner=KeyGroupPartitioner(keys, always),
        )


def _are_one(one: TypeInformation | None, other: TypeInformation | None) -> bool:
    """Also where values become columns, whose zones and units may differ."""
    if one is None or other is None:
        return one is other
    return one == other and one.to_arrow() == other.to_arrow()


def _summed(kind: TypeInformation | None, position: Position) -> TypeInformation | None:
    """The type of rows of which a column of integers is summed up: sums have 64 bits."""
    if not isinstance(kind, RowTypeInfo) or position not in kind.field_names:
        return kind
    types, place = kind.get_field_types(), kind.get_field_index(str(position))
    if types[place] in (Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG()):
        types[place] = Types.LONG()
    elif types[place] in (Types.FLOAT(), Types.DOUBLE()):
        types[place] = types[place].with_arrow(pa.float64())
    return RowTypeInfo(types, kind.field_names if kind.is_named else None)


def _unsupported(what: str) -> Any:
    def refuse(self: KeyedStream, *args: Any, **kwargs: Any) -> NoReturn:
        raise StreamError(f"{what} is not supported on a KeyedStream: call it before key_by")

    refuse.__doc__ = "Not supported on a keyed stream: raises StreamError."
    return refuse


class KeyedStream(DataStream):
    """A stream with keys.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> pairs = env.from_collection([("a", 1), ("b", 5), ("a", 2)])
    >>> pairs.key_by(lambda pair: pair[0]).sum(1).execute_and_collect(limit=3)
    [('a', 1), ('b', 5), ('a', 3)]
    """

    def __init__(self, origin: DataStream, keys: Keys) -> None:
        super().__init__(origin._env, origin._by_key(keys))
        self._origin = origin
        self._keys = keys

    # --- functions ------------------------------------------------------------------------------

    def map(self, func: Any, output_type: TypeInformation | None = None) -> DataStream:
        """As on any stream; a MapFunction may use keyed state."""
        expect_function(func, "map", "a MapFunction")
        output_type = output_type or type_of_result(getattr(func, "map", func))
        if isinstance(func, Function):
            return self._then_keyed("Map", KeyedMapOperator(func, self._keys), output_type)
        return self._then("Map", MapOperator(func), output_type)

    def flat_map(self, func: Any, output_type: TypeInformation | None = None) -> DataStream:
        """As on any stream; a FlatMapFunction may use keyed state."""
        expect_function(func, "flat_map", "a FlatMapFunction")
        if isinstance(func, Function):
            operator = KeyedFlatMapOperator(func, self._keys)
            return self._then_keyed("FlatMap", operator, output_type)
        return self._then("FlatMap", FlatMapOperator(func), output_type)

    def filter(self, func: Any) -> DataStream:
        """As on any stream; a FilterFunction may use keyed state."""
        expect_function(func, "filter", "a FilterFunction")
        known = self._stream.type_info
        if isinstance(func, Function):
            operator = KeyedFilterOperator(func, self._keys)
            return self._then_keyed("Filter", operator, known, typed=False)
        return self._then("Filter", FilterOperator(func), known, typed=False)

    def process(  # type: ignore[override]
        self, func: KeyedProcessFunction[Any, Any, Any], output_type: Any = None
    ) -> DataStream:
        """State and timers of the record's key, any number of results, side outputs."""
        what = "process on a keyed stream needs a KeyedProcessFunction"
        expect_kind(func, KeyedProcessFunction, what)
        operator = KeyedProcessOperator(func, self._keys)
        return self._then_keyed("KEYED PROCESS", operator, output_type)

    def process_groups(
        self, func: KeyedGroupFunction[Any, Any, Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """Call *func* with all records of one key that have come together: the same as ``process``,
        with state looked up once for them.  Results have the latest timestamp of these records.

        >>> from flinkray.datastream import KeyedGroupFunction, StreamExecutionEnvironment
        >>> class Count(KeyedGroupFunction):
        ...     def process_group(self, key, values, ctx):
        ...         yield key, len(values)
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> letters = env.from_collection("abaa").key_by(lambda letter: letter)
        >>> letters.process_groups(Count()).execute_and_collect(limit=2)
        [('a', 3), ('b', 1)]
        """
        what = "process_groups needs a KeyedGroupFunction"
        expect_kind(func, KeyedGroupFunction, what)
        operator = KeyedGroupOperator(func, self._keys)
        return self._then_keyed("KEYED GROUPS", operator, output_type)

    def process_batches(
        self, func: KeyedBatchFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Call *func* with whole Arrow batches and the slots of their keys in arrays of state.
        Streams of Python values are turned into columns for it.

        >>> import numpy as np, pyarrow as pa
        >>> from flinkray.datastream import KeyedBatchFunction, StreamExecutionEnvironment
        >>> from flinkray.datastream.state import ArrayStateDescriptor
        >>> class Sums(KeyedBatchFunction):
        ...     def open(self, runtime_context):
        ...         self.sums = runtime_context.get_array_state(ArrayStateDescriptor("sum", int))
        ...
        ...     def process_batch(self, batch, ctx):
        ...         np.add.at(self.sums.values, ctx.slots, batch["x"].to_numpy())
        ...         return pa.record_batch({"k": batch["k"], "sum": self.sums.values[ctx.slots]})
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> table = pa.table({"k": ["a", "b", "a"], "x": [1, 2, 3]})
        >>> env.from_arrow(table).key_by("k").process_batches(Sums()).execute_and_collect(3)
        [Row(k='a', sum=4), Row(k='b', sum=2), Row(k='a', sum=4)]
        """
        what = "process_batches needs a KeyedBatchFunction"
        expect_kind(func, KeyedBatchFunction, what)
        operator = KeyedBatchOperator(func, self._keys, self._stream.type_info)
        return self._then_keyed("KEYED BATCHES", operator, output_type, sort_keys=None)

    def reduce(self, func: Any) -> DataStream:
        """The reduced value of the key, after every record; in batch mode at the end only."""
        expect_function(func, "reduce", "a ReduceFunction", 2)
        return self._reduced("Keyed Reduce", ReduceOperator(func, self._keys), func)

    def _reduced(self, name: str, operator: StreamOperator, func: Any) -> DataStream:
        stream = self._then_keyed(name, operator, self._stream.type_info, typed=False)
        stream._transformation.batch_operator = BatchReduceOperator(func, self._keys)
        return stream

    def sum(self, position_to_sum: Position = 0) -> DataStream:
        """Rolling sum of a field, by position or name; the other fields are the first record's.

        With ``key_by("name")`` and a field's name, streams of columns stay columns."""
        return self._rolling("sum", position_to_sum)

    def min(self, position_to_min: Position = 0) -> DataStream:
        """Rolling minimum of a field; NaN is greater than every number."""
        return self._rolling("min", position_to_min)

    def max(self, position_to_max: Position = 0) -> DataStream:
        """Rolling maximum of a field; NaN is greater than every number."""
        return self._rolling("max", position_to_max)

    def min_by(self, position_to_min_by: Position = 0) -> DataStream:
        """The record with the least field so far; of equals the first."""
        func = PickBy("min", position_to_min_by)
        return self._reduced("Keyed MinBy", ReduceOperator(func, self._keys), func)

    def max_by(self, position_to_max_by: Position = 0) -> DataStream:
        """The record with the greatest field so far; of equals the first."""
        func = PickBy("max", position_to_max_by)
        return self._reduced("Keyed MaxBy", ReduceOperator(func, self._keys), func)

    def _rolling(self, how: str, position: Position) -> DataStream:
        func = FieldReduce(how, position)
        operator: ReduceOperator
        if isinstance(position, str) and self._keys.field is not None:
            operator = KeyedAggregateOperator(how, position, func, self._keys)
            stream = self._reduced(f"Keyed {how.capitalize()}", operator, func)
            if how == "sum":
                stream._transformation.type_info = _summed(self._stream.type_info, position)
            stream._transformation.batch_operator = BatchKeyedAggregateOperator(
                how, position, func, self._keys
            )
            stream._transformation.local_operator = LocalAggregateOperator(
                how, position, self._keys
            )
            return stream
        operator = ReduceOperator(func, self._keys)
        return self._reduced(f"Keyed {how.capitalize()}", operator, func)

    # --- windows and joins ----------------------------------------------------------------------

    def window(self, window_assigner: Any) -> WindowedStream:
        """Windows of each key."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Windows of so many records of a key; with *slide*, a new one every so many."""
        return WindowedStream(self, count_assigner(size, slide))

    def look_up(
        self, table: SparkTable, func: Any, output_type: TypeInformation | None = None
    ) -> DataStream:
        """One value for each value and the row of its key in a table that Spark computes.

        Values wait until all of the table has been read, those of a key in their order, and time
        waits with them.  See docs/spark.md.

        Args:
            table: what :func:`flinkray.spark_table` gives; its key is of the kind of the stream's.
            func: a function of a value and a row, or an object with such a method ``look_up``.  It
                is given None where the table has no row of the key; None is no key.
            output_type: of what it returns.
        """
        from flinkray.datastream.spark_table import SparkTable

        if not isinstance(table, SparkTable):
            raise TypeError(f"look_up takes what flinkray.spark_table(...) gives, got {table!r}")
        expect_function(func, "look_up", "an object with look_up", 2)
        rows = self._env.from_table(table).key_by(table.key_selector, self._keys.key_type)
        return looked_up(self, rows, func, table.name, output_type)

    def interval_join(self, other: KeyedStream) -> IntervalJoin:
        """Pairs of records of a key whose times differ by no more than bounds."""
        return IntervalJoin(self, other)

    # --- the stream -----------------------------------------------------------------------------

    def key_by(self, key_selector: Any, key_type: TypeInformation | None = None) -> KeyedStream:
        """Other keys instead."""
        return self._origin.key_by(key_selector, key_type)

    def union(self, *streams: DataStream) -> DataStream:
        """The records of this and other streams, without keys."""
        return self._values().union(*streams)

    def as_queryable_state(
        self, queryable_state_name: str, state_descriptor: StateDescriptor | None = None
    ) -> QueryableStateStream:
        """Keep the stream in a state that clients query (docs/queryable-state.md): the last record
        of each key, or what a reducing or aggregating state makes of all of them.

        Args:
            state_descriptor: of value, reducing or aggregating state; None: value state of the
                stream's type.
        """
        descriptor = state_descriptor or ValueStateDescriptor(
            f"Queryable state {queryable_state_name}", self._stream.type_info
        )
        if descriptor.kind not in ("value", "reducing", "aggregating"):
            raise StreamError(
                f"a stream is no {descriptor.kind} state, which would grow for ever: give "
                "as_queryable_state a descriptor of value, reducing or aggregating state"
            )
        descriptor.set_queryable(queryable_state_name)
        operator = QueryableStateOperator(descriptor, self._keys)
        transformation = OperatorTransformation(
            f"Queryable state: {queryable_state_name}",
            operator=operator,
            inputs=[self._stream],
            kind="Data Sink",
            keyed=True,
        )
        self._env.add(transformation)
        return QueryableStateStream(queryable_state_name, descriptor, transformation)

    def end_with(self, name: str, operator: StreamOperator) -> DataStreamSink:
        """As on any stream; records of one key go to one subtask."""
        return self._values().end_with(name, operator)

    def _values(self) -> DataStream:
        """The stream for operators that do not look at keys, which are asked for in any case."""
        return DataStream(self._env, self._origin._by_key(self._keys, always=True))

    def _collected(self) -> DataStream:
        value_type = self._stream.type_info or Types.PICKLED_BYTE_ARRAY()
        row_type = Types.ROW([self.get_key_type(), value_type])
        operator = MapOperator(KeyAndValue(self._keys))
        return super()._then("Key and value", operator, row_type, typed=False)

    def _collected_columns(self) -> DataStream:
        operator = KeyAndValueOperator(self._keys, self._stream.type_info)
        return super()._then("Key and value", operator, None, typed=False)

    def get_key_type(self) -> TypeInformation:
        """The declared type of the keys; pickled bytes where none is known."""
        return self._keys.key_type or Types.PICKLED_BYTE_ARRAY()

    shuffle = _unsupported("shuffle")
    rebalance = _unsupported("rebalance")
    rescale = _unsupported("rescale")
    broadcast = _unsupported("broadcast")
    forward = _unsupported("forward")
    partition_custom = _unsupported("partition_custom")
    name = _unsupported("name")
    get_name = _unsupported("get_name")
    uid = _unsupported("uid")
    set_uid_hash = _unsupported("set_uid_hash")
    set_parallelism = _unsupported("set_parallelism")
    set_max_parallelism = _unsupported("set_max_parallelism")
    set_description = _unsupported("set_description")
    force_non_parallel = _unsupported("force_non_parallel")
    set_buffer_timeout = _unsupported("set_buffer_timeout")
    start_new_chain = _unsupported("start_new_chain")
    disable_chaining = _unsupported("disable_chaining")
    slot_sharing_group = _unsupported("slot_sharing_group")

    def _then(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        typed: bool = True,
        **settings: Any,
    ) -> DataStream:
        return self._values()._then(name, operator, output_type, typed, **settings)

    def _then_keyed(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        typed: bool = True,
        **settings: Any,
    ) -> DataStream:
        settings.setdefault("sort_keys", (self._keys,))
        return super()._then(name, operator, output_type, typed, keyed=True, **settings)


def _values(stream: DataStream) -> DataStream:
    return stream._values() if isinstance(stream, KeyedStream) else stream


def two_input_stream(
    name: str,
    operator: StreamOperator,
    first: DataStream,
    second: DataStream,
    output_type: TypeInformation | None,
    keyed: bool,
    sort_keys: tuple[Keys | None, Keys | None] | None = None,
) -> DataStream:
    """The results of an operator on two streams; batch mode sorts them by *sort_keys*."""
    transformation = OperatorTransformation(
        name,
        output_type,
        operator=operator,
        inputs=[first._stream, second._stream],
        convert=None if output_type is None else output_type.converter(),
        keyed=keyed,
        sort_keys=sort_keys,
    )
    return first._env.add(transformation)


def looked_up(
    stream: KeyedStream,
    rows: KeyedStream,
    func: Any,
    name: str,
    output_type: TypeInformation | None = None,
) -> DataStream:
    """What a function makes of each value and the row of its key, when the stream of rows has
    ended: see :meth:`KeyedStream.look_up`.

    Args:
        rows: a bounded stream; no key has two.
        name: what they are, together.
    """
    require_same_keys(stream._keys, rows._keys)
    operator = LookUpOperator(func, stream._keys, rows._keys, name)
    result = two_input_stream(f"Look up {name}", operator, stream, rows, output_type, True)
    result._transformation.broadcast_first = True
    return result


class ConnectedStreams:
    """Two streams for one function.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> from flinkray.datastream.functions import CoMapFunction
    >>> class Both(CoMapFunction):
    ...     def map1(self, value):
    ...         return f"number {value}"
    ...
    ...     def map2(self, value):
    ...         return f"text {value}"
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> both = env.from_collection([1]).connect(env.from_collection(["x"])).map(Both())
    >>> sorted(both.execute_and_collect(limit=2))
    ['number 1', 'text x']
    """

    def __init__(self, stream1: DataStream, stream2: DataStream) -> None:
        self.stream1 = stream1
        self.stream2 = stream2

    def key_by(
        self,
        key_selector1: Any,
        key_selector2: Any,
        key_type: TypeInformation | None = None,
    ) -> ConnectedStreams:
        """Key both, by keys of one kind."""
        return ConnectedStreams(
            self.stream1.key_by(key_selector1, key_type),
            self.stream2.key_by(key_selector2, key_type),
        )

    def _keys(self) -> tuple[Keys, Keys] | None:
        first, second = self.stream1, self.stream2
        if isinstance(first, KeyedStream) and isinstance(second, KeyedStream):
            require_same_keys(first._keys, second._keys)
            return first._keys, second._keys
        if isinstance(first, KeyedStream) or isinstance(second, KeyedStream):
            raise StreamError("only one of the connected streams is keyed: key both, or none")
        return None

    def map(
        self, func: CoMapFunction[Any, Any, Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """``map1`` for the first stream's values, ``map2`` for the second's."""
        expect_kind(func, CoMapFunction, "a CoMapFunction is needed")
        keys = self._keys()
        return self._then("Co-Map", CoMapOperator(func, keys), output_type, keys)

    def flat_map(
        self, func: CoFlatMapFunction[Any, Any, Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """``flat_map1`` and ``flat_map2``."""
        expect_kind(func, CoFlatMapFunction, "a CoFlatMapFunction is needed")
        keys = self._keys()
        return self._then("Co-Flat Map", CoFlatMapOperator(func, keys), output_type, keys)

    def process(
        self,
        func: CoProcessFunction[Any, Any, Any] | KeyedCoProcessFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """``process_element1`` and ``process_element2``; keyed streams take a
        KeyedCoProcessFunction, with state and timers."""
        keys = self._keys()
        operator: StreamOperator
        if keys is not None:
            what = "keyed streams need a KeyedCoProcessFunction"
            function = expect_kind(func, KeyedCoProcessFunction, what)
            operator = KeyedCoProcessOperator(function, *keys)
        else:
            function = expect_kind(func, CoProcessFunction, "a CoProcessFunction is needed")
            operator = CoProcessOperator(function)
        return self._then("Co-Process", operator, output_type, keys)

    def _then(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        keys: tuple[Keys, Keys] | None,
    ) -> DataStream:
        return two_input_stream(
            name, operator, self.stream1, self.stream2, output_type, keys is not None, keys
        )


class BroadcastStream:
    """A stream that every subtask receives whole, with the state it fills."""

    def __init__(
        self,
        input_stream: DataStream,
        broadcast_state_descriptors: tuple[MapStateDescriptor[Any, Any], ...],
    ) -> None:
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise TypeError(
                    f"broadcast state is described by a MapStateDescriptor, got {descriptor!r}"
                )
        self.input_stream = input_stream
        self.broadcast_state_descriptors = tuple(broadcast_state_descriptors)


class BroadcastConnectedStream:
    """A stream and a broadcast stream for one function."""

    def __init__(self, non_broadcast_stream: DataStream, broadcast_stream: BroadcastStream) -> None:
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream

    def process(
        self,
        func: BroadcastProcessFunction[Any, Any, Any]
        | KeyedBroadcastProcessFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """A keyed stream takes a KeyedBroadcastProcessFunction."""
        stream = self.non_broadcast_stream
        descriptors = self.broadcast_stream.broadcast_state_descriptors
        operator: StreamOperator
        if isinstance(stream, KeyedStream):
            what = "a KeyedBroadcastProcessFunction is needed"
            function = expect_kind(func, KeyedBroadcastProcessFunction, what)
            operator = KeyedBroadcastProcessOperator(function, stream._keys, descriptors)
        else:
            what = "a BroadcastProcessFunction is needed"
            function = expect_kind(func, BroadcastProcessFunction, what)
            operator = BroadcastProcessOperator(function, descriptors)
        result = two_input_stream(
            "Co-Process-Broadcast",
            operator,
            stream,
            self.broadcast_stream.input_stream,
            output_type,
            isinstance(stream, KeyedStream),
            (stream._keys, None) if isinstance(stream, KeyedStream) else None,
        )
        result._transformation.broadcast_first = True
        return result


_Self = TypeVar("_Self", bound="_Windowed")


def count_assigner(size: int, slide: int) -> WindowAssigner:
    if slide:
        return CountSlidingWindowAssigner(size, slide)
    return CountTumblingWindowAssigner(size)


class _Windowed:
    """What windows of a key and windows of everything have in common."""

    _keyed = True

    def __init__(self, keyed_stream: KeyedStream, window_assigner: WindowAssigner) -> None:
        self._stream = keyed_stream
        self._builder = WindowOperatorBuilder(window_assigner)

    def get_execution_environment(self) -> Any:
        """Where the program began."""
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """The type of the records in the windows."""
        return self._stream.get_type()

    def trigger(self: _Self, trigger: Trigger) -> _Self:
        """Evaluate windows when this says so, instead of the assigner's own trigger."""
        self._builder.trigger(trigger)
        return self

    def evictor(self: _Self, evictor: Evictor) -> _Self:
        """Leave records out when a window is evaluated; all of them are kept until then."""
        self._builder.evictor(evictor)
        return self

    def allowed_lateness(self: _Self, time_ms: int | Time | Duration) -> _Self:
        """Keep windows for so long after their end; late records fire them again."""
        self._builder.allowed_lateness(time_ms)
        return self

    def side_output_late_data(self: _Self, output_tag: OutputTag[Any]) -> _Self:
        """Where records go that come too late for all their windows; otherwise they are dropped."""
        self._builder.side_output_late_data(output_tag)
        return self

    def reduce(
        self,
        reduce_function: Any,
        window_function: Any = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """One value of all records; a window function is given just that one."""
        expect_function(reduce_function, "reduce", "a ReduceFunction", 2)
        if output_type is None and window_function is None:
            output_type = self._stream._stream.type_info
        return self._evaluated(
            "Reduce", ReduceContents(reduce_function), window_function, output_type
        )

    def aggregate(
        self,
        aggregate_function: AggregateFunction[Any, Any, Any],
        window_function: Any = None,
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """The result of an accumulator; a window function is given just that one."""
        expect_kind(aggregate_function, AggregateFunction, "an AggregateFunction is needed")
        contents = AggregateContents(aggregate_function)
        return self._evaluated("Aggregate", contents, window_function, output_type)

    def apply(self, window_function: Any, output_type: TypeInformation | None = None) -> DataStream:
        """A WindowFunction (AllWindowFunction on window_all) over all records."""
        wanted = WindowFunction if self._keyed else AllWindowFunction
        expect_kind(window_function, wanted, f"apply needs a {wanted.__name__} here")
        return self._evaluated("Window", ListContents(), window_function, output_type)

    def process(
        self, process_window_function: Any, output_type: TypeInformation | None = None
    ) -> DataStream:
        """A ProcessWindowFunction (ProcessAllWindowFunction on window_all) over all records."""
        wanted = ProcessWindowFunction if self._keyed else ProcessAllWindowFunction
        expect_kind(process_window_function, wanted, f"process needs a {wanted.__name__} here")
        return self._evaluated("Window", ListContents(), process_window_function, output_type)

    def map_batches(self, func: Any) -> DataStream:
        """Calls *func* with an Arrow record batch of all rows of a window (with ``window_start``
        and ``window_end``); it returns a batch, a table, several, or None.

        On windows of a keyed stream a batch has the rows of all keys of a subtask.  For tumbling
        windows of event time.

        >>> import pyarrow as pa
        >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
        >>> from flinkray.datastream.window import TumblingEventTimeWindows
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> table = pa.table({"v": [3, 9, 4], "t": [0, 3, 14]})
        >>> stamped = env.from_arrow(table).assign_timestamps_and_watermarks(
        ...     WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
        ... )
        >>> windows = stamped.window_all(TumblingEventTimeWindows.of(10))
        >>> windows.map_batches(lambda rows: rows.sort_by("v").slice(0, 1)).execute_and_collect(1)
        [Row(v=3, t=0, window_start=0, window_end=10)]
        """
        expect_function(func, "map_batch", "an object with map_batch")
        operator = self._builder.build_batches(func, self._stream._keys)
        return self._then("MapBatches", operator, None, sort_keys=None)

    def _evaluated(
        self,
        name: str,
        contents: WindowContents,
        window_function: Any,
        output_type: TypeInformation | None,
    ) -> DataStream:
        operator = self._builder.build(contents, window_function, self._stream._keys)
        return self._then(name, operator, output_type)

    def _then(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        **settings: Any,
    ) -> DataStream:
        title = self._builder.title(name)
        return self._stream._then_keyed(
            title, operator, output_type, non_parallel=not self._keyed, **settings
        )


class WindowedStream(_Windowed):
    """The windows of each key.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> numbers = env.from_collection([1, 2, 3, 4]).key_by(lambda x: x % 2)
    >>> numbers.count_window(2).reduce(lambda a, b: a + b).execute_and_collect(limit=2)
    [4, 6]
    """

    def aggregate_columns(self, **aggregates: str | tuple[str, str]) -> DataStream:
        """Aggregates of columns, without a Python object for each record.

        ``total=("amount", "sum"), n="count"``; there are count, sum, min, max and mean.  Results
        are rows with the key, ``window_start``, ``window_end`` and the aggregates.  For tumbling
        and sliding windows of event time on streams that are keyed by a column's name.

        >>> import pyarrow as pa
        >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
        >>> from flinkray.datastream.window import TumblingEventTimeWindows
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> table = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3], "t": [0, 3, 4]})
        >>> stamped = env.from_arrow(table).assign_timestamps_and_watermarks(
        ...     WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
        ... )
        >>> windows = stamped.key_by("k").window(TumblingEventTimeWindows.of(5))
        >>> windows.aggregate_columns(total=("v", "sum"), n="count").execute_and_collect(limit=1)
        [Row(k='a', window_start=0, window_end=5, total=4, n=2)]
        """
        operator, local = self._builder.build_aggregates(aggregates, self._stream._keys)
        stream = self._then("Aggregate columns", operator, None, sort_keys=None)
        stream._transformation.local_operator = local
        stream._transformation.is_local_in_streams = True
        return stream


class AllWindowedStream(_Windowed):
    """Windows over a whole stream, evaluated by one subtask."""

    _keyed = False


_Windows = TypeVar("_Windows", bound="_TwoInWindows")


class _TwoStreams:
    def __init__(self, first: DataStream, second: DataStream) -> None:
        self._first, self._second = first, second


class JoinedStreams(_TwoStreams):
    """Two streams whose records are to be paired by key and window.

    >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
    >>> from flinkray.datastream.window import TumblingEventTimeWindows
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    ...     lambda value, _: value[1]
    ... )
    >>> left = env.from_collection([("a", 1), ("b", 2)]).assign_timestamps_and_watermarks(by_time)
    >>> right = env.from_collection([("a", 3), ("a", 12)]).assign_timestamps_and_watermarks(by_time)
    >>> pairs = (
    ...     left.join(right)
    ...     .where(lambda value: value[0])
    ...     .equal_to(lambda value: value[0])
    ...     .window(TumblingEventTimeWindows.of(10))
    ...     .apply(lambda first, second: (first[0], first[1], second[1]))
    ... )
    >>> pairs.execute_and_collect(limit=2)
    [('a', 1, 3)]
    """

    def where(self, key_selector: Any) -> JoinKeys[WindowedJoin]:
        """The first stream's key: a KeySelector, a function, or the name of a field."""
        return JoinKeys(partial(WindowedJoin, self._first, self._second), key_selector)


class CoGroupedStreams(_TwoStreams):
    """Two streams whose records of a key and window are to be given to a function together.

    >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
    >>> from flinkray.datastream.window import TumblingEventTimeWindows
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    ...     lambda value, _: value[1]
    ... )
    >>> left = env.from_collection([("a", 1), ("b", 2)]).assign_timestamps_and_watermarks(by_time)
    >>> right = env.from_collection([("a", 3), ("a", 4)]).assign_timestamps_and_watermarks(by_time)
    >>> counts = (
    ...     left.co_group(right)
    ...     .where(lambda value: value[0])
    ...     .equal_to(lambda value: value[0])
    ...     .window(TumblingEventTimeWindows.of(10))
    ...     .apply(lambda first, second: [(len(first), len(second))])
    ... )
    >>> sorted(counts.execute_and_collect())
    [(1, 0), (1, 2)]
    """

    def where(self, key_selector: Any) -> JoinKeys[WindowedCoGroup]:
        """As of a join."""
        return JoinKeys(partial(WindowedCoGroup, self._first, self._second), key_selector)


class JoinKeys(Generic[_Windows]):
    """The keys of a join."""

    def __init__(
        self,
        in_windows: Callable[[Any, Any, WindowAssigner], _Windows],
        first_key: Any,
        second_key: Any = None,
    ) -> None:
        self._in_windows = in_windows
        self._first_key, self._second_key = first_key, second_key

    def equal_to(self, key_selector: Any) -> JoinKeys[_Windows]:
        """The second stream's key."""
        return JoinKeys(self._in_windows, self._first_key, key_selector)

    def window(self, assigner: WindowAssigner) -> _Windows:
        """The windows in which records meet."""
        if self._second_key is None:
            raise StreamError("a join needs both keys: where(...).equal_to(...)")
        return self._in_windows(self._first_key, self._second_key, assigner)


class _TwoInWindows:
    """Two streams in windows."""

    def __init__(
        self, first: DataStream, second: DataStream, first_key: Any, second_key: Any, assigner: Any
    ) -> None:
        self._first, self._second = first, second
        self._keys = Keys(first_key), Keys(second_key)
        self._builder = WindowOperatorBuilder(assigner)

    def trigger(self: _Windows, trigger: Trigger) -> _Windows:
        """Evaluate windows when this says so; it sees pairs of the stream's number and value."""
        self._builder.trigger(trigger)
        return self

    def evictor(self: _Windows, evictor: Evictor) -> _Windows:
        """Leave records out when a window is evaluated."""
        self._builder.evictor(evictor)
        return self

    def allowed_lateness(self: _Windows, time_ms: int | Time | Duration) -> _Windows:
        """Keep windows for so long after their end; late records fire them again."""
        self._builder.allowed_lateness(time_ms)
        return self

    def _apply(
        self, name: str, function: OfBoth, output_type: TypeInformation | None
    ) -> DataStream:
        tagged = [
            stream.map(Tag(side)).name(f"Input{side + 1}")
            for side, stream in enumerate((self._first, self._second))
        ]
        keyed = tagged[0].union(tagged[1]).key_by(KeyOfTagged(*self._keys))
        operator = self._builder.build(ListContents(), function, keyed._keys)
        return keyed._then_keyed(self._builder.title(name), operator, output_type)


class WindowedJoin(_TwoInWindows):
    """Pairs of records in windows."""

    def apply(self, function: Any, output_type: TypeInformation | None = None) -> DataStream:
        """One value for each pair, by a :class:`JoinFunction` or a function of two values; at the
        last moment of the window."""
        expect_function(function, "join", "a JoinFunction", 2)
        return self._apply("Join", OfPairs(function, "join"), output_type)

    def columns(self, right_suffix: str = "_right") -> DataStream:
        """The pairs as columns of both streams, without a Python object for each.

        For tumbling windows of event time, and keys that are names of columns.  Rows have the
        first stream's columns, those of the second without its key, ``window_start`` and
        ``window_end``; *right_suffix* is added to names of the second stream that the first has.

        >>> import pyarrow as pa
        >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
        >>> from flinkray.datastream.window import TumblingEventTimeWindows
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
        >>> def stamped(**columns):
        ...     return env.from_arrow(pa.table(columns)).assign_timestamps_and_watermarks(by_time)
        >>> people = stamped(id=[7, 8], name=["Ada", "Max"], t=[1, 2])
        >>> sales = stamped(seller=[7, 7], item=["cup", "jar"], t=[5, 15])
        >>> pairs = (
        ...     people.join(sales)
        ...     .where("id")
        ...     .equal_to("seller")
        ...     .window(TumblingEventTimeWindows.of(10))
        ...     .columns()
        ... )
        >>> pairs.execute_and_collect(limit=2)
        [Row(id=7, name='Ada', t=1, item='cup', t_right=5, window_start=0, window_end=10)]
        """
        operator = self._builder.build_join(*self._keys, right_suffix)
        first = self._first.key_by(self._keys[0].selector)
        second = self._second.key_by(self._keys[1].selector)
        name = self._builder.title("Join columns")
        return two_input_stream(name, operator, first, second, None, True)


class WindowedCoGroup(_TwoInWindows):
    """Records of both streams by key and window."""

    def apply(self, function: Any, output_type: TypeInformation | None = None) -> DataStream:
        """Any number of values for the two lists of each key and window, of which one may be
        empty, by a :class:`CoGroupFunction` or a function of two lists."""
        expect_function(function, "co_group", "a CoGroupFunction", 2)
        return self._apply("CoGroup", OfBoth(function, "co_group"), output_type)


class IntervalJoin:
    """Pairs of records of a key, whose bounds :meth:`between` sets."""

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        self._left = left
        self._right = right

    def between(
        self, lower_bound: Time | Duration | int, upper_bound: Time | Duration | int
    ) -> IntervalJoined:
        """A right record joins if ``left.time + lower <= right.time <= left.time + upper``."""
        return IntervalJoined(
            self._left, self._right, milliseconds(lower_bound), milliseconds(upper_bound)
        )


class IntervalJoined:
    """The pairs."""

    def __init__(self, left: KeyedStream, right: KeyedStream, lower: int, upper: int) -> None:
        self._left = left
        self._right = right
        self._lower = lower
        self._upper = upper
        self._late_left: OutputTag[Any] | None = None
        self._late_right: OutputTag[Any] | None = None

    def lower_bound_exclusive(self) -> IntervalJoined:
        """``<`` at the lower bound."""
        self._lower += 1
        return self

    def upper_bound_exclusive(self) -> IntervalJoined:
        """``<`` at the upper bound."""
        self._upper -= 1
        return self

    def side_output_left_late_data(self, output_tag: OutputTag[Any]) -> IntervalJoined:
        """Where late records of the left stream go."""
        self._late_left = output_tag
        return self

    def side_output_right_late_data(self, output_tag: OutputTag[Any]) -> IntervalJoined:
        """Where late records of the right stream go."""
        self._late_right = output_tag
        return self

    def process(
        self,
        func: ProcessJoinFunction[Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Any number of results for each pair, at the later of the two times."""
        expect_kind(func, ProcessJoinFunction, "a ProcessJoinFunction is needed")
        require_same_keys(self._left._keys, self._right._keys)
        operator = IntervalJoinOperator(
            func,
            self._lower,
            self._upper,
            self._left._keys,
            self._right._keys,
            self._late_left,
            self._late_right,
        )
        return two_input_stream(
            "Interval Join",
            operator,
            self._left,
            self._right,
            output_type,
            True,
            (self._left._keys, self._right._keys),
        )
