"""The status of a job, and which status may follow which."""

from __future__ import annotations

from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.story import Story

_ANY_END = (JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.SUSPENDED)

_LEGAL: dict[JobStatus, tuple[JobStatus, ...]] = {
    JobStatus.INITIALIZING: (JobStatus.CREATED, *_ANY_END),
    JobStatus.CREATED: (JobStatus.RECONCILING, JobStatus.RUNNING, *_ANY_END),
    JobStatus.RECONCILING: (JobStatus.RUNNING, *_ANY_END),
    JobStatus.RUNNING: (JobStatus.RESTARTING, JobStatus.FINISHED, *_ANY_END),
    JobStatus.RESTARTING: (JobStatus.RUNNING, *_ANY_END),
    JobStatus.FAILING: (JobStatus.FAILED, JobStatus.CANCELLING, JobStatus.SUSPENDED),
    JobStatus.CANCELLING: (JobStatus.CANCELED, JobStatus.FAILING, JobStatus.SUSPENDED),
    JobStatus.FAILED: (),
    JobStatus.CANCELED: (),
    JobStatus.FINISHED: (),
    JobStatus.SUSPENDED: (),
}


class JobStatusMachine:
    """Holds the status of a job, and allows only legal changes.  Times are monotonic seconds."""

    def __init__(self, subject: str, now: float) -> None:
        self.status = JobStatus.INITIALIZING
        self.entered = {JobStatus.INITIALIZING: now}
        """Status -> time when the status was last entered."""
        self.story = Story(subject, limit=200)

    def enter(self, status: JobStatus, now: float, cause: str = "") -> None:
        """Change the status of the job.

        Raises:
            IllegalTransitionError: the current status does not allow this status; the text contains
                the history of the job.
        """
        if status not in _LEGAL[self.status]:
            raise self.story.illegal(f"go from {self.status.name} to {status.name}")
        text = f"{self.status.name} -> {status.name}"
        self.story.add(now, f"{text}: {cause}" if cause else text)
        self.status = status
        self.entered[status] = now
