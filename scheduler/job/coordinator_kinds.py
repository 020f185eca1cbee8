"""Which operator coordinators a job has: what its vertices are decides on their kinds."""

from __future__ import annotations

from flinkray.core.errors import JobSubmissionError
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.pending_restarts import PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.operator_coordinators import JobCoordinator, RegionCoordinator
from flinkray.scheduler.job.source_enumerators import SourceEnumerators
from flinkray.scheduler.job.spark_driver import SparkDriverCoordinator


def coordinators_of_regions(
    graph: ExecutionGraph,
    regions: PipelinedRegions,
    record: JobRecord,
    restarts: PendingRestarts,
) -> tuple[RegionCoordinator, ...]:
    """One for each coordinated vertex.

    Raises:
        JobSubmissionError: a Spark stage would be in a region with other vertices, though it begins
            when all that it reads is finished.
    """
    drivers = []
    for vertex in graph.vertices:
        if not vertex.is_coordinated:
            continue
        driver = SparkDriverCoordinator(graph, regions, vertex, record, restarts)
        if len(regions.regions[driver.region].vertices) > vertex.parallelism:
            raise JobSubmissionError(
                graph.job_graph.job_id,
                f"the Spark stage {vertex.vertex.name!r} reads and feeds vertices that run at the "
                "same time: make a result blocking that leads from those that it reads to those "
                "that it feeds",
            )
        drivers.append(driver)
    return tuple(drivers)


def coordinators_of_job(job_graph: JobGraph, record: JobRecord) -> tuple[JobCoordinator, ...]:
    """Those that belong to the job as a whole, besides its formats."""
    return (SourceEnumerators(record),) if job_graph.has_stream_sources else ()
