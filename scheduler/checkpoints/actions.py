"""Defines the actions that the CheckpointCoordinator asks the JobMaster to carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.checkpoint.metadata import CheckpointMetadata, MasterState
from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.shared.states import JobStatus


class CheckpointTimerPurpose(Enum):
    """Distinguishes the timers of the CheckpointCoordinator by their purpose: the work that is due
    when the timer fires.
    """

    TRIGGER = "trigger"
    EXPIRY = "expiry"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class CheckpointTimerKey:
    """Identifies a timer that the coordinator has started."""

    purpose: CheckpointTimerPurpose
    number: int
    """Distinguishes the timer from earlier timers, which the coordinator ignores when they fire."""


@dataclass(frozen=True, slots=True)
class StartCheckpointTimer:
    """Call the CheckpointCoordinator's ``timer(key)`` after *delay* seconds."""

    key: CheckpointTimerKey
    delay: float


@dataclass(frozen=True, slots=True)
class PrepareCheckpoint:
    """Get a checkpoint id from the HA services' counter, and choose a directory for the state.
    Then call ``prepared`` or ``preparation_failed``."""

    number: int
    """Number of this attempt to take a checkpoint.  Unique within the coordinator."""
    properties: CheckpointProperties
    directory: str | None
    """Target directory of a savepoint; None for a checkpoint."""


@dataclass(frozen=True, slots=True)
class SnapshotCoordinators:
    """Ask the coordinators of these operators to snapshot their state, and then the master hooks.
    Each snapshot makes a cut between the events before and after the checkpoint.  Then call
    ``coordinator_acknowledged`` or ``coordinator_declined`` for each coordinator."""

    checkpoint_id: int
    timestamp: int
    operators: tuple[str, ...]
    directory: str
    """Directory to which the coordinators write their state."""


@dataclass(frozen=True, slots=True)
class TriggerTasks:
    """Tell these tasks to start the checkpoint and send barriers; one message per TaskExecutor.
    If a TaskExecutor cannot be reached, call ``declined`` for its tasks."""

    checkpoint_id: int
    timestamp: int
    properties: CheckpointProperties
    directory: str
    attempts: tuple[ExecutionAttemptID, ...]
    latest_completed: int | None
    """Id of the latest complete checkpoint; None if there is none.
    Each task learns of this checkpoint before it takes its snapshot, even if the task missed
    earlier notifications.  So the snapshot refers to no files that only earlier checkpoints have.
    """
    is_whole: bool
    """Whether tasks must not refer to files of other checkpoints.
    Keyed state of a savepoint is written to the savepoint's directory.  Keyed state of a checkpoint
    is always written where later checkpoints can share it, even if the checkpoint is whole."""


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Write the checkpoint's metadata, which includes flinkray's version.
    If *properties* say that the job recovers from the checkpoint, then also write the pointer in
    the HA services.  Afterwards call ``checkpoint_stored``; or call ``checkpoint_not_stored`` if it
    is certain that no JobMaster will ever recover the checkpoint.  Retry as long as neither is
    certain.
    """

    metadata: CheckpointMetadata
    properties: CheckpointProperties
    directory: str


@dataclass(frozen=True, slots=True)
class NotifyCheckpointComplete:
    """Tell these tasks and coordinators that the checkpoint is complete; they commit."""

    checkpoint_id: int
    timestamp: int
    attempts: tuple[ExecutionAttemptID, ...]
    coordinators: tuple[str, ...]
    subsumed_id: int | None
    """Id of the latest checkpoint that is no longer retained; None if there is none."""


@dataclass(frozen=True, slots=True)
class NotifyCheckpointAborted:
    """Tell these tasks and coordinators to abort the checkpoint.
    A task that has not answered declines as soon as it writes nothing more for this checkpoint."""

    checkpoint_id: int
    latest_completed: int | None
    """Id of the latest complete checkpoint, whether or not the tasks were notified of it.
    None if there is none."""
    attempts: tuple[ExecutionAttemptID, ...]
    coordinators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiscardFiles:
    """Delete state files that belong to no checkpoint.  A failed deletion has no consequences."""

    files: tuple[FileState, ...]


@dataclass(frozen=True, slots=True)
class DiscardDirectory:
    """Delete the directory of a checkpoint that was not completed.  No task writes to it any
    more."""

    directory: str


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Delete a complete checkpoint: first the pointer to it, then its metadata and directory. If
    another JobMaster has taken over, delete nothing."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class ForgetCheckpoint:
    """Remove the pointer to a checkpoint, and keep its files."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class AddRestoredSavepoint:
    """Store a pointer to the savepoint that the job starts from.
    Later checkpoints get higher ids than the savepoint."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class CloseCheckpointStores:
    """Close the checkpoint stores, because the job is over for this JobMaster.
    If *status* is globally terminal, also remove the pointers and the id counter."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class SnapshotFinished:
    """Answer a user's request with the directory of the snapshot, or with the error. A request to
    stop with a savepoint is answered when the job has ended, or when it turns out that the job
    keeps running.
    """

    request_id: int
    path: str | None
    """Directory of the snapshot; None if there was an error."""
    checkpoint_id: int | None
    error: CheckpointError | None = None
    without_uid: tuple[str, ...] = ()
    """Names of operators that have state but no uid set by the program's author."""


@dataclass(frozen=True, slots=True)
class CheckpointsFailJob:
    """Fail the whole job because of failed checkpoints.  The restart strategy decides about a
    restart."""

    error: CheckpointError
    text: str


@dataclass(frozen=True, slots=True)
class ReadyToRestore:
    """Continue with the restore for which ``prepare_restore`` was called.
    No checkpoint that began before can become complete any more."""


@dataclass(frozen=True, slots=True)
class RestoreCoordinators:
    """Restore the coordinators of operators, and the master hooks.
    Each coordinator gets its state from *states*; with None the coordinator starts without state.
    """

    checkpoint_id: int | None
    states: Mapping[str, StateLocation | None]
    restores: int
    """How often the job's coordinators have been restored, including this time."""
    master_states: tuple[MasterState, ...] = ()
    """All states of master hooks in the checkpoint."""


@dataclass(frozen=True, slots=True)
class ResetCoordinatorSubtasks:
    """Tell the operators' coordinators which of their subtasks restart from a checkpoint. Data that
    these subtasks received after the checkpoint returns to the coordinators."""

    checkpoint_id: int | None
    """Id of the checkpoint; None if the subtasks restart without state."""
    subtasks: Mapping[str, tuple[int, ...]]


CheckpointAction = (
    StartCheckpointTimer
    | PrepareCheckpoint
    | SnapshotCoordinators
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
)
