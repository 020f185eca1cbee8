"""Submitting jobs: the Python client, the command line, and starting and ending clusters.

The public names are those of :mod:`flinkray` itself and, like there, loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import flinkray

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient
    from flinkray.client.connect import connect
    from flinkray.client.job_builder import spark_job
    from flinkray.client.job_handle import JobHandle
    from flinkray.client.job_result import JobExecutionResult
    from flinkray.client.queryable_state import QueryableStateClient

__all__ = [
    "ClusterClient",
    "JobExecutionResult",
    "JobHandle",
    "QueryableStateClient",
    "connect",
    "spark_job",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'flinkray.client' has no attribute {name!r}")
    value: object = getattr(flinkray, name)
    return value
