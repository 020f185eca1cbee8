"""Decides which operator coordinators a job has, depending on its vertices."""

from __future__ import annotations

from flinkray.core.errors import JobSubmissionError
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.execution.restarts import PendingRestarts
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    CoordinatorKind,
)
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.operator_coordinators import JobCoordinator, RegionCoordinator
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.job.spark_driver import SparkDriverCoordinator
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.shared.failure import Failure


def coordinators_of_regions(
    graph: ExecutionGraph,
    regions: PipelinedRegions,
    record: JobRecord,
    restarts: PendingRestarts,
    execution: JobExecution,
    region_slots: RegionSlots,
    outbox: Outbox,
) -> tuple[RegionCoordinator, ...]:
    """Create one coordinator for each coordinated vertex of the graph.

    Raises:
        JobSubmissionError: a Spark stage would share a region with other vertices, although it can
            only begin when all its inputs are finished.
    """
    drivers = []
    for vertex in graph.vertices:
        if not vertex.is_coordinated:
            continue
        driver = SparkDriverCoordinator(
            graph, regions, vertex, record, restarts, execution, region_slots, outbox
        )
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
    """Create the coordinators that belong to the whole job, except the coordinator of its
    formats."""
    return (SourceEnumerators(record),) if job_graph.has_stream_sources else ()


class SourceEnumerators(JobCoordinator):
    """Coordinates the enumerators of all sources, which run in one process. If no other process
    knows how far the sources have been read, the loss of this process is a failure of the whole
    job, and the restart starts the next attempt.  Otherwise the next attempt starts at once."""

    tasks_wait = True

    def __init__(self, record: JobRecord) -> None:
        super().__init__(CoordinatorKind.SOURCE_ENUMERATORS, "the coordinator of the job's sources")
        self._record = record

    def job_begins(self, now: float) -> Steps:
        return self.ensure(now)

    def _on_lost(self, cause: str, now: float) -> Steps:
        return self._failed(Failure(f"the coordinator of the job's sources died: {cause}"))

    def _on_told(self, event: CoordinatorEvent, now: float) -> Steps:
        match event:
            case CoordinatorFailure(text=text, traceback=traceback):
                failure = Failure(
                    text,
                    traceback or None,
                    event.suppress_restarts,
                    program_error=event.program_error,
                )
                return [*self.stop(now), *self._failed(failure)]
        return ()

    def _failed(self, failure: Failure) -> Steps:
        return () if self._record.is_ending else (t.GlobalFailure(failure),)
