"""DataStream: the records of an operator, and what can be done with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from flinkray.datastream.data_stream_sink import DataStreamSink
from flinkray.datastream.operator_settings import StreamSettings
from flinkray.state.descriptors import MapStateDescriptor
from flinkray.streaming.columnar.map_batches import MapBatchesOperator
from flinkray.streaming.functions.functions import Function, NullByteKeySelector, ProcessFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.basic import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProjectOperator,
)
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.process import ProcessOperator
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
from flinkray.streaming.records.type_inference import type_of_result
from flinkray.streaming.records.typeinfo import RowTypeInfo, TypeInformation, Types
from flinkray.streaming.sinks.simple import PrintOperator, SinkFunctionOperator
from flinkray.streaming.sinks.sink import Sink, SinkOperator
from flinkray.streaming.time.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    from flinkray.datastream.connected_streams import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
    )
    from flinkray.datastream.environment import StreamExecutionEnvironment
    from flinkray.datastream.job_client import CloseableIterator
    from flinkray.datastream.keyed_stream import KeyedStream
    from flinkray.datastream.settings import ExecutionConfig
    from flinkray.datastream.window_join import CoGroupedStreams, JoinedStreams
    from flinkray.datastream.windowed_stream import AllWindowedStream


def expect_function(function: Any, method: str, what: str) -> Any:
    """The function, if it has the method or is a plain function.

    Raises:
        TypeError: it is neither.
    """
    forgotten = isinstance(function, type) and issubclass(function, Function)
    if not forgotten and (callable(getattr(function, method, None)) or callable(function)):
        return function
    hint = "; make an object of it" if forgotten else ""
    raise TypeError(f"{what} or a function is needed, got {function!r}{hint}")


class DataStream(StreamSettings):
    """A stream of records.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> env.from_collection([1, 2, 3]).map(lambda x: x * 10).execute_and_collect(limit=3)
    [10, 20, 30]
    """

    def __init__(self, env: StreamExecutionEnvironment, transformation: Transformation) -> None:
        self._env = env
        self._stream = transformation

    # --- about the stream -----------------------------------------------------------------------

    def get_name(self) -> str:
        """The operator's name."""
        return self._stream.name

    def get_type(self) -> TypeInformation:
        """The declared type of the records; pickled bytes where none is known."""
        return self._stream.type_info or Types.PICKLED_BYTE_ARRAY()

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """Where the program began."""
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
        if not isinstance(func, ProcessFunction):
            raise TypeError(
                f"process on a stream without keys needs a ProcessFunction, got {func!r}"
            )
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
        """
        from flinkray.datastream.keyed_stream import KeyedStream

        return KeyedStream(self, Keys(key_selector), key_type)

    def union(self, *streams: DataStream) -> DataStream:
        """The records of this and other streams, in no particular order."""
        return DataStream(
            self._env,
            UnionTransformation(
                "Union", self._stream.type_info, [self._stream, *(s._stream for s in streams)]
            ),
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
        from flinkray.datastream.connected_streams import (
            BroadcastConnectedStream,
            BroadcastStream,
            ConnectedStreams,
        )

        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds)
        return ConnectedStreams(self, ds)

    def join(self, other: DataStream) -> JoinedStreams:
        """Pairs with another stream's records of the same key and window:
        ``.where(key).equal_to(key).window(assigner).apply(function)``."""
        from flinkray.datastream.window_join import JoinedStreams

        return JoinedStreams(self, other)

    def co_group(self, other: DataStream) -> CoGroupedStreams:
        """The records of both streams by key and window, built up as with :meth:`join`."""
        from flinkray.datastream.window_join import CoGroupedStreams

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
        from flinkray.datastream.connected_streams import BroadcastStream

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
        expect_function(partitioner, "partition", "a Partitioner")
        partition = getattr(partitioner, "partition", partitioner)
        return self._partitioned(CustomPartitioner(partition, Keys(key_selector)))

    def window_all(self, window_assigner: Any) -> AllWindowedStream:
        """Windows over all records; they are evaluated by one subtask."""
        from flinkray.datastream.windowed_stream import AllWindowedStream

        return AllWindowedStream(self._keyed_by_nothing(), window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream:
        """Windows of so many records, whatever their key."""
        from flinkray.datastream.windowed_stream import AllWindowedStream, count_assigner

        return AllWindowedStream(self._keyed_by_nothing(), count_assigner(size, slide))

    def _keyed_by_nothing(self) -> KeyedStream:
        return self.key_by(NullByteKeySelector(), Types.BYTE())

    def get_side_output(self, output_tag: OutputTag[Any]) -> DataStream:
        """What the operator sent to a side output."""
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
        """Hand every value to a SinkFunction, or to a plain function."""
        expect_function(sink_func, "invoke", "a SinkFunction")
        return self.end_with("Sink: Unnamed", SinkFunctionOperator(sink_func))

    def sink_to(self, sink: Sink[Any]) -> DataStreamSink:
        """Write into a Sink."""
        if not isinstance(sink, Sink):
            raise TypeError(f"sink_to takes a Sink, got {sink!r}; functions go to add_sink")
        return self.end_with("Sink: Writer", SinkOperator(sink))

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
        iterator, which closes the program when it is closed."""
        if isinstance(job_execution_name, int):
            job_execution_name, limit = None, job_execution_name
        return self._env.collect_results(self, job_execution_name, limit)

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
            convert=output_type.converter() if typed and output_type is not None else None,
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

    def _by_key(self, keys: Keys) -> Transformation:
        return PartitionTransformation(
            "Hash",
            self._stream.type_info,
            input=self._stream,
            partitioner=KeyGroupPartitioner(keys),
        )
