"""Defines the reasons why a checkpoint fails and the errors of a restore, and decides when failed
checkpoints make the job fail."""

from __future__ import annotations

from enum import Enum

from flinkray.core.errors import JobError
from flinkray.core.ids import JobID
from flinkray.core.message import register
from flinkray.scheduler.checkpoints.properties import CheckpointProperties


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
        """Whether a checkpoint that failed for this reason counts towards the number of failures in
        a row that fail the job, as in Flink. False for reasons that come from restarts, requests,
        tasks that end, and master hooks or operator coordinators that cannot begin."""
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


_WITH_A_RESTART = frozenset(
    {
        CheckpointFailureReason.TASK_FAILURE,
        CheckpointFailureReason.JOB_FAILOVER_REGION,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
    }
)


class CheckpointFailureManager:
    """Counts failed checkpoints since the last completed one, and decides when the job fails."""

    def __init__(self, tolerated: int) -> None:
        self._tolerated = tolerated
        self._failures = 0
        self._last_completed = 0

    def completed(self, checkpoint_id: int) -> None:
        """Reset the count of failures, because this checkpoint is complete."""
        self._failures = 0
        self._last_completed = max(self._last_completed, checkpoint_id)

    def failed(
        self,
        properties: CheckpointProperties,
        reason: CheckpointFailureReason,
        checkpoint_id: int | None,
        *,
        is_triggered: bool,
    ) -> str | None:
        """Count a failed checkpoint; called once per failed checkpoint. Returns the reason to fail
        the job, or None if the job continues.

        *is_triggered*: tasks were told to take the checkpoint. After a synchronous savepoint (with
        which the job stops) the tasks do not continue, whether or not the savepoint is complete; so
        they must be restarted (CP-20), unless the reason restarts them anyway. Failures of other
        savepoints only concern their users.
        """
        if properties.is_savepoint:
            if properties.is_synchronous and is_triggered and reason not in _WITH_A_RESTART:
                return "the savepoint that the job was to be stopped with failed"
            return None
        is_old = checkpoint_id is not None and checkpoint_id < self._last_completed
        if is_old or not reason.counts_as_failure:
            return None
        self._failures += 1
        if self._failures <= self._tolerated:
            return None
        self._failures = 0
        return f"more than {self._tolerated} checkpoints in a row failed"
