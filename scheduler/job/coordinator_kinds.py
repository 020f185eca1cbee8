"""Decides which operator coordinators a job has, depending on its vertices."""

from __future__ import annotations

from flinkray.core.errors import JobSubmissionError
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.pending_restarts import PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    CoordinatorKind,
    GlobalFormatsCall,
    GlobalFormatsCalled,
)
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import CallGlobalFormats
from flinkray.scheduler.job.operator_coordinators import (
    CoordinatorState,
    JobCoordinator,
    RegionCoordinator,
)
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
    """Create one coordinator (Spark driver) for each Spark stage of the graph.

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
    """Create the coordinators that belong to the whole job: a SourceEnumerators if the job has
    streaming sources or output formats with code for the whole job, otherwise none."""
    return (SourceEnumerators(job_graph, record),) if job_graph.has_stream_coordinator else ()


class SourceEnumerators(JobCoordinator):
    """Coordinates the process in which the enumerators of all sources run, and the code of output
    formats that concerns the whole job.

    If no other process knows how far the sources have been read, the loss of this process is a
    failure of the whole job, and the restart starts the next attempt. Otherwise the next attempt
    starts at once.

    Output formats prepare their outputs before the first task is deployed, and finish them when all
    tasks are finished. A job that fails finishes no output (EG-11).
    """

    def __init__(self, job_graph: JobGraph, record: JobRecord) -> None:
        super().__init__(CoordinatorKind.SOURCE_ENUMERATORS, "the coordinator of the job's sources")
        self._record = record
        self._with_formats = [v.vertex_id for v in job_graph.vertices if v.has_global_formats]
        self._are_prepared = self.has_finished = not self._with_formats
        self._call: GlobalFormatsCall | None = None
        """The call that is not answered yet."""

    def job_begins(self, now: float) -> Steps:
        if self._are_prepared:  # subtasks are executed again, so outputs are to be finished later
            self._call = None
            self.has_finished = not self._with_formats
        return self.ensure(now)

    def _on_lost(self, cause: str, now: float) -> Steps:
        return self._failed(Failure(f"the coordinator of the job's sources died: {cause}"))

    def _on_running(self, now: float) -> Steps:
        return self._calling()

    def _on_told(self, event: CoordinatorEvent, now: float) -> Steps:
        match event:
            case GlobalFormatsCalled(call):
                return self._called(call)
            case CoordinatorFailure(text=text, traceback=traceback):
                failure = Failure(
                    text,
                    traceback or None,
                    # before the first task, only an output format can have failed
                    event.suppress_restarts or not self._are_prepared,
                    program_error=event.program_error,
                )
                return [*self.stop(now), *self._failed(failure)]
        return ()

    def _failed(self, failure: Failure) -> Steps:
        return () if self._record.is_ending else (t.GlobalFailure(failure),)

    # --- output formats ---------------------------------------------------------------------------

    @property
    def tasks_wait(self) -> bool:
        return self.state is CoordinatorState.STARTING or not self._are_prepared

    def prepare(self, graph: ExecutionGraph, now: float) -> Steps:
        if self._are_prepared or self._call is not None:
            return ()
        self._call = self._new_call(graph, is_end=False)
        return self._calling()

    def tasks_were_deployed(self) -> None:
        self._are_prepared = True

    def finish(self, graph: ExecutionGraph, now: float) -> Steps:
        if self._call is not None:
            return ()
        self._call = self._new_call(graph, is_end=True)
        return [*self.ensure(now), *self._calling()]

    def _new_call(self, graph: ExecutionGraph, *, is_end: bool) -> GlobalFormatsCall:
        parallelism = {v.vertex.vertex_id: v.parallelism for v in graph.vertices}
        of_formats = tuple((it, parallelism[it]) for it in self._with_formats)
        return GlobalFormatsCall(is_end, self._record.restarts, of_formats)

    def _calling(self) -> Steps:
        if self._call is None or self.state is not CoordinatorState.RUNNING:
            return ()
        return (CallGlobalFormats(self._call),)

    def _called(self, call: GlobalFormatsCall) -> Steps:
        if call != self._call:
            return ()
        self._call = None
        if not call.is_end:
            self._are_prepared = True
            return ()
        self.has_finished = True
        return (t.NothingRuns(),)
