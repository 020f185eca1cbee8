"""A failure as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong: one line for people, where it arose, and whether trying again is of use."""

    text: str
    traceback: str | None = None
    suppress_restarts: bool = False
    """True: the same would happen again, the job fails at once (FO-15)."""
    task: str | None = None
    """The task that failed; None: the job as a whole."""
    location: str | None = None
    """Where that task was."""
    cause: Failure | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def is_unrecoverable(self) -> bool:
        """Whether it, or what caused it, suppresses restarts (FO-15)."""
        return self.suppress_restarts or (self.cause is not None and self.cause.is_unrecoverable)
