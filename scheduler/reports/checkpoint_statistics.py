"""A job's checkpoints as clients see them."""

from __future__ import annotations

from enum import Enum

from flinkray.core.message import message, register
from flinkray.core.schema import stored


@stored("CheckpointStatus")
@register
class CheckpointStatus(Enum):
    """How far a checkpoint is."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@stored("CheckpointStatistics")
@message
class CheckpointStatistics:
    """One checkpoint or savepoint.  Sizes are bytes."""

    checkpoint_id: int
    status: CheckpointStatus
    is_savepoint: bool
    timestamp: int
    """When it was triggered: milliseconds since 1970."""
    duration: float | None
    """Seconds, until it was complete or had failed; None while it is in progress."""
    number_of_subtasks: int
    """That were to acknowledge it."""
    acknowledged_subtasks: int
    state_size: int = 0
    checkpointed_size: int = 0
    """Without what earlier checkpoints had written."""
    path: str | None = None
    """Of its metadata, from when it is complete until it is deleted as one that is not retained;
    without the secrets that its URI may have."""
    failure: str | None = None


@stored("CheckpointsOverview")
@message
class CheckpointsOverview:
    """All checkpoints of a job, since this JobMaster runs it."""

    in_progress: int
    completed: int
    failed: int
    restored: int
    """How often the job, or a part of it, has gone on from one."""
    latest_completed: CheckpointStatistics | None
    latest_savepoint: CheckpointStatistics | None
    latest_failed: CheckpointStatistics | None
    latest_restored: int | None
    """Its id."""
    history: tuple[CheckpointStatistics, ...]
    """Newest first; those in progress before all others."""

    def figures(self) -> dict[str, int]:
        """Under the names of Flink's metrics; those of the last one where there is one."""
        figures = {
            "totalNumberOfCheckpoints": self.in_progress + self.completed + self.failed,
            "numberOfInProgressCheckpoints": self.in_progress,
            "numberOfCompletedCheckpoints": self.completed,
            "numberOfFailedCheckpoints": self.failed,
        }
        last = self.latest_completed
        if last is not None and last.duration is not None:
            took = round(last.duration * 1000)
            figures |= {
                "lastCompletedCheckpointId": last.checkpoint_id,
                "lastCheckpointSize": last.checkpointed_size,
                "lastCheckpointFullSize": last.state_size,
                "lastCheckpointDuration": took,
                "lastCheckpointCompletedTimestamp": last.timestamp + took,
            }
        return figures
