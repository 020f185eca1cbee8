"""What PyFlink has in ``pyflink.common``: rows, types, time, watermarks, configuration."""

from __future__ import annotations

from flinkray.core.durations import Duration, Time
from flinkray.core.ids import JobID
from flinkray.datastream.connectors.file_system import Encoder
from flinkray.datastream.job_client import JobClient, JobExecutionResult
from flinkray.datastream.restart_strategies import RestartStrategies
from flinkray.datastream.settings import Configuration, ExecutionConfig
from flinkray.streaming.records.row import Row, RowKind
from flinkray.streaming.records.typeinfo import TypeInformation, Types
from flinkray.streaming.time.watermarks import (
    TimestampAssigner,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)

__all__ = [
    "Configuration",
    "Duration",
    "Encoder",
    "ExecutionConfig",
    "JobClient",
    "JobExecutionResult",
    "JobID",
    "RestartStrategies",
    "Row",
    "RowKind",
    "Time",
    "TimestampAssigner",
    "TypeInformation",
    "Types",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
]
