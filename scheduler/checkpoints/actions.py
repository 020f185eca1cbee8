"""Defines the actions that the CheckpointCoordinator asks the JobMaster to carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.checkpoint.metadata import CheckpointMetadata, MasterState
from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.scheduler.checkpoints.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOrder,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import JobStatus


@dataclass(frozen=True, slots=True)
class PrepareCheckpoint:
    """Get a checkpoint id from the HA services' counter, and choose a directory for the state.
    CheckpointPrepared or CheckpointNotPrepared follows."""

    number: int
    """Number of this attempt to take a checkpoint.  Unique within the coordinator."""
    properties: CheckpointProperties
    directory: str | None
    """Target directory of a savepoint; None for a checkpoint."""


@dataclass(frozen=True, slots=True)
class SnapshotCoordinators:
    """Ask the coordinators of these operators for snapshots of their state, and then call the
    master hooks (user code that runs beside the coordinators at each checkpoint). Events that a
    coordinator sends before its snapshot belong to the checkpoint; later events do not. For each
    coordinator, CoordinatorCheckpointed or CoordinatorNotCheckpointed follows."""

    checkpoint_id: int
    timestamp: int
    operators: tuple[str, ...]
    directory: str
    """Directory to which the coordinators write their state."""


@dataclass(frozen=True, slots=True)
class OrderCheckpoint:
    """Send an order to tasks on one TaskExecutor, in one message.
    If a TriggerCheckpoint cannot be sent, the tasks count as having declined.  Other orders are
    repeated until they are sent, or the TaskExecutor is lost."""

    location: WorkerLocation
    attempts: tuple[ExecutionAttemptID, ...]
    order: CheckpointOrder


@dataclass(frozen=True, slots=True)
class OrderCoordinators:
    """Send an order to the coordinators of these operators.
    A coordinator receives orders in the order of the actions, whatever the kind of order."""

    operators: tuple[str, ...]
    order: CheckpointCompleted | CheckpointAborted


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Write the checkpoint's metadata, which includes flinkray's version.
    If *properties* say that the job recovers from the checkpoint, then also write the pointer in
    the HA services.  CheckpointIsStored follows; or CheckpointIsNotStored if it is certain that no
    JobMaster will ever recover the checkpoint.  Retry as long as neither is certain.
    """

    metadata: CheckpointMetadata
    properties: CheckpointProperties
    directory: str


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
    """Close the checkpoint stores, because the job is over for this JobMaster. If *status* is
    globally terminal, also remove the pointers to checkpoints and the counter of checkpoint ids."""

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
class ResetSubtasks:
    """Tell the operators' coordinators which of their subtasks restart from a checkpoint. The
    coordinators take back the data that earlier attempts of these subtasks received after the
    checkpoint, and assign the data again."""

    checkpoint_id: int
    """Id of the checkpoint; 0 if the subtasks restart without state."""
    subtasks: Mapping[str, tuple[tuple[int, int], ...]]
    """Operator id -> (subtask index, number of the attempt that starts from the checkpoint)."""


CheckpointAction = (
    PrepareCheckpoint
    | SnapshotCoordinators
    | OrderCheckpoint
    | OrderCoordinators
    | StoreCheckpoint
    | DiscardFiles
    | DiscardDirectory
    | DiscardCheckpoint
    | ForgetCheckpoint
    | AddRestoredSavepoint
    | CloseCheckpointStores
    | SnapshotFinished
    | RestoreCoordinators
    | ResetSubtasks
)
