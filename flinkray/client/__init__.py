"""Job submission: the Python client, the command line, and the start and end of clusters.

:mod:`flinkray` itself has the same public names. Both packages load a name at its first use.
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
