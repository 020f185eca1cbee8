"""Counterpart of ``pyflink.common``: rows, types, time, watermarks, configuration."""

from __future__ import annotations

from flinkray.client.job_result import JobExecutionResult
from flinkray.core.ids import JobID
from flinkray.datastream.common.completable_future import CompletableFuture
from flinkray.datastream.common.configuration import Configuration
from flinkray.datastream.common.execution_config import ExecutionConfig
from flinkray.datastream.common.job_client import JobClient
from flinkray.datastream.common.restart_strategy import (
    RestartStrategies,
    RestartStrategyConfiguration,
)
from flinkray.datastream.common.serializer import TypeSerializer
from flinkray.datastream.common.time import Duration, Instant, Time
from flinkray.scheduler.shared.states import JobStatus
from flinkray.streaming.records.row import Row, RowKind
from flinkray.streaming.records.serialization import (
    ByteArraySchema,
    DeserializationSchema,
    Encoder,
    SerializationSchema,
    SimpleStringSchema,
)
from flinkray.streaming.records.typeinfo import TypeInformation, Types
from flinkray.streaming.time.watermarks import (
    TimestampAssigner,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)

__all__ = [
    "ByteArraySchema",
    "CompletableFuture",
    "Configuration",
    "DeserializationSchema",
    "Duration",
    "Encoder",
    "ExecutionConfig",
    "Instant",
    "JobClient",
    "JobExecutionResult",
    "JobID",
    "JobStatus",
    "RestartStrategies",
    "RestartStrategyConfiguration",
    "Row",
    "RowKind",
    "SerializationSchema",
    "SimpleStringSchema",
    "Time",
    "TimestampAssigner",
    "TypeInformation",
    "TypeSerializer",
    "Types",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
]
