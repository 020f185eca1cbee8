"""What the CheckpointCoordinator asks the JobMaster to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.checkpoint.metadata import CheckpointMetadata
from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.errors import CheckpointError
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.shared.states import JobStatus


class CheckpointTimerPurpose(Enum):
    """What is to be done when a timer's time has come."""

    TRIGGER = "trigger"
    EXPIRY = "expiry"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class CheckpointTimerKey:
    """Which of its timers the coordinator has started."""

    purpose: CheckpointTimerPurpose
    number: int
    """Tells a timer from an earlier one that is not waited for any more."""


@dataclass(frozen=True, slots=True)
class StartCheckpointTimer:
    """Call ``timer(key)`` after *delay* seconds."""

    key: CheckpointTimerKey
    delay: float


@dataclass(frozen=True, slots=True)
class PrepareCheckpoint:
    """Take an id from the HA services' counter and say in which directory tasks write; then
    ``prepared``, or ``preparation_failed``."""

    number: int
    """Of the attempt to take one: no other has it."""
    properties: CheckpointProperties
    directory: str | None
    """Of a savepoint; None: it is a checkpoint."""


@dataclass(frozen=True, slots=True)
class SnapshotCoordinators:
    """Have the coordinators of these operators snapshot their state, which is a cut; then
    ``coordinator_acknowledged`` or ``coordinator_declined`` for each."""

    checkpoint_id: int
    operators: tuple[str, ...]
    directory: str
    """Where they write."""


@dataclass(frozen=True, slots=True)
class TriggerMasterHooks:
    """Call these hooks; then ``master_state_taken`` or ``master_hook_failed`` for each."""

    checkpoint_id: int
    timestamp: int
    hook_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TriggerTasks:
    """Tell these tasks to send barriers, in one message for each TaskExecutor.  What barriers carry
    is the same for all tasks.  When a TaskExecutor cannot be told: ``declined`` for its tasks."""

    checkpoint_id: int
    timestamp: int
    properties: CheckpointProperties
    directory: str
    attempts: tuple[ExecutionAttemptID, ...]
    latest_completed: int | None
    """Each task knows it to be complete before it takes its snapshot, whatever it has been told of
    by then: it refers to no files that only earlier ones have."""
    is_whole: bool
    """Tasks refer to no files of other checkpoints.  (Keyed state of a savepoint is in its
    directory; that of a checkpoint is always where later ones can share it, also if it is whole.)
    """


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Write the metadata, with flinkray's version in it, and then the pointer in the HA services if
    *properties* say that it is recovered from.  Then ``checkpoint_stored``; or
    ``checkpoint_not_stored``, when it is certain that no JobMaster will ever recover it.  As long
    as neither is certain, try again."""

    metadata: CheckpointMetadata
    properties: CheckpointProperties
    directory: str


@dataclass(frozen=True, slots=True)
class NotifyCheckpointComplete:
    """Tell these tasks and coordinators, which commit."""

    checkpoint_id: int
    timestamp: int
    attempts: tuple[ExecutionAttemptID, ...]
    coordinators: tuple[str, ...]
    subsumed_id: int | None
    """The latest of the checkpoints that are not retained any more."""


@dataclass(frozen=True, slots=True)
class NotifyCheckpointAborted:
    """Tell these tasks and coordinators, which give it up.  A task that has answered nothing
    declines when nothing of it writes for this checkpoint any more."""

    checkpoint_id: int
    latest_completed: int | None
    """It is complete, whether they were told or not."""
    attempts: tuple[ExecutionAttemptID, ...]
    coordinators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiscardFiles:
    """Delete state that belongs to no checkpoint; whether that succeeds changes nothing."""

    files: tuple[FileState, ...]


@dataclass(frozen=True, slots=True)
class DiscardDirectory:
    """Delete the directory of a checkpoint that was not taken: nobody writes to it any more."""

    directory: str


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Remove the pointer to a checkpoint, then delete its metadata and the directory of that.  If
    another JobMaster has taken over, delete nothing."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class ForgetCheckpoint:
    """Remove the pointer to a checkpoint; what it consists of stays."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class AddRestoredSavepoint:
    """Store a pointer to the savepoint that the job starts from, and let ids go on after its."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class CloseCheckpointStores:
    """The job is over for this JobMaster; with a status that is final for good, pointers and the
    count of ids are forgotten."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class SnapshotFinished:
    """Answer a request: where the snapshot is, or what went wrong.  Who stops a job with a
    savepoint is answered when the job has ended, or goes on in spite of it."""

    request_id: int
    path: str | None
    """Of the directory."""
    checkpoint_id: int | None
    error: CheckpointError | None = None
    without_uid: tuple[str, ...] = ()
    """Names of operators with state whose author has set no uid."""


@dataclass(frozen=True, slots=True)
class CheckpointsFailJob:
    """The job fails as a whole, and is restarted if its strategy allows."""

    error: CheckpointError
    text: str


@dataclass(frozen=True, slots=True)
class ReadyToRestore:
    """What ``prepare_restore`` was called for may go on: no checkpoint can become complete any more
    that was begun before."""


@dataclass(frozen=True, slots=True)
class RestoreCoordinators:
    """Give the coordinators of operators their state; None: they begin anew."""

    checkpoint_id: int | None
    states: Mapping[str, StateLocation | None]
    restores: int
    """How often the job's coordinators have been restored, this time included."""


@dataclass(frozen=True, slots=True)
class ResetCoordinatorSubtasks:
    """Tell the coordinators of operators which of their subtasks go back to a checkpoint: what was
    given to them after it goes back, too."""

    checkpoint_id: int | None
    """None: to their beginning."""
    subtasks: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class InitializeMasterHooks:
    """Call ``initialize`` of all hooks, once."""


@dataclass(frozen=True, slots=True)
class RestoreMasterHooks:
    """Call ``restore_checkpoint`` of each hook, with its state or None."""

    checkpoint_id: int
    states: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class ResetMasterHooks:
    """Call ``reset`` of all hooks: there is no checkpoint to restore."""


@dataclass(frozen=True, slots=True)
class CloseMasterHooks:
    """Call ``close`` of all hooks."""


CheckpointAction = (
    StartCheckpointTimer
    | PrepareCheckpoint
    | SnapshotCoordinators
    | TriggerMasterHooks
    | TriggerTasks
    | StoreCheckpoint
    | NotifyCheckpointComplete
    | NotifyCheckpointAborted
    | DiscardFiles
    | DiscardDirectory
    | DiscardCheckpoint
    | ForgetCheckpoint
    | AddRestoredSavepoint
    | CloseCheckpointStores
    | SnapshotFinished
    | CheckpointsFailJob
    | ReadyToRestore
    | RestoreCoordinators
    | ResetCoordinatorSubtasks
    | InitializeMasterHooks
    | RestoreMasterHooks
    | ResetMasterHooks
    | CloseMasterHooks
)
