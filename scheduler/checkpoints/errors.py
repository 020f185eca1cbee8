"""Defines the reasons why a checkpoint fails, and the errors of a restore."""

from __future__ import annotations

from enum import Enum

from flinkray.core.errors import JobError
from flinkray.core.ids import JobID
from flinkray.core.message import register


class StateRestoreError(JobError):
    """Raised if a job does not fit the checkpoint or savepoint from which it is to be restored. The
    text names the operator and a solution.  Nothing was restored."""


@register
class CheckpointFailureReason(Enum):
    """Why a checkpoint failed.  The names are Flink's; the values are texts for users."""

    TOO_MANY_CHECKPOINT_REQUESTS = "too many requests for checkpoints are waiting"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "the pause after the checkpoint before it is not over"
    NOT_ALL_REQUIRED_TASKS_RUNNING = "not all required tasks are running"
    TRIGGER_CHECKPOINT_FAILURE = "it could not be triggered"
    IO_EXCEPTION = "it got no id or no directory"
    CHECKPOINT_EXPIRED = "it expired before it was complete"
    CHECKPOINT_SUBSUMED = "a later checkpoint was complete before it"
    CHECKPOINT_DECLINED = "a task declined it"
    CHECKPOINT_ASYNC_EXCEPTION = "a task could not write its state"
    CHECKPOINT_DECLINED_TASK_NOT_READY = "a task was not ready for it"
    CHECKPOINT_DECLINED_TASK_CLOSING = "a task has ended or is ending"
    CHECKPOINT_DECLINED_SUBSUMED = "a barrier of a later checkpoint came before its own"
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "a task before one in the graph has given it up"
    TASK_FAILURE = "a task has failed"
    JOB_FAILOVER_REGION = "tasks are restarted"
    FINALIZE_CHECKPOINT_FAILURE = "it could not be stored"
    CHECKPOINT_COORDINATOR_SUSPEND = "the job does not run"
    CHECKPOINT_COORDINATOR_SHUTDOWN = "the job has ended"
    JOB_NOT_STOPPED = "the job did not finish with it"
    COORDINATOR_LOST = "the coordinator of an operator was lost while it made its cut"
    """Flink has no such reason; in Flink the job restarts in this case."""

    @property
    def counts_as_failure(self) -> bool:
        """Whether this failure counts against the tolerable failures in a row, as in Flink. False
        for reasons that come from restarts, requests, tasks that end, and master hooks or operator
        coordinators that cannot begin.
        """
        return self in _COUNTED


_COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)


class CheckpointError(JobError):
    """Reports that a checkpoint or savepoint was not taken, and why."""

    def __init__(
        self,
        job_id: JobID,
        reason: CheckpointFailureReason,
        checkpoint_id: int | None = None,
        cause: str = "",
    ) -> None:
        """Make the error; *checkpoint_id* is None if the checkpoint had no id yet."""
        which = "a checkpoint" if checkpoint_id is None else f"checkpoint {checkpoint_id}"
        super().__init__(job_id, f"{which} failed: {reason.value}{cause and f': {cause}'}")
        self.args = (job_id, reason, checkpoint_id, cause)
        self.reason = reason
        self.checkpoint_id = checkpoint_id
        self.cause = cause


class StopWithSavepointError(CheckpointError):
    """Reports that a job did not finish, although the savepoint it was to be stopped with is
    complete."""

    def __init__(self, job_id: JobID, checkpoint_id: int | None, path: str, cause: str) -> None:
        text = f"{cause}; the savepoint is complete: {path}"
        super().__init__(job_id, CheckpointFailureReason.JOB_NOT_STOPPED, checkpoint_id, text)
        self.args = (job_id, checkpoint_id, path, cause)
        self.path = path
        """Path of the savepoint."""
