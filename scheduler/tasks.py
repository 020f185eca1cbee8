"""Tasks: what a JobMaster deploys and a TaskExecutor reports."""

from __future__ import annotations

from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID
from flinkray.core.message import message
from flinkray.scheduler.states import ExecutionState


@message
class TaskDeploymentDescriptor:
    """One execution attempt, to be run in an allocated slot."""

    job_id: JobID
    job_name: str
    attempt_id: ExecutionAttemptID
    task_name: str
    parallelism: int
    allocation_id: AllocationID
    invokable_kind: str
    coordinator_attempt: int = 0
    """The attempt of the vertex's operator coordinator (of its Spark driver) that the execution
    belongs to; what earlier ones left on the node is ended before the task runs."""


@message
class TaskExecutionState:
    """A TaskExecutor's report of an attempt's state."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    state: ExecutionState
    failure: str | None = None
    traceback: str | None = None
