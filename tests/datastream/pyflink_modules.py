"""Public names of PyFlink by module, and how they are read from its sources.

``PYFLINK_MODULES`` was made of the wheel of ``apache-flink`` 2.3.0, unpacked in a folder::

    python tests/datastream/pyflink_modules.py <folder>
"""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path

PACKAGES = ("common", "datastream", "metrics")


def public_names(pyflink: Path) -> dict[str, list[str]]:
    """What each module offers: the names in its ``__all__``, and its public classes.  Modules that
    offer nothing, and PyFlink's own tests, are left out.

    Args:
        pyflink: the package's folder; nothing in it is imported, so no Java is needed.
    """
    found = {}
    for path in sorted(path for package in PACKAGES for path in (pyflink / package).rglob("*.py")):
        module = ".".join(path.relative_to(pyflink).with_suffix("").parts)
        names = set(_names(ast.parse(path.read_text(encoding="utf-8"))))
        if names and "tests" not in path.parts:
            found[module.removesuffix(".__init__")] = sorted(names)
    return found


def _names(tree: ast.Module) -> list[str]:
    names = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names += ast.literal_eval(node.value)
    return names


PYFLINK_MODULES: dict[str, str] = {
    "common": (
        "AssignerWithPeriodicWatermarksWrapper ByteArraySchema CompletableFuture ConfigOption "
        "ConfigOptions Configuration DeserializationSchema Duration Encoder ExecutionConfig "
        "InputDependencyConstraint Instant JobClient JobExecutionResult JobID JobStatus "
        "RestartStrategies RestartStrategyConfiguration Row RowKind SerializationSchema "
        "SimpleStringSchema Time TypeInformation TypeSerializer Types WatermarkStrategy"
    ),
    "common.completable_future": "CompletableFuture",
    "common.config_options": "ConfigOption ConfigOptions",
    "common.configuration": "Configuration",
    "common.execution_config": "ExecutionConfig",
    "common.input_dependency_constraint": "InputDependencyConstraint",
    "common.io": "InputFormat",
    "common.job_client": "JobClient",
    "common.job_execution_result": "JobExecutionResult",
    "common.job_id": "JobID",
    "common.job_status": "JobStatus",
    "common.restart_strategy": "RestartStrategies RestartStrategyConfiguration",
    "common.serialization": (
        "BulkWriterFactory ByteArraySchema DeserializationSchema Encoder RowDataBulkWriterFactory "
        "RowFieldExtractorSchema SerializationSchema SimpleStringSchema"
    ),
    "common.serializer": "TypeSerializer VoidNamespaceSerializer",
    "common.time": "Duration Instant Time",
    "common.typeinfo": (
        "BasicArrayTypeInfo BasicType BasicTypeInfo DateTypeInfo ExternalTypeInfo InstantTypeInfo "
        "ListTypeInfo LocalTimeTypeInfo MapTypeInfo ObjectArrayTypeInfo PickledBytesTypeInfo "
        "PrimitiveArrayTypeInfo RowTypeInfo SqlTimeTypeInfo TimeTypeInfo TimestampTypeInfo "
        "TupleTypeInfo TypeInformation Types"
    ),
    "common.types": "Row RowKind",
    "common.utils": "JavaObjectWrapper",
    "common.watermark_strategy": (
        "AssignerWithPeriodicWatermarksWrapper TimestampAssigner WatermarkStrategy"
    ),
    "datastream": (
        "AggregateFunction AsyncDataStream AsyncFunction AsyncRetryPredicate AsyncRetryStrategy "
        "BroadcastConnectedStream BroadcastProcessFunction BroadcastStream CheckpointConfig "
        "CheckpointStorage CheckpointingMode CoFlatMapFunction CoMapFunction CoProcessFunction "
        "ConnectedStreams CountWindow CustomCheckpointStorage CustomStateBackend DataStream "
        "DataStreamSink EmbeddedRocksDBStateBackend ExternalizedCheckpointRetention "
        "FileSystemCheckpointStorage FilterFunction FlatMapFunction GlobalWindow "
        "HashMapStateBackend JobManagerCheckpointStorage KeySelector "
        "KeyedBroadcastProcessFunction KeyedCoProcessFunction KeyedProcessFunction KeyedStream "
        "MapFunction MemorySize MergingWindowAssigner OutputTag Partitioner PredefinedOptions "
        "ProcessFunction ProcessWindowFunction ReduceFunction RuntimeContext RuntimeExecutionMode "
        "SinkFunction SlotSharingGroup SourceFunction StateBackend StreamExecutionEnvironment "
        "TimeDomain TimeWindow TimerService Trigger TriggerResult Window WindowAssigner "
        "WindowFunction WindowedStream"
    ),
    "datastream.async_data_stream": "AsyncDataStream",
    "datastream.async_retry_strategies": (
        "ExponentialBackoffDelayRetryStrategy FixedDelayRetryStrategy NoRetryStrategy "
        "RetryPredicate"
    ),
    "datastream.checkpoint_config": "CheckpointConfig",
    "datastream.checkpoint_storage": (
        "CheckpointStorage CustomCheckpointStorage FileSystemCheckpointStorage "
        "JobManagerCheckpointStorage"
    ),
    "datastream.checkpointing_mode": "CheckpointingMode",
    "datastream.connectors": "DeliveryGuarantee Sink Source",
    "datastream.connectors.base": (
        "DeliveryGuarantee Sink Source StreamTransformer SupportsPreprocessing"
    ),
    "datastream.connectors.cassandra": (
        "CassandraCommitter CassandraFailureHandler CassandraSink ClusterBuilder ConsistencyLevel "
        "MapperOptions"
    ),
    "datastream.connectors.dynamic_kafka": (
        "DynamicKafkaSource DynamicKafkaSourceBuilder KafkaMetadataService "
        "KafkaRecordDeserializationSchema KafkaStreamSetSubscriber KafkaStreamSubscriber "
        "SingleClusterTopicMetadataService StreamPatternSubscriber"
    ),
    "datastream.connectors.elasticsearch": (
        "Elasticsearch6SinkBuilder Elasticsearch7SinkBuilder ElasticsearchEmitter "
        "ElasticsearchSink ElasticsearchSinkBuilderBase FlushBackoffType"
    ),
    "datastream.connectors.file_system": (
        "BucketAssigner BulkFormat DefaultRollingPolicy FileCompactStrategy FileCompactor "
        "FileEnumeratorProvider FileSink FileSource FileSourceBuilder FileSplitAssignerProvider "
        "OnCheckpointRollingPolicy OutputFileConfig RollingPolicy StreamFormat StreamingFileSink"
    ),
    "datastream.connectors.hybrid_source": "HybridSource HybridSourceBuilder",
    "datastream.connectors.jdbc": "JdbcConnectionOptions JdbcExecutionOptions JdbcSink",
    "datastream.connectors.kafka": (
        "FlinkKafkaConsumer FlinkKafkaConsumerBase FlinkKafkaProducer FlinkKafkaProducerBase "
        "KafkaOffsetResetStrategy KafkaOffsetsInitializer KafkaRecordSerializationSchema "
        "KafkaRecordSerializationSchemaBuilder KafkaSink KafkaSinkBuilder KafkaSource "
        "KafkaSourceBuilder KafkaTopicPartition KafkaTopicSelector Semantic"
    ),
    "datastream.connectors.kinesis": (
        "FlinkKinesisConsumer KinesisDeserializationSchema KinesisFirehoseSink "
        "KinesisFirehoseSinkBuilder KinesisShardAssigner KinesisStreamsSink "
        "KinesisStreamsSinkBuilder PartitionKeyGenerator WatermarkTracker"
    ),
    "datastream.connectors.number_seq": "NumberSequenceSource",
    "datastream.connectors.pulsar": (
        "MessageDelayer PulsarSink PulsarSinkBuilder PulsarSource PulsarSourceBuilder "
        "RangeGenerator StartCursor StopCursor TopicRoutingMode"
    ),
    "datastream.connectors.rabbitmq": "RMQConnectionConfig RMQSink RMQSource",
    "datastream.data_stream": (
        "AllWindowedStream BroadcastConnectedStream BroadcastStream CachedDataStream "
        "CloseableIterator ConnectedStreams DataStream DataStreamSink KeyedStream WindowedStream"
    ),
    "datastream.execution_mode": "RuntimeExecutionMode",
    "datastream.externalized_checkpoint_retention": "ExternalizedCheckpointRetention",
    "datastream.formats.avro": (
        "AvroBulkWriters AvroInputFormat AvroRowDeserializationSchema AvroRowSerializationSchema "
        "AvroSchema GenericRecordAvroTypeInfo"
    ),
    "datastream.formats.csv": (
        "CsvBulkWriters CsvReaderFormat CsvRowDeserializationSchema CsvRowSerializationSchema "
        "CsvSchema CsvSchemaBuilder"
    ),
    "datastream.formats.json": "JsonRowDeserializationSchema JsonRowSerializationSchema",
    "datastream.formats.orc": "OrcBulkWriters",
    "datastream.formats.parquet": (
        "AvroParquetReaders AvroParquetWriters ParquetBulkWriters ParquetColumnarRowInputFormat"
    ),
    "datastream.functions": (
        "AggregateFunction AllWindowFunction AsyncFunction AsyncFunctionDescriptor "
        "AsyncRetryPredicate AsyncRetryStrategy BaseBroadcastProcessFunction "
        "BroadcastProcessFunction CoFlatMapFunction CoMapFunction CoProcessFunction "
        "FilterFunction FlatMapFunction Function FunctionWrapper "
        "InternalIterableAllWindowFunction InternalIterableProcessAllWindowFunction "
        "InternalIterableProcessWindowFunction InternalIterableWindowFunction "
        "InternalProcessAllWindowContext InternalProcessWindowContext "
        "InternalSingleValueAllWindowFunction InternalSingleValueProcessAllWindowFunction "
        "InternalSingleValueProcessWindowFunction InternalSingleValueWindowFunction "
        "InternalWindowFunction JavaFunctionWrapper KeySelector KeyedBroadcastProcessFunction "
        "KeyedCoProcessFunction KeyedProcessFunction KeyedStateStore MapFunction "
        "NullByteKeySelector Partitioner PassThroughAllWindowFunction PassThroughWindowFunction "
        "ProcessAllWindowFunction ProcessFunction ProcessWindowFunction ReduceFunction "
        "ReduceFunctionWrapper RuntimeContext SinkFunction SourceFunction TimerService "
        "WindowFunction"
    ),
    "datastream.output_tag": "OutputTag",
    "datastream.slot_sharing_group": "MemorySize SlotSharingGroup",
    "datastream.state": (
        "AggregatingState AggregatingStateDescriptor AppendingState BroadcastState ListState "
        "ListStateDescriptor MapState MapStateDescriptor MergingState OperatorStateStore "
        "ReadOnlyBroadcastState ReducingState ReducingStateDescriptor State StateDescriptor "
        "StateTtlConfig ValueState ValueStateDescriptor"
    ),
    "datastream.state_backend": (
        "CustomStateBackend EmbeddedRocksDBStateBackend HashMapStateBackend PredefinedOptions "
        "StateBackend"
    ),
    "datastream.stream_execution_environment": "StreamExecutionEnvironment",
    "datastream.time_domain": "TimeDomain",
    "datastream.timerservice": "TimerService",
    "datastream.utils": "ResultTypeQueryable",
    "datastream.window": (
        "ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger CountSlidingWindowAssigner "
        "CountTrigger CountTumblingWindowAssigner CountWindow CountWindowSerializer "
        "DynamicEventTimeSessionWindows DynamicProcessingTimeSessionWindows "
        "EventTimeSessionWindows EventTimeTrigger GlobalWindow GlobalWindowSerializer "
        "GlobalWindows MergingWindowAssigner Min NeverTrigger ProcessingTimeSessionWindows "
        "ProcessingTimeTrigger PurgingTrigger SessionWindowTimeGapExtractor "
        "SlidingEventTimeWindows SlidingProcessingTimeWindows TimeWindow TimeWindowSerializer "
        "Trigger TriggerResult TumblingEventTimeWindows TumblingProcessingTimeWindows Window "
        "WindowAssigner WindowOperationDescriptor"
    ),
    "metrics": "Counter Distribution Meter Metric MetricGroup",
    "metrics.metricbase": "Counter Distribution Meter Metric MetricGroup",
}


def _as_source(found: dict[str, list[str]]) -> str:
    lines = ["PYFLINK_MODULES: dict[str, str] = {"]
    for module, names in found.items():
        parts = textwrap.wrap(" ".join(names), 88)
        texts = [f'"{part} "' for part in parts[:-1]] + [f'"{parts[-1]}"']
        if len(texts) == 1 and len(module) + len(texts[0]) < 92:
            lines.append(f'    "{module}": {texts[0]},')
        else:
            lines += [f'    "{module}": (', *(f"        {text}" for text in texts), "    ),"]
    return "\n".join([*lines, "}"])


if __name__ == "__main__":
    sys.stdout.write(_as_source(public_names(Path(sys.argv[1], "pyflink"))) + "\n")
