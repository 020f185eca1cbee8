"""Describes a job's checkpoints for clients, and names Flink's metrics of them."""

from __future__ import annotations

from enum import Enum

from flinkray.core.message import message, register
from flinkray.core.schema import stored


@stored("CheckpointStatus")
@register
class CheckpointStatus(Enum):
    """Whether a checkpoint is in progress, is complete or has failed."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@stored("CheckpointStatistics")
@message
class CheckpointStatistics:
    """Sizes (in bytes), times and outcome of one checkpoint or savepoint."""

    checkpoint_id: int
    status: CheckpointStatus
    is_savepoint: bool
    timestamp: int
    """Milliseconds since 1970 when the checkpoint was triggered."""
    duration: float | None
    """Seconds until the checkpoint was complete or failed; None while it is in progress."""
    number_of_subtasks: int
    """Number of subtasks that must acknowledge the checkpoint."""
    acknowledged_subtasks: int
    state_size: int = 0
    checkpointed_size: int = 0
    """Size of the state that this checkpoint wrote, without state of earlier checkpoints."""
    path: str | None = None
    """Path of the metadata; None unless the checkpoint is complete and not discarded.
    The path does not contain secrets from the URI."""
    failure: str | None = None


@stored("CheckpointsOverview")
@message
class CheckpointsOverview:
    """Numbers of a job's checkpoints under the current JobMaster, and the statistics of the newest
    ones."""

    in_progress: int
    completed: int
    failed: int
    restored: int
    """How often the job, or a part of it, was restored from a checkpoint."""
    latest_completed: CheckpointStatistics | None
    latest_savepoint: CheckpointStatistics | None
    latest_failed: CheckpointStatistics | None
    latest_restored: int | None
    """Id of the checkpoint from which the job was last restored; None if it was not restored."""
    history: tuple[CheckpointStatistics, ...]
    """Newest checkpoints first; checkpoints in progress come before all others."""

    @property
    def _failed_in_a_row(self) -> int:
        """Number of checkpoints that have failed since the last completed one. Savepoints do not
        count, nor do checkpoints that failed before they had an id."""
        count = 0
        for each in self.history:
            if each.is_savepoint or each.status is CheckpointStatus.IN_PROGRESS:
                continue
            if each.status is CheckpointStatus.COMPLETED:
                break
            count += 1
        return count

    def flink_metrics(self) -> dict[str, int]:
        """Return the checkpoint statistics under the names of Flink's metrics. The values of the
        last completed checkpoint are present only if there is one."""
        metrics = {
            "totalNumberOfCheckpoints": self.in_progress + self.completed + self.failed,
            "numberOfInProgressCheckpoints": self.in_progress,
            "numberOfCompletedCheckpoints": self.completed,
            "numberOfFailedCheckpoints": self.failed,
            "numberOfConsecutiveFailedCheckpoints": self._failed_in_a_row,
        }
        last = self.latest_completed
        if last is not None and last.duration is not None:
            took = round(last.duration * 1000)
            metrics |= {
                "lastCompletedCheckpointId": last.checkpoint_id,
                "lastCheckpointSize": last.checkpointed_size,
                "lastCheckpointFullSize": last.state_size,
                "lastCheckpointDuration": took,
                "lastCheckpointCompletedTimestamp": last.timestamp + took,
            }
        return metrics
