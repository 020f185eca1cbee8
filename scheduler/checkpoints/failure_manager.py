"""Decides when failed checkpoints make the job fail."""

from __future__ import annotations

from flinkray.scheduler.checkpoints.errors import CheckpointFailureReason
from flinkray.scheduler.checkpoints.properties import CheckpointProperties

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
        """Count a failed checkpoint.  Call this once per failed checkpoint. Returns the reason to
        fail the job, or None if the job continues.

        *is_triggered*: tasks were told to take the checkpoint.  After a synchronous savepoint the
        tasks do not continue, whether or not the savepoint is complete; so they must be restarted
        (CP-20), unless the reason restarts them anyway.  Failures of other savepoints only concern
        their users.
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
