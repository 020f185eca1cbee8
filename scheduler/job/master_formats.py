"""Runs the output formats of vertices, which work once per job, outside the tasks. User
code never runs in the JobMaster.  A coordinator runs the code: the JobMaster sends requests to the
coordinator, and each answer is an event."""

from __future__ import annotations

from flinkray.core.ids import JobVertexID
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    CoordinatorKind,
    FinalizeFormat,
    FormatFailed,
    FormatFinalized,
    FormatInitialized,
    FormatRequest,
    InitializeFormat,
)
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import AskCoordinator
from flinkray.scheduler.job.operator_coordinators import CoordinatorState, JobCoordinator
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.job.transitions import (
    BeginExecution,
    EndJob,
    FormatsPauseOver,
    GlobalFailure,
    ResetRegions,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.transition import StartTimer

_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds from each loss of the initialising process to the start of the next process.
There are as many restarts as entries.  Together they outlast a problem of half a minute."""

_INITIALISATION = 0
"""Generation of initialisations; finalisations have higher generations."""


class MasterFormats(JobCoordinator):
    """Initialises and finalises formats, once per vertex; a failing job finalises none (EG-11).
    The process starts when a request needs it, and stays until the job ends."""

    def __init__(self, job_graph: JobGraph, record: JobRecord) -> None:
        super().__init__(CoordinatorKind.MASTER_FORMATS, "the process of the job's formats")
        self._record = record
        self._vertices = {
            vertex.vertex_id: vertex
            for vertex in job_graph.vertices
            if vertex.master_format is not None
        }
        self._pending: dict[JobVertexID, FormatRequest] = {}
        """The request that each vertex's format still has to answer."""
        self._generation = 0
        self._losses = 0
        """Number of processes that were lost during the initialisation."""

    # --- requirements of the job ------------------------------------------------------------------

    @property
    def is_working(self) -> bool:
        """Whether a format has not answered yet."""
        return bool(self._pending)

    def initialize(self, now: float) -> Steps:
        """Request the initialisation of all formats.  Returns no steps if the job has no
        formats."""
        for vertex_id, vertex in self._vertices.items():
            assert vertex.master_format is not None
            self._pending[vertex_id] = InitializeFormat(
                vertex_id, vertex.master_format, vertex.parallelism
            )
        return self._ask(now)

    def finalize(self, now: float) -> Steps:
        """Request the finalisation of all formats that have one.  Returns no steps if there are
        none."""
        self._generation += 1
        self._pending.clear()
        for vertex_id, vertex in self._vertices.items():
            assert vertex.master_format is not None
            if vertex.master_format.finalizes:
                self._pending[vertex_id] = FinalizeFormat(
                    vertex_id, vertex.master_format, vertex.parallelism, self._generation
                )
        return self._ask(now)

    def _ask(self, now: float) -> Steps:
        if not self._pending:
            return ()
        return self._on_running(now) if self.state is CoordinatorState.RUNNING else self.ensure(now)

    def regions_reset(self, transition: ResetRegions, now: float) -> Steps:
        """Drop pending finalisations, because subtasks are executed again."""
        self._pending.clear()
        return ()

    # --- the process ------------------------------------------------------------------------------

    def _on_running(self, now: float) -> Steps:
        return [AskCoordinator(self.coordinator_id, r) for r in self._pending.values()]

    def _on_lost(self, cause: str, now: float) -> Steps:
        """Handle the loss of the process that runs the formats. Without pending requests the loss
        is ignored; the next request starts a new process. During the initialisation a new process
        gets the requests, because no task has to be restarted. Otherwise the job fails.
        """
        if not self._pending:
            return ()
        is_initializing = all(self._generation_of(v) == _INITIALISATION for v in self._pending)
        if is_initializing and not self._record.is_ending and self._losses < len(_PAUSES):
            pause = _PAUSES[self._losses]
            self._losses += 1
            if not pause:
                return self.ensure(now)
            return (StartTimer(FormatsPauseOver(self._losses), pause),)
        self._pending.clear()
        failure = Failure(f"the process of the job's formats died: {cause}")
        return () if self._record.is_ending else (GlobalFailure(failure),)

    def pause_over(self, transition: FormatsPauseOver, now: float) -> Steps:
        """Start the next process for the formats that have not answered yet, because the pause
        after the loss of the last process is over.
        """
        is_late = transition.loss != self._losses or self._record.is_ending
        return () if is_late or not self._pending else self.ensure(now)

    def _on_told(self, event: CoordinatorEvent, now: float) -> Steps:
        match event:
            case FormatInitialized():
                return self._initialized(event)
            case FormatFinalized():
                return self._finalized(event)
            case FormatFailed():
                return self._failed(event, now)
            case CoordinatorFailure(text=text):
                return [*self.stop(now), *self._on_lost(text, now)]
        return ()

    def _initialized(self, event: FormatInitialized) -> Steps:
        if self._generation_of(event.vertex_id) != _INITIALISATION:
            return ()
        del self._pending[event.vertex_id]
        return () if self._pending or self._record.is_ending else (BeginExecution(),)

    def _finalized(self, event: FormatFinalized) -> Steps:
        match self._pending.get(event.vertex_id):
            case FinalizeFormat(generation=event.generation):
                del self._pending[event.vertex_id]
            case _:
                return ()
        is_running = self._record.status is JobStatus.RUNNING and not self._record.is_ending
        return (EndJob(JobStatus.FINISHED),) if is_running and not self._pending else ()

    def _failed(self, event: FormatFailed, now: float) -> Steps:
        """Fail the job, and stop the process, because user code may have left it in any state."""
        if self._generation_of(event.vertex_id) != event.generation:
            return ()
        self._pending.clear()
        steps = self.stop(now)
        if self._record.is_ending:
            return steps
        failure = Failure(
            event.text,
            event.traceback,
            event.suppress_restarts,
            program_error=event.program_error,
        )
        return [*steps, GlobalFailure(failure)]

    def _generation_of(self, vertex_id: JobVertexID) -> int | None:
        match self._pending.get(vertex_id):
            case FinalizeFormat(generation=generation):
                return generation
            case InitializeFormat():
                return _INITIALISATION
        return None
