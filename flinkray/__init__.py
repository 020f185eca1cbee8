"""flinkray: an actor framework on Ray that mirrors Flink's, and a Flink-style runtime on it.

Public names are loaded when they are used: every process of a cluster imports this module, and only
clients need the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.lazy_door import lazy_door
from flinkray.core.version import VERSION

if TYPE_CHECKING:
    from flinkray import errors
    from flinkray.client.cluster_client import ClusterClient
    from flinkray.client.connect import connect
    from flinkray.client.job_handle import JobHandle
    from flinkray.client.job_result import JobExecutionResult
    from flinkray.client.queryable_state import QueryableStateClient
    from flinkray.client.spark_jobs import spark_job
    from flinkray.core.errors import FlinkRayError
    from flinkray.datastream.batch_job import BatchJob
    from flinkray.datastream.common.configuration import Configuration
    from flinkray.datastream.spark_table import SparkTable, spark_table
    from flinkray.datastream.stream_execution_environment import StreamExecutionEnvironment
    from flinkray.scheduler.graph.job_graph import (
        ExponentialDelayRestart,
        FailureRateRestart,
        FixedDelayRestart,
        JobGraph,
        NoRestart,
        RestartStrategy,
    )
    from flinkray.scheduler.reports.job_info import JobDetails, StageProgressInfo, VertexInfo
    from flinkray.scheduler.shared.states import ExecutionState, JobStatus
else:  # not for type checkers, which would take each misspelt name for an object
    __getattr__ = lazy_door(__name__)

__version__ = VERSION

__all__ = [
    "BatchJob",
    "ClusterClient",
    "Configuration",
    "ExecutionState",
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FixedDelayRestart",
    "FlinkRayError",
    "JobDetails",
    "JobExecutionResult",
    "JobGraph",
    "JobHandle",
    "JobStatus",
    "NoRestart",
    "QueryableStateClient",
    "RestartStrategy",
    "SparkTable",
    "StageProgressInfo",
    "StreamExecutionEnvironment",
    "VertexInfo",
    "__version__",
    "connect",
    "errors",
    "spark_job",
    "spark_table",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
