"""The states in which a program can be."""

from __future__ import annotations

from enum import Enum


class JobStatus(str, Enum):
    """The state of a program. A JobStatus is equal to its name as a text.

    >>> JobStatus.SUSPENDED.is_terminal_state(), JobStatus.SUSPENDED.is_globally_terminal_state()
    (True, False)
    >>> JobStatus.RUNNING == "RUNNING"
    True
    """

    INITIALIZING = "INITIALIZING"
    """The job is being initialized. Only Flink's own clients know this status, PyFlink does not."""
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"

    def is_globally_terminal_state(self) -> bool:
        """Return whether the program has ended for good."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)

    def is_terminal_state(self) -> bool:
        """Return whether the program has ended where it ran.

        Another JobMaster may take up a suspended program.
        """
        return self.is_globally_terminal_state() or self is JobStatus.SUSPENDED
