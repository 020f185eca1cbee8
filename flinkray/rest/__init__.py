"""The REST endpoint: a cluster's jobs over HTTP, in the shape of Flink's v1 API.

``flinkray rest`` serves it; docs/rest.md lists the paths.
"""

from flinkray.rest.cluster import Cluster
from flinkray.rest.server import RestServer

__all__ = ["Cluster", "RestServer"]
