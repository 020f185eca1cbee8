"""When checkpoints that fail, fail the job."""

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
    """Counts failures since the last checkpoint that was complete."""

    def __init__(self, tolerated: int) -> None:
        self._tolerated = tolerated
        self._failures = 0
        self._last_completed = 0

    def completed(self, checkpoint_id: int) -> None:
        """Checkpoints can be taken."""
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
        """Why the job is to fail, too; None: it goes on.  To be told once of each checkpoint.

        *is_triggered*: tasks were told to take it.  After a synchronous savepoint they do not go
        on, be it complete or not: they must be restarted (CP-20), if they are not anyway.  Other
        savepoints are their users' business.
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
