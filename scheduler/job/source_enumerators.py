"""The coordinator of a stream job's sources, in whose process their enumerators run."""

from __future__ import annotations

from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    CoordinatorKind,
)
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.operator_coordinators import JobCoordinator
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.job.transitions import GlobalFailure
from flinkray.scheduler.shared.failure import Failure


class SourceEnumerators(JobCoordinator):
    """One process for all sources.  If nobody else knows how far they are, its loss is a failure of
    the whole job; the next attempt is started with the restart."""

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
                failure = Failure(text, traceback or None, event.suppress_restarts)
                return [*self.stop(now), *self._failed(failure)]
        return ()

    def _failed(self, failure: Failure) -> Steps:
        """A job whose end is decided does not need it any more."""
        return () if self._record.is_ending else (GlobalFailure(failure),)
