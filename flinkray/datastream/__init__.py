"""The DataStream API: programs of stateful streams, in PyFlink's words.

``pyflink.datastream`` and ``pyflink.common`` become ``flinkray.datastream`` and
``flinkray.datastream.common``.  Beyond PyFlink there are columns: ``from_arrow``, ``map_batches``,
``key_by("column")`` with ``sum("column")``, and ``aggregate_columns`` on windows.
"""

from __future__ import annotations

from flinkray.client.job_result import JobExecutionResult
from flinkray.core.durations import Duration, Time
from flinkray.datastream.async_data_stream import AsyncDataStream
from flinkray.datastream.checkpoint_config import CheckpointConfig
from flinkray.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from flinkray.datastream.checkpointing_mode import CheckpointingMode
from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.common.configuration import Configuration
from flinkray.datastream.common.execution_config import ExecutionConfig
from flinkray.datastream.common.job_client import JobClient
from flinkray.datastream.data_stream import (
    AllWindowedStream,
    BroadcastConnectedStream,
    BroadcastStream,
    CoGroupedStreams,
    ConnectedStreams,
    DataStream,
    JoinedStreams,
    KeyedStream,
    WindowedStream,
)
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from flinkray.datastream.operator_settings import DataStreamSink
from flinkray.datastream.slot_sharing_group import MemorySize, SlotSharingGroup
from flinkray.datastream.state_backend import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    PredefinedOptions,
    StateBackend,
)
from flinkray.datastream.stream_execution_environment import StreamExecutionEnvironment
from flinkray.datastream.time_characteristic import TimeCharacteristic
from flinkray.streaming.functions.async_functions import (
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
)
from flinkray.streaming.functions.functions import (
    AggregateFunction,
    AllWindowFunction,
    BatchContext,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    GroupContext,
    JoinFunction,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedGroupFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    SinkFunction,
    TimeDomain,
    TimerService,
    WindowFunction,
)
from flinkray.streaming.functions.global_aggregates import (
    GlobalAggregateError,
    GlobalAggregateManager,
    GlobalAggregatesLostError,
)
from flinkray.streaming.functions.models import ModelContext, ModelFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.runtime_context import RuntimeContext
from flinkray.streaming.records.row import Row, RowKind
from flinkray.streaming.records.typeinfo import TypeInformation, Types
from flinkray.streaming.time.watermarks import TimestampAssigner, WatermarkStrategy
from flinkray.streaming.windowing.assigners import MergingWindowAssigner, WindowAssigner
from flinkray.streaming.windowing.triggers import Trigger, TriggerResult
from flinkray.streaming.windowing.window import CountWindow, GlobalWindow, TimeWindow, Window

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AllWindowedStream",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BatchContext",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointingMode",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoGroupedStreams",
    "CoMapFunction",
    "CoProcessFunction",
    "Configuration",
    "ConnectedStreams",
    "CountWindow",
    "DataStream",
    "DataStreamSink",
    "Duration",
    "EmbeddedRocksDBStateBackend",
    "ExecutionConfig",
    "ExternalizedCheckpointRetention",
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FlatMapFunction",
    "GlobalAggregateError",
    "GlobalAggregateManager",
    "GlobalAggregatesLostError",
    "GlobalWindow",
    "GroupContext",
    "HashMapStateBackend",
    "JobClient",
    "JobExecutionResult",
    "JobManagerCheckpointStorage",
    "JoinFunction",
    "JoinedStreams",
    "KeySelector",
    "KeyedBatchFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedGroupFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "MemorySize",
    "MergingWindowAssigner",
    "ModelContext",
    "ModelFunction",
    "OutputTag",
    "Partitioner",
    "PredefinedOptions",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "Row",
    "RowKind",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SinkFunction",
    "SlotSharingGroup",
    "StateBackend",
    "StreamExecutionEnvironment",
    "Time",
    "TimeCharacteristic",
    "TimeDomain",
    "TimeWindow",
    "TimerService",
    "TimestampAssigner",
    "Trigger",
    "TriggerResult",
    "TypeInformation",
    "Types",
    "WatermarkStrategy",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
]
