"""Streams of records without keys, and the program that they are part of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, overload

from flinkray.core.arguments import whole_number
from flinkray.core.durations import Span
from flinkray.core.errors import ConfigurationError
from flinkray.datastream.closeable_iterator import (
    CloseableIterator,
    RecordBatches,
    RecordBatchFunction,
)
from flinkray.datastream.common.configuration import span_in_milliseconds
from flinkray.datastream.connected_streams import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
)
from flinkray.datastream.environment_settings import EnvironmentSettings
from flinkray.datastream.infer_arguments import (
    described,
    infer_settings,
    slot_of_replica,
)
from flinkray.datastream.joined_streams import CoGroupedStreams, JoinedStreams
from flinkray.datastream.operator_settings import DataStreamSink, StreamSettings
from flinkray.datastream.type_variables import R, T, U
from flinkray.datastream.windowed_streams import AllWindowedStream, count_assigner
from flinkray.state.descriptors import MapStateDescriptor
from flinkray.streaming.columnar.arrow_batches import (
    GatherBatchesOperator,
    MapBatchesOperator,
    SerializeBatchesOperator,
)
from flinkray.streaming.columnar.conversion import schema_of
from flinkray.streaming.columnar.infer import InferOperator
from flinkray.streaming.functions.functions import (
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    NullByteKeySelector,
    Partitioner,
    ProcessFunction,
    SinkFunction,
)
from flinkray.streaming.functions.models import ModelFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.signatures import (
    expect_function,
    expect_kind,
    refuse_coroutines,
    refuse_signatures,
)
from flinkray.streaming.operators.basic import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProjectOperator,
)
from flinkray.streaming.operators.keyed import (
    KeyedFilterOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
)
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.process import ProcessOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.operators.timestamps import TimestampsAndWatermarksOperator
from flinkray.streaming.program.transformations import (
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
)
from flinkray.streaming.records.keying import Keys
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
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.type_inference import type_of_result
from flinkray.streaming.records.typeinfo import RowTypeInfo, TypeInformation, Types, expect_type
from flinkray.streaming.sinks.output_format import OutputFormat, OutputFormatOperator
from flinkray.streaming.sinks.simple import PrintOperator, SinkFunctionOperator
from flinkray.streaming.sinks.sink import Sink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.streaming.sinks.spark import SparkEpochSink, check_columns
from flinkray.streaming.sources.source import Boundedness
from flinkray.streaming.time.watermarks import WatermarkStrategy
from flinkray.streaming.windowing.assigners import W, WindowAssigner
from flinkray.streaming.windowing.window import CountWindow

if TYPE_CHECKING:
    import ray.data

    from flinkray.core.ids import JobVertexID
    from flinkray.datastream.common.execution_config import ExecutionConfig
    from flinkray.datastream.keyed_stream import KeyedStream
    from flinkray.datastream.spark_table import SparkTable
    from flinkray.scheduler.graph.job_graph import JobVertex
    from flinkray.spark.stage_code import SparkEpochFunction


class StreamProgram(EnvironmentSettings, ABC):
    """The program that streams belong to: the operators that were added until now.
    Base of :class:`~flinkray.datastream.StreamExecutionEnvironment`."""

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
        return tuple(self._transformations)

    @property
    def is_bounded(self) -> bool:
        """Whether all sources of the program end."""
        return all(
            it.operator.source.get_boundedness() is Boundedness.BOUNDED
            for it in self._transformations
            if isinstance(it, OperatorTransformation) and isinstance(it.operator, SourceOperator)
        )

    def add_spark_stage(self, stage: JobVertex) -> None:
        """Add a Spark stage whose rows a source of the program reads, or to which a sink of the
        program hands the rows of each checkpoint."""
        self._spark_stages[stage.vertex_id] = stage

    def add(self, transformation: OperatorTransformation) -> DataStream:
        """Add an operator with the environment's present parallelism, and return the stream of its
        results."""
        transformation.parallelism = self.get_parallelism()
        self._transformations.append(transformation)
        return DataStream(self, transformation)

    @abstractmethod
    def partition(self, stream: DataStream[T], keys: Keys) -> KeyedStream[T, Any]:
        """Return *stream*, partitioned by *keys*."""

    @abstractmethod
    def from_stage_of_epochs(
        self,
        stage: JobVertex,
        watermark_strategy: WatermarkStrategy | None,
        name: str,
        type_info: TypeInformation[Row] | None,
    ) -> DataStream[Row]:
        """Add a Spark stage that gets the rows of each checkpoint of a stream (an epoch), and
        return the stream of the rows that the stage makes of them."""

    @abstractmethod
    def from_table(self, table: SparkTable) -> DataStream[Row]:
        """Return the rows of a table as a stream, the same stream for all look-ups in the table."""

    @abstractmethod
    def collect_results(
        self, stream: DataStream[U], job_name: str | None, limit: int | None
    ) -> CloseableIterator[U] | list[U]:
        """Run the program and return the results of *stream*, as
        :meth:`DataStream.execute_and_collect` does."""


class Collected(Protocol[T]):
    """A stream whose :meth:`DataStream.execute_and_collect` returns records of type T."""

    def _collected(self) -> DataStream[T]: ...


class DataStream(StreamSettings, Generic[T]):
    """A stream of records of type T.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> env.from_collection([1, 2, 3]).map(lambda x: x * 10).execute_and_collect(limit=3)
    [10, 20, 30]
    """

    _keys: Keys | None = None
    """Keys by which the stream is partitioned. None: the stream has no keys."""

    def __init__(self, env: StreamProgram, transformation: Transformation) -> None:
        self._env = env
        self._stream = transformation

    # --- about the stream -----------------------------------------------------------------------

    def get_name(self) -> str:
        """Return the name of the operator that makes this stream."""
        return self._stream.name

    def get_type(self) -> TypeInformation:
        """Return the declared type of the records; pickled bytes if no type is known."""
        return self._stream.type_info or Types.PICKLED_BYTE_ARRAY()

    def get_execution_environment(self) -> StreamProgram:
        """Return the StreamExecutionEnvironment that the program began with."""
        return self._env

    def get_execution_config(self) -> ExecutionConfig:
        """Return the ExecutionConfig of the environment in which the program is built."""
        return self._env.get_config()

    # --- record by record -----------------------------------------------------------------------

    @overload
    def map(
        self, func: Callable[[T], R] | MapFunction[T, R], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def map(
        self, func: Callable[[T], Any] | MapFunction[T, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...
    def map(self, func: Any, output_type: TypeInformation | None = None) -> DataStream:
        """Return the stream of one result for each value.

        Args:
            func: a MapFunction, or a function of a value. On a keyed stream a MapFunction may use
                keyed state.
            output_type: type of the results. None: the type in the function's type hints.
        """
        expect_function(func, "map", "a MapFunction")
        output_type = output_type or type_of_result(getattr(func, "map", func))
        return self._applied("Map", func, MapOperator, KeyedMapOperator, output_type)

    @overload
    def flat_map(
        self,
        func: Callable[[T], Iterable[R] | None] | FlatMapFunction[T, R],
        output_type: None = None,
    ) -> DataStream[R]: ...
    @overload
    def flat_map(
        self,
        func: Callable[[T], Iterable[Any] | None] | FlatMapFunction[T, Any],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def flat_map(self, func: Any, output_type: TypeInformation | None = None) -> DataStream:
        """Return the stream of any number of results for each value. *func* is a generator
        function, or returns a list or None. On a keyed stream a FlatMapFunction may use keyed
        state."""
        expect_function(func, "flat_map", "a FlatMapFunction")
        return self._applied("FlatMap", func, FlatMapOperator, KeyedFlatMapOperator, output_type)

    def filter(self, func: Callable[[T], object] | FilterFunction[T]) -> DataStream[T]:
        """Keep the values for which *func* returns true.
        On a keyed stream a FilterFunction may use keyed state."""
        expect_function(func, "filter", "a FilterFunction")
        known = self._stream.type_info
        return self._applied("Filter", func, FilterOperator, KeyedFilterOperator, known, False)

    @overload
    def process(self, func: ProcessFunction[T, R], output_type: None = None) -> DataStream[R]: ...
    @overload
    def process(
        self, func: ProcessFunction[T, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...
    def process(
        self, func: ProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply a ProcessFunction, which has any number of results, side outputs and time.
        The function sends a value to a side output by ``yield tag, value``."""
        what = "process on a stream without keys needs a ProcessFunction"
        expect_kind(func, ProcessFunction, what)
        return self._then("PROCESS", ProcessOperator(func), output_type)

    def project(self, *field_indexes: int) -> DataStream:
        """Return the stream of rows or tuples that have only the fields at these positions, in this
        order."""
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

    @overload
    def map_batches(
        self,
        func: RecordBatchFunction,
        output_type: None = None,
        *,
        max_size: int | None = None,
        max_delay: Span | str = 0,
    ) -> DataStream[Row]: ...
    @overload
    def map_batches(
        self,
        func: RecordBatchFunction,
        output_type: TypeInformation[R],
        *,
        max_size: int | None = None,
        max_delay: Span | str = 0,
    ) -> DataStream[R]: ...
    def map_batches(
        self,
        func: RecordBatchFunction,
        output_type: TypeInformation | None = None,
        *,
        max_size: int | None = None,
        max_delay: Span | str = 0,
    ) -> DataStream:
        """Apply *func* to whole Arrow record batches.

        *func* returns a batch, a table, several of them, or None. Streams of Python values are
        converted to columns.

        Batches are as large as they come: a few rows if records come one by one, thousands if the
        task is behind. *max_size* and *max_delay* change that, for example for a model that wants
        64 rows at a time.

        Args:
            max_size: largest number of rows of a batch. None: any number.
            max_delay: how long rows wait until *max_size* rows are there, as ``"20 ms"``, a
                timedelta, or milliseconds. Checkpoints and the end of the input do not wait.

        Raises:
            ValueError: *max_size* is below 1, or *max_delay* is negative or given without it.

        >>> import pyarrow as pa, pyarrow.compute as pc
        >>> from flinkray.datastream import StreamExecutionEnvironment
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> def doubled(batch):
        ...     return pa.record_batch({"x": pc.multiply(batch["x"], 2)})
        >>> env.from_arrow(pa.table({"x": [1, 2]})).map_batches(doubled).execute_and_collect(2)
        [Row(x=2), Row(x=4)]
        """
        expect_function(func, "map_batch", "an object with map_batch")
        type_info = self._stream.type_info
        operator = MapBatchesOperator(func, type_info)
        delay = span_in_milliseconds(max_delay)
        if delay < 0:
            raise ValueError(f"map_batches: max_delay must not be negative, got {max_delay!r}")
        if max_size is not None:
            if whole_number(max_size, "max_size") < 1:
                raise ValueError(f"map_batches: max_size must be at least 1, got {max_size}")
            operator = GatherBatchesOperator(func, max_size, delay, type_info)
        elif delay:
            raise ValueError("map_batches: max_delay needs max_size, the rows to wait for")
        return self._then("MapBatches", operator, output_type)

    def infer(
        self,
        model: ModelFunction,
        *,
        batch_size: int = 64,
        max_wait: Span | str = "20 ms",
        replicas: int | tuple[int, int] = 1,
        cpu: float = 1,
        gpu: float = 0,
        memory: str | int = "1g",
        resources: Mapping[str, float] | None = None,
        ordered: bool = False,
        timeout: Span | str = "30 s",
        retries: int = 2,
        output: Literal["append", "replace"] = "append",
        errors: OutputTag | None = None,
        shared: str | None = None,
    ) -> DataStream[Row]:
        """Send the records in batches to replicas of *model*: processes that load the model once.

        Replicas run in slots of their own, as a job that starts with this one and ends with it.
        They stay loaded while this job restarts or is rescaled. If a replica dies, another one
        takes its place, and its batches go to others. Without a cluster each subtask loads the
        model.

        Each record's result is emitted once, also after a restart from a checkpoint; the model may
        see a record again.

        Args:
            batch_size: largest number of records of a batch.
            max_wait: how long records wait until a batch is full, as ``"20 ms"``, a timedelta, or
                milliseconds. Checkpoints and the end of the input do not wait.
            replicas: number of replicas, or the least and the largest number. Between these the
                number follows the load.
            cpu: processors of each replica.
            gpu: GPUs of each replica: a whole number, or a part of one.
            memory: memory of each replica, as ``"4g"`` or a number of bytes.
            resources: other resources of each replica by Ray's name, as ``{"TPU": 1}``.
            ordered: whether results leave in the order of their batches.
            timeout: how long a replica may take for a batch.
            retries: how often a batch without an answer is sent again, and a single record for
                which the model has failed.
            output: ``"append"``: the record's columns and those of the model. ``"replace"``: those
                of the model alone. The column of a model that returns an array is ``result``.
            errors: side output for records for which the model fails, as rows of ``record`` and
                ``error``. None: the job fails.
            shared: name under which jobs of the cluster share the replicas. The first job decides
                about their model, number and resources.

        Raises:
            TypeError: *model* is no ModelFunction, or an argument has another type.
            ValueError: an argument is out of its range; the text names it.
            UserCodeError: *model* cannot be sent to the cluster.

        >>> import pyarrow as pa, pyarrow.compute as pc
        >>> from flinkray.datastream import ModelFunction, StreamExecutionEnvironment
        >>> class Length(ModelFunction):
        ...     def infer(self, batch):
        ...         return pc.utf8_length(batch["text"])
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> texts = env.from_arrow(pa.table({"text": ["good", "a bad one"]}))
        >>> texts.infer(Length()).execute_and_collect(2)
        [Row(text='good', result=4), Row(text='a bad one', result=9)]
        """
        descriptor = described(
            model, replicas, slot_of_replica(cpu, gpu, memory, resources), shared
        )
        settings = infer_settings(batch_size, max_wait, ordered, output, timeout, retries, errors)
        operator = InferOperator(descriptor, settings, self._stream.type_info)
        return self._then(f"Infer {descriptor.name}", operator, None)

    def assign_timestamps_and_watermarks(
        self, watermark_strategy: WatermarkStrategy
    ) -> DataStream[T]:
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

    @overload
    def key_by(
        self, key_selector: Callable[[T], U] | KeySelector[T, U], key_type: None = None
    ) -> KeyedStream[T, U]: ...
    @overload
    def key_by(self, key_selector: str, key_type: None = None) -> KeyedStream[T, Any]: ...
    @overload
    def key_by(
        self,
        key_selector: Callable[[T], Any] | KeySelector[T, Any] | str,
        key_type: TypeInformation[U],
    ) -> KeyedStream[T, U]: ...
    def key_by(
        self, key_selector: Any, key_type: TypeInformation | None = None
    ) -> KeyedStream[T, Any]:
        """Partition the stream by key: records of one key go to one subtask and share state.

        Args:
            key_selector: a KeySelector, a function, or the name of a field; with a name, streams of
                columns stay columns.
            key_type: type to which all keys are converted. None: keys stay as the selector returns
                them.
        """
        return self._keyed_by(key_selector, key_type)

    def _keyed_by(self, key_selector: Any, key_type: TypeInformation | None) -> KeyedStream[T, Any]:
        if key_type is not None:
            expect_type(key_type)
        return self._env.partition(self, Keys(key_selector, key_type))

    def union(self, *streams: DataStream[U]) -> DataStream[T | U]:
        """Merge this and other streams, in no particular order.
        The result has a declared type only if all streams have the same one."""
        inputs = [stream._values()._stream for stream in (self, *streams)]
        declared = self._stream.type_info
        is_one = all(_are_one(stream.type_info, declared) for stream in inputs)
        return DataStream(
            self._env, UnionTransformation("Union", declared if is_one else None, inputs)
        )

    @overload
    def connect(self, ds: DataStream[U]) -> ConnectedStreams[T, U]: ...
    @overload
    def connect(self, ds: BroadcastStream[U]) -> BroadcastConnectedStream[T, U]: ...
    def connect(
        self, ds: DataStream[U] | BroadcastStream[U]
    ) -> ConnectedStreams[T, U] | BroadcastConnectedStream[T, U]:
        """Combine two streams, possibly of different types, so that one function processes both. If
        both are keyed, the function has the same state and timers for both."""
        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds)
        return ConnectedStreams(self, ds)

    def join(self, other: DataStream[U]) -> JoinedStreams[T, U]:
        """Pair records of this and another stream with the same key and window.
        Continue with ``.where(key).equal_to(key).window(assigner).apply(function)``."""
        return JoinedStreams(self, other)

    def co_group(self, other: DataStream[U]) -> CoGroupedStreams[T, U]:
        """Group the records of this and another stream by key and window. Continue with
        ``.where(key).equal_to(key).window(assigner).apply(function)``."""
        return CoGroupedStreams(self, other)

    @overload
    def broadcast(self) -> DataStream[T]: ...
    @overload
    def broadcast(
        self,
        descriptor: MapStateDescriptor[Any, Any],
        /,
        *broadcast_state_descriptors: MapStateDescriptor[Any, Any],
    ) -> BroadcastStream[T]: ...
    def broadcast(
        self, *broadcast_state_descriptors: MapStateDescriptor[Any, Any]
    ) -> DataStream[T] | BroadcastStream[T]:
        """Send every record to every subtask. With descriptors: return a BroadcastStream for
        :meth:`connect`; its records will fill the broadcast states of these descriptors."""
        partitioned = self._partitioned(BroadcastPartitioner())
        if not broadcast_state_descriptors:
            return partitioned
        return BroadcastStream(partitioned, broadcast_state_descriptors)

    def shuffle(self) -> DataStream[T]:
        """Send each record to a random subtask."""
        return self._partitioned(ShufflePartitioner())

    def rebalance(self) -> DataStream[T]:
        """Send records to all subtasks in turn."""
        return self._partitioned(RebalancePartitioner())

    def rescale(self) -> DataStream[T]:
        """Send each record to one of a few subtasks, in turn. Each sending subtask has its own few
        receivers."""
        return self._partitioned(RescalePartitioner())

    def forward(self) -> DataStream[T]:
        """Send each record to the receiving subtask that has the same number as the sending
        subtask."""
        return self._partitioned(ForwardPartitioner())

    def partition_custom(
        self,
        partitioner: Callable[[Any, int], int] | Partitioner[Any],
        key_selector: Callable[[T], Any] | KeySelector[T, Any] | str,
    ) -> DataStream[T]:
        """Send each record to the subtask whose number *partitioner* returns. It is called with the
        record's key and the number of subtasks."""
        expect_function(partitioner, "partition", "a Partitioner", 2)
        return self._partitioned(CustomPartitioner(partitioner, Keys(key_selector)))

    def window_all(self, window_assigner: WindowAssigner[T, W]) -> AllWindowedStream[T, W]:
        """Put all records into windows, whatever their keys; one subtask evaluates them."""
        return AllWindowedStream(self._keyed_by_nothing(), window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream[T, CountWindow]:
        """Put all records into windows of *size* records, whatever their keys. A window begins
        every *slide* records; *slide* 0: every *size* records."""
        return AllWindowedStream(self._keyed_by_nothing(), count_assigner(size, slide))

    def _keyed_by_nothing(self) -> KeyedStream[T, int]:
        return self.key_by(NullByteKeySelector(), Types.BYTE())

    def get_side_output(self, output_tag: OutputTag[U]) -> DataStream[U]:
        """Return the stream of the records that this stream's operator sends to the side output."""
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

    def add_sink(self, sink_func: Callable[[T], object] | SinkFunction[T]) -> DataStreamSink:
        """Pass every value to a SinkFunction or a plain function. If the sink has a method
        ``set_input_type``, the method is called with the stream's type, or with None if no type is
        known."""
        expect_function(sink_func, "invoke", "a SinkFunction")
        if hasattr(sink_func, "set_input_type"):
            sink_func.set_input_type(self._stream.type_info)
        return self.end_with("Sink: Unnamed", SinkFunctionOperator(sink_func))

    def sink_to(self, sink: Sink[T]) -> DataStreamSink:
        """Write the stream to a Sink."""
        if not isinstance(sink, Sink):
            raise TypeError(f"sink_to takes a Sink, got {sink!r}; functions go to add_sink")
        return self.end_with("Sink: Writer", SinkWriterOperator(sink, self._stream.type_info))

    def write_using_output_format(self, output_format: OutputFormat[T]) -> DataStreamSink:
        """Write the stream with an OutputFormat."""
        if not isinstance(output_format, OutputFormat):
            raise TypeError(f"write_using_output_format takes an OutputFormat: {output_format!r}")
        refuse_coroutines(output_format)
        refuse_signatures(output_format)
        return self.end_with("Sink: Unnamed", OutputFormatOperator(output_format))

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
        """Pass the rows of each complete checkpoint to a Spark function, in order.

        The function is called as ``function(dataframe, checkpoint_id)``.

        The function runs in the slots of the job, beside the program. After a failure the function
        is called again with the same rows and id until it has returned, so a repeated write must
        change nothing. Without checkpoints there is one call, at the end. See docs/spark.md.

        Args:
            executors: Spark executors, each in a slot of its own.
            cpu: cores of each of these slots.
            memory: memory of each slot, as ``"1500m"``, ``"2g"`` or bytes.
            spark_conf: Spark properties; properties that flinkray sets itself are refused.
            session: name of a Spark session that stages and jobs share, which has these executors;
                see :func:`flinkray.spark_job`.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
            SinkError: Spark lacks the type of a column of the stream's declared type.
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
        type_info: TypeInformation[Row] | None = None,
        *,
        executors: int = 1,
        cpu: float = 1,
        memory: int | str = "1g",
        spark_conf: Mapping[str, object] | None = None,
        session: str | None = None,
        uid: str | None = None,
    ) -> DataStream[Row]:
        """Transform the rows of each complete checkpoint with Spark; return the results' stream.

        The stream has the rows of the DataFrames that ``function(dataframe, checkpoint_id)``
        returns, in batches of columns. The function runs in the slots of the job, beside the
        program, and is called for one checkpoint after the other. All of its DataFrames must have
        the same columns. See docs/spark.md.

        Args:
            watermark_strategy: strategy of the returned stream, which has no timestamps by itself.
            type_info: type of the returned rows, if it differs from the columns' types.
            executors: Spark executors, each in a slot of its own.
            cpu: cores of each of these slots.
            memory: memory of each slot, as ``"1500m"``, ``"2g"`` or bytes.
            spark_conf: Spark properties; properties that flinkray sets itself are refused.
            session: name of a Spark session that stages and jobs share, which has these executors;
                see :func:`flinkray.spark_job`.
            uid: uid of the returned stream's source, for savepoints; the uids of the sink for Spark
                are derived from it.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
            SinkError: Spark lacks the type of a column of the stream's declared type.
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
        """Write every value as a line to standard output. A line begins with *sink_identifier*, if
        one is given, and with the subtask's number (from 1) if there are several subtasks."""
        operator = PrintOperator(sink_identifier, self._stream.type_info)
        return self.end_with("Sink: Print to Std. Out", operator)

    @overload
    def execute_and_collect(
        self: Collected[U], job_execution_name: str | None = None, limit: None = None
    ) -> CloseableIterator[U]: ...
    @overload
    def execute_and_collect(self: Collected[U], job_execution_name: int) -> list[U]: ...
    @overload
    def execute_and_collect(
        self: Collected[U], job_execution_name: str | None, limit: int
    ) -> list[U]: ...
    @overload
    def execute_and_collect(self: Collected[U], *, limit: int) -> list[U]: ...
    def execute_and_collect(
        self: Collected[U], job_execution_name: str | int | None = None, limit: int | None = None
    ) -> CloseableIterator[U] | list[U]:
        """Run the program and return this stream's records. With *limit*: a list of at most so many
        records. Without: an iterator over all, which ends the program when it is closed. The
        records of a keyed stream are rows of key and value, f0 and f1."""
        if isinstance(job_execution_name, int):
            job_execution_name, limit = None, job_execution_name
        stream = self._collected()
        return stream._env.collect_results(stream, job_execution_name, limit)

    def execute_and_collect_arrow(self, job_execution_name: str | None = None) -> RecordBatches:
        """Run the program and return an iterator of this stream's Arrow record batches.

        The iterator gives ``pyarrow.RecordBatch``.

        The program ends when the iterator is closed. Columns never become Python objects on the
        way. Streams of Python values are converted to columns.

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

    def to_dataset(self, job_execution_name: str | None = None) -> ray.data.Dataset:
        """Run the program, which must be bounded, and return this stream's records as a Ray Data
        dataset. The rows go to Ray's object store in blocks of about 64 MB, without files.

        Raises:
            ConfigurationError: the stream is not bounded.
        """
        from flinkray.streaming.sources.ray_dataset import dataset_of

        if not self._env.is_bounded:
            raise ConfigurationError(
                "to_dataset needs a program whose sources all end: a dataset is complete when it "
                "is made"
            )
        with self.execute_and_collect_arrow(job_execution_name) as batches:
            return dataset_of(batches)

    def _values(self) -> DataStream[T]:
        """Return this stream without keys (a keyed stream overrides this method)."""
        return self

    def _collected(self) -> DataStream[T]:
        """Return the stream that :meth:`execute_and_collect` and asynchronous functions read: for a
        keyed stream rows of key and value, as in PyFlink, otherwise this stream."""
        return self

    def _collected_columns(self) -> DataStream:
        """Return the stream whose record batches are collected: this stream. (A keyed stream
        returns a stream of batches of key and value.)"""
        return self

    # --- building -------------------------------------------------------------------------------

    def _applied(
        self,
        name: str,
        func: Any,
        operator: Callable[[Any], StreamOperator],
        keyed_operator: Callable[[Any, Keys], StreamOperator],
        output_type: TypeInformation | None,
        typed: bool = True,
    ) -> DataStream:
        """Add the operator that runs *func* on this stream, and return the stream of its results.
        *operator* makes the operator; on a keyed stream *keyed_operator* does, if *func* may use
        keyed state."""
        return self._then(name, operator(func), output_type, typed)

    def _then(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        typed: bool = True,
        **settings: Any,
    ) -> DataStream:
        """Add *operator* after this stream, and return the stream of its results. *typed*:
        whether results are converted to *output_type*; otherwise the result stream only declares
        this type."""
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
        """Add *operator*, which is a sink, after this stream, and return the sink."""
        transformation = OperatorTransformation(
            name, operator=operator, inputs=[self._stream], kind="Data Sink"
        )
        self._env.add(transformation)
        return DataStreamSink(transformation)

    def _partitioned(self, partitioner: StreamPartitioner) -> DataStream[T]:
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
    """Return whether two types are equal, also in the time zones and units of their columns."""
    if one is None or other is None:
        return one is other
    return one == other and one.to_arrow() == other.to_arrow()
