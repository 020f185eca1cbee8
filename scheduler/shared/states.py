"""Defines the states of jobs and of execution attempts, under Flink's names."""

from __future__ import annotations

from enum import Enum

from flinkray.core.message import register
from flinkray.core.schema import stored, with_more_members


@stored("JobStatus", version=2, migrations={1: with_more_members})
@register
class JobStatus(str, Enum):
    """State of a job. A JobStatus is equal to its name as a text."""

    INITIALIZING = "INITIALIZING"
    """The job is being initialized. Only Flink's own clients know this status, PyFlink does not."""
    CREATED = "CREATED"
    RECONCILING = "RECONCILING"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"

    def __format__(self, format_spec: str) -> str:
        """Format the text of the status: ``JobStatus.RUNNING``, as ``str`` and PyFlink write it."""
        return format(str(self), format_spec)

    @property
    def is_globally_terminal(self) -> bool:
        """Whether the job has ended for good: no JobMaster will run it again."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)

    @property
    def is_terminal(self) -> bool:
        """Whether this JobMaster has ended its work on the job. Includes SUSPENDED, from which
        another JobMaster can run the job."""
        return self.is_globally_terminal or self is JobStatus.SUSPENDED

    def is_globally_terminal_state(self) -> bool:
        """Return :attr:`is_globally_terminal`. PyFlink's name."""
        return self.is_globally_terminal

    def is_terminal_state(self) -> bool:
        """Return :attr:`is_terminal`. PyFlink's name."""
        return self.is_terminal


@stored("ExecutionState")
@register
class ExecutionState(Enum):
    """State of one execution attempt."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        return self in (ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED)
