"""What tasks are told of checkpoints, and what they answer."""

from __future__ import annotations

from flinkray.checkpoint.handles import TaskState
from flinkray.core.error_text import sendable
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.core.message import message
from flinkray.scheduler.checkpoints.errors import CheckpointFailureReason
from flinkray.scheduler.checkpoints.properties import CheckpointProperties


@message
class TriggerCheckpoint:
    """To those tasks that nothing sends barriers to: begin.  All of it is in the barriers, too."""

    checkpoint_id: int
    timestamp: int
    """Milliseconds since 1970."""
    properties: CheckpointProperties
    directory: str
    """Where state is written; what later checkpoints may share goes beside it (see
    :func:`flinkray.checkpoint.storage.state_writer`)."""
    latest_completed: int
    """Id of the latest complete checkpoint; 0: there is none.  State is shared with no earlier
    one."""
    is_whole: bool
    """State is shared with no other checkpoint."""
    is_unaligned: bool = False
    alignment_timeout: float | None = None
    """Seconds after which an aligned one goes on as an unaligned one; None: never."""


@message
class CheckpointCompleted:
    """To all tasks that took part: commit."""

    checkpoint_id: int


@message
class CheckpointAborted:
    """To all tasks of it: give it up.  One that has answered nothing declines when nothing of it
    writes for it any more."""

    checkpoint_id: int
    latest_completed: int
    """Complete, whether the tasks were told or not; 0: there is none."""


CheckpointOrder = TriggerCheckpoint | CheckpointCompleted | CheckpointAborted


@message
class PickledState:
    """A state with values that are pickled, since nothing else covers their types."""

    operator_id: str
    name: str
    types: tuple[str, ...]
    """Module and qualified name."""


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
    pickled: tuple[PickledState, ...] = ()


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


@message
class AwaitCheckpoint:
    """The input of a task has ended, and the task ends when a checkpoint later than *after* is
    complete."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    after: int
    """Id; 0: any."""


CheckpointAnswer = AcknowledgeCheckpoint | DeclineCheckpoint | AwaitCheckpoint
