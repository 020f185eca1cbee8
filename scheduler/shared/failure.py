"""Defines Failure, which describes why a task or a job has failed."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.recurring_errors import ProgramError


@dataclass(frozen=True, slots=True)
class Failure:
    """Describes why a task or job failed: a line for users, the origin, and whether a restart can
    help."""

    text: str
    traceback: str | None = None
    suppress_restarts: bool = False
    """Whether the job fails at once, because the failure would happen again (FO-15)."""
    task: str | None = None
    """The task that failed; None if the failure concerns the whole job."""
    location: str | None = None
    """Location of the task; None if there is none."""
    cause: Failure | None = None
    program_error: ProgramError | None = None
    """Identifies the error, to find out whether the next attempt ends with the same error.
    None if the failure may be temporary."""

    def __str__(self) -> str:
        return self.text

    @property
    def is_unrecoverable(self) -> bool:
        """Whether the failure or its cause suppresses restarts (FO-15)."""
        return self.suppress_restarts or (self.cause is not None and self.cause.is_unrecoverable)
