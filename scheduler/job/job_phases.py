"""Measures how long a job takes to begin, restart, rescale and be taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID
from flinkray.scheduler.execution.execution_graph import Execution
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.reports.spans import (
    FAILOVER,
    JOB_INITIALIZATION,
    RESCALE,
    TAKE_OVER,
    Attribute,
    Span,
    SpanBook,
    brief,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus


class _Phase:
    def __init__(self, name: str, begin: float, **attributes: Attribute) -> None:
        self.name = name
        self.begin = begin
        self.attributes = attributes


class JobPhases:
    """Records the phases of a job as spans, for users.  No decision depends on the phases. A job is
    in one phase at a time, or in none.  A failure while the job begins ends that phase; a failure
    while the job restarts makes that phase longer."""

    def __init__(self, record: JobRecord, book: SpanBook) -> None:
        self._record = record
        self._book = book
        self._phase: _Phase | None = None
        self._is_adopted = False
        """Whether the next RUNNING status only continues the work of an earlier JobMaster."""
        self._executions_of: Callable[[int], Iterable[Execution]]
        self._awaited: dict[ExecutionVertexID, ExecutionAttemptID] = {}
        """Attempts that must run before the phase is over, by subtask."""

    def execute(self, executions_of: Callable[[int], Iterable[Execution]]) -> None:
        """Observe another execution graph from now on.
        *executions_of* returns the current attempts of a region of the graph."""
        self._executions_of = executions_of
        self._awaited.clear()

    def status_entered(self, transition: t.StatusEntered, now: float) -> Steps:
        match transition.status:
            case JobStatus.RECONCILING:
                self._phase = _Phase(TAKE_OVER, now)
            case JobStatus.RUNNING if self._is_adopted:
                self._is_adopted = False
            case JobStatus.RUNNING if not self._is_restarting:
                self._end_phase(now, self._cause)  # a take-over without running tasks
                self._phase = _Phase(JOB_INITIALIZATION, now)
            case JobStatus.RESTARTING if not self._is_restarting:
                cause = self._cause
                self._end_phase(now, cause)
                self._phase = _Phase(FAILOVER, now, cause=cause)
            case JobStatus.FAILING:
                self._end_phase(now, self._cause)
            case JobStatus.CANCELLING | JobStatus.SUSPENDED | JobStatus.FINISHED:
                self._end_phase(now)
        return ()

    def stop_everything(self, transition: t.StopEverything, now: float) -> Steps:
        """Begin the phase RESCALE. Called before the job enters RESTARTING, which then begins no
        phase FAILOVER."""
        if not self._is_restarting:
            self._end_phase(now, brief(transition.cause))
            self._phase = _Phase(RESCALE, now, cause=brief(transition.cause))
        return ()

    def taken_over(self, summary: str, now: float) -> None:
        """End the phase TAKE_OVER, with *summary* as an attribute of its span. Called before the
        job enters its next status, which then begins no other phase."""
        if self._phase is not None:
            self._phase.attributes["summary"] = brief(summary)
        self._end_phase(now)
        self._is_adopted = True

    def scheduled(self, transition: t.ScheduleRegions, now: float) -> Steps:
        """Make the current phase last until the attempts of these regions run. Called after the
        regions were scheduled."""
        if self._phase is not None:
            for index in transition.regions:
                for execution in self._executions_of(index):
                    if execution.state is ExecutionState.SCHEDULED:
                        attempt_id = execution.attempt_id
                        self._awaited[attempt_id.vertex] = attempt_id
        return ()

    def states_reported(self, transition: t.StatesReported, now: float) -> Steps:
        """End the phase when all attempts that it waits for run or have run."""
        if not self._awaited:
            return ()
        for state in transition.states:
            if state.state in (ExecutionState.RUNNING, ExecutionState.FINISHED):
                vertex = state.attempt_id.vertex
                if self._awaited.get(vertex) == state.attempt_id:
                    del self._awaited[vertex]
        if not self._awaited and self._record.status is JobStatus.RUNNING:
            self._end_phase(now)
        return ()

    @property
    def down_since(self) -> float:
        """Monotonic seconds of the failure from which the job is recovering; 0 if nothing is
        down."""
        return self._phase.begin if self._phase is not None and self._is_in(FAILOVER) else 0.0

    @property
    def _is_restarting(self) -> bool:
        return self._is_in(FAILOVER, RESCALE)

    def _is_in(self, *phases: str) -> bool:
        return self._phase is not None and self._phase.name in phases

    @property
    def _cause(self) -> str:
        exceptions = self._record.exceptions
        return brief(exceptions[-1].text) if exceptions else "nothing of it runs"

    def _end_phase(self, now: float, failure: str | None = None) -> None:
        phase, self._phase = self._phase, None
        if phase is None:
            return
        offset = self._record.epoch_offset
        attributes = {**phase.attributes, "numRestarts": self._record.restarts}
        self._book.add(Span(phase.name, phase.begin + offset, now + offset, attributes, failure))
