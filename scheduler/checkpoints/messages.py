"""Defines the messages to tasks about checkpoints, and the answers of the tasks."""

from __future__ import annotations

from flinkray.checkpoint.handles import TaskState
from flinkray.core.error_text import sendable
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.core.message import message
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.properties import CheckpointProperties


@message
class TriggerCheckpoint:
    """Orders tasks to begin a checkpoint. Sent only to tasks that get no checkpoint barriers,
    because they read from no running task. Other tasks learn the same information from the
    barriers."""

    checkpoint_id: int
    timestamp: int
    """Milliseconds since 1970."""
    properties: CheckpointProperties
    directory: str
    """Directory of the state.  State that later checkpoints may share is beside it
    (see :func:`flinkray.checkpoint.layout.state_writer`)."""
    latest_completed: int
    """Id of the latest complete checkpoint; 0 if there is none.
    The task refers to no files that only earlier checkpoints have."""
    is_whole: bool
    """Whether the task shares no state with other checkpoints."""
    is_unaligned: bool = False
    alignment_timeout: float | None = None
    """Seconds after which an aligned checkpoint continues unaligned; None means never."""


@message
class CheckpointCompleted:
    """Orders all tasks that took part in the checkpoint to commit, because it is complete."""

    checkpoint_id: int


@message
class CheckpointAborted:
    """Orders all tasks that take part in the checkpoint to abort it. A task that has not answered
    yet sends a DeclineCheckpoint as soon as it writes nothing more for the checkpoint."""

    checkpoint_id: int
    latest_completed: int
    """Id of the latest complete checkpoint, whether or not the tasks were notified; 0 if none."""


CheckpointOrder = TriggerCheckpoint | CheckpointCompleted | CheckpointAborted


@message
class PickledState:
    """Reports a state whose values are pickled, because no other serializer covers their types."""

    operator_id: str
    name: str
    types: tuple[str, ...]
    """Module and qualified name of each type."""


@message
class AcknowledgeCheckpoint:
    """Reports that a task has written its state for a checkpoint.  The task no longer owns the
    state."""

    job_id: JobID
    checkpoint_id: int
    attempt_id: ExecutionAttemptID
    state: TaskState | None
    """Handles of the written state; None if the task has no state."""
    is_savepoint: bool = False
    """Whether the checkpoint is a savepoint.
    If the coordinator does not know the checkpoint, then the state of a savepoint stays, because
    the savepoint belongs to its user."""
    pickled: tuple[PickledState, ...] = ()


@message
class DeclineCheckpoint:
    """Reports that a task does not take part in a checkpoint, or does not complete its part."""

    job_id: JobID
    checkpoint_id: int
    attempt_id: ExecutionAttemptID
    reason: CheckpointFailureReason
    text: str = ""
    may_write: bool = False
    """Whether the task may still write, because it is unknown whether the task was told to begin.
    The checkpoint's files are not deleted before the task has answered or ended.  False: the task
    writes nothing more for the checkpoint."""

    def __post_init__(self) -> None:
        """Make the text sendable, because texts from user code may be too long or unencodable."""
        object.__setattr__(self, "text", sendable(self.text))


@message
class AwaitCheckpoint:
    """Reports that a task's input has ended, and that the task waits for the completion of a
    checkpoint with an id above *after* before it ends."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    after: int
    """The task ends after a checkpoint with a higher id; 0 means that any checkpoint suffices."""


CheckpointAnswer = AcknowledgeCheckpoint | DeclineCheckpoint | AwaitCheckpoint
