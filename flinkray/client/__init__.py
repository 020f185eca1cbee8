"""Job submission: the Python client, the command line, and the start and end of clusters.

:mod:`flinkray` itself has the same public names. Both packages load a name at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.lazy_door import lazy_door

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient
    from flinkray.client.connect import connect
    from flinkray.client.job_handle import JobHandle
    from flinkray.client.job_result import JobExecutionResult
    from flinkray.client.queryable_state import QueryableStateClient
    from flinkray.client.spark_jobs import spark_job
else:  # not for type checkers, which would take each misspelt name for an object
    __getattr__ = lazy_door(__name__)

__all__ = [
    "ClusterClient",
    "JobExecutionResult",
    "JobHandle",
    "QueryableStateClient",
    "connect",
    "spark_job",
]
