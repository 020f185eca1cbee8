"""flinkray: an actor framework on Ray that mirrors Flink's, and a Flink-style runtime on it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient
    from flinkray.client.connect import connect
    from flinkray.client.job_builder import spark_job
    from flinkray.client.job_handle import JobHandle
    from flinkray.client.job_result import JobExecutionResult
    from flinkray.client.queryable_state import QueryableStateClient
    from flinkray.core.config import Configuration
    from flinkray.core.errors import FlinkRayError
    from flinkray.datastream.batch_job import BatchJob
    from flinkray.datastream.spark_table import SparkTable, spark_table
    from flinkray.scheduler.graph.job_graph import (
        ExponentialDelayRestart,
        FailureRateRestart,
        FixedDelayRestart,
        JobGraph,
        NoRestart,
    )
    from flinkray.scheduler.shared.states import ExecutionState, JobStatus

__version__ = "0.1.0"

__all__ = [
    "BatchJob",
    "ClusterClient",
    "Configuration",
    "ExecutionState",
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FixedDelayRestart",
    "FlinkRayError",
    "JobExecutionResult",
    "JobGraph",
    "JobHandle",
    "JobStatus",
    "NoRestart",
    "QueryableStateClient",
    "SparkTable",
    "__version__",
    "connect",
    "spark_job",
    "spark_table",
]

_MODULES = {
    "BatchJob": "flinkray.datastream.batch_job",
    "ClusterClient": "flinkray.client.cluster_client",
    "Configuration": "flinkray.core.config",
    "ExecutionState": "flinkray.scheduler.shared.states",
    "ExponentialDelayRestart": "flinkray.scheduler.graph.job_graph",
    "FailureRateRestart": "flinkray.scheduler.graph.job_graph",
    "FixedDelayRestart": "flinkray.scheduler.graph.job_graph",
    "FlinkRayError": "flinkray.core.errors",
    "JobExecutionResult": "flinkray.client.job_result",
    "JobGraph": "flinkray.scheduler.graph.job_graph",
    "JobHandle": "flinkray.client.job_handle",
    "JobStatus": "flinkray.scheduler.shared.states",
    "NoRestart": "flinkray.scheduler.graph.job_graph",
    "QueryableStateClient": "flinkray.client.queryable_state",
    "SparkTable": "flinkray.datastream.spark_table",
    "connect": "flinkray.client.connect",
    "spark_job": "flinkray.client.job_builder",
    "spark_table": "flinkray.datastream.spark_table",
}


def __getattr__(name: str) -> object:
    """Public names are loaded when they are used: every process of a cluster imports this module,
    and only clients need the client (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'flinkray' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
