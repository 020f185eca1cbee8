"""The kinds of operator coordinators that a job may have, and the process of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flinkray.actors.coordinators.process import CoordinatorProcess
from flinkray.actors.coordinators.spark_driver_process import SparkDriverProcess
from flinkray.actors.coordinators.stream_coordinator_process import StreamCoordinatorProcess
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.ids import JobMasterId
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.coordinator_events import CoordinatorKind


class CoordinatorProcesses:
    """Holds the CoordinatorProcess of each kind of coordinator that a job may have."""

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        services: ClusterServices,
        spark_driver_factory: str,
        noted: Callable[[], Awaitable[None]],
        on_replaced: Callable[[str], None],
    ) -> None:
        """Create the CoordinatorProcess of each kind, for one job. *noted* returns when the next
        JobMaster would find the numbers of all attempts of Spark drivers so far. *on_replaced* is
        called with the reason when another JobMaster has taken over a coordinator of this job."""
        self.source_enumerators = StreamCoordinatorProcess(job_master, graph, services, on_replaced)
        self.spark_drivers = SparkDriverProcess(
            job_master, graph, services, spark_driver_factory, noted, on_replaced
        )
        self._kinds: dict[CoordinatorKind, CoordinatorProcess] = {
            CoordinatorKind.SPARK_DRIVER: self.spark_drivers,
            CoordinatorKind.SOURCE_ENUMERATORS: self.source_enumerators,
        }

    def __getitem__(self, kind: CoordinatorKind) -> CoordinatorProcess:
        return self._kinds[kind]
