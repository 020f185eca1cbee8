"""What tasks answer to a checkpoint."""

from __future__ import annotations

from flinkray.checkpoint.handles import TaskState
from flinkray.core.error_text import sendable
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.core.message import message
from flinkray.scheduler.checkpoints.errors import CheckpointFailureReason


@message
class AcknowledgeCheckpoint:
    """A task has written its state for a checkpoint, and keeps nothing of it for itself."""

    job_id: JobID
    checkpoint_id: int
    attempt_id: ExecutionAttemptID
    state: TaskState | None
    """None: it has none."""
    is_savepoint: bool = False
    """What becomes of the state of a checkpoint that the coordinator does not know: that of a
    savepoint is its user's."""


@message
class DeclineCheckpoint:
    """A task takes no part in a checkpoint, or not to its end; nothing of it writes any more."""

    job_id: JobID
    checkpoint_id: int
    attempt_id: ExecutionAttemptID
    reason: CheckpointFailureReason
    text: str = ""

    def __post_init__(self) -> None:
        """User code's texts may be of any length, or none that can be sent."""
        object.__setattr__(self, "text", sendable(self.text))
