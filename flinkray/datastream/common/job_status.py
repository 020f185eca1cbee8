"""How a program stands."""

from __future__ import annotations

from enum import Enum


class JobStatus(str, Enum):
    """The state of a program; equal to its name as a text.

    >>> JobStatus.SUSPENDED.is_terminal_state(), JobStatus.SUSPENDED.is_globally_terminal_state()
    (True, False)
    >>> JobStatus.RUNNING == "RUNNING"
    True
    """

    INITIALIZING = "INITIALIZING"
    """Of Flink's own clients; PyFlink does not know it."""
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
        """Whether the program has ended for good."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)

    def is_terminal_state(self) -> bool:
        """Whether it has ended where it ran; another JobMaster may take up a suspended one."""
        return self.is_globally_terminal_state() or self is JobStatus.SUSPENDED
