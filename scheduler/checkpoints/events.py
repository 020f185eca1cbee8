"""Defines the events of a job's checkpoints, and the coordinator's decisions about the job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flinkray.checkpoint.handles import StateLocation
from flinkray.checkpoint.metadata import MasterState
from flinkray.scheduler.checkpoints.actions import CheckpointAction, StoreCheckpoint
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.scheduler.checkpoints.messages import CheckpointAnswer
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.shared.transition import JobEvent, StartTimer, Transition


class CheckpointTimerPurpose(Enum):
    """Why a timer of the CheckpointCoordinator was started: to take a periodic checkpoint, to abort
    a checkpoint that has taken too long, or to take a final checkpoint."""

    TRIGGER = "trigger"
    EXPIRY = "expiry"
    FINAL = "final"


class _CheckpointEvent(JobEvent):
    """Base class of the events about checkpoints. They are handled even after the end of the job,
    because a checkpoint may still be being stored then."""

    __slots__ = ()
    counts_after_end = True


@dataclass(frozen=True, slots=True)
class CheckpointPrepared(_CheckpointEvent):
    """A PrepareCheckpoint was carried out: the checkpoint has an id and a directory."""

    number: int
    checkpoint_id: int
    directory: str


@dataclass(frozen=True, slots=True)
class CheckpointNotPrepared(_CheckpointEvent):
    """A PrepareCheckpoint failed to get an id or a directory."""

    number: int
    cause: str


@dataclass(frozen=True, slots=True)
class CoordinatorCheckpointed(_CheckpointEvent):
    """The coordinator of an operator has taken its snapshot.
    *state* is None if the coordinator has no state."""

    checkpoint_id: int
    operator_id: str
    state: StateLocation | None
    master_states: tuple[MasterState, ...] = ()
    """States of master hooks that came with the snapshot."""


@dataclass(frozen=True, slots=True)
class CoordinatorNotCheckpointed(_CheckpointEvent):
    """The coordinator of an operator cannot take its snapshot, or a master hook has failed."""

    checkpoint_id: int
    operator_id: str | None
    """None: a master hook has failed, which *cause* names."""
    cause: str
    is_lost: bool = False
    """Whether the coordinator no longer exists.
    If so, the failed checkpoint does not count against the tolerable failures in a row."""


@dataclass(frozen=True, slots=True)
class CheckpointAnswered(_CheckpointEvent):
    """Tasks have answered checkpoint orders, in this order."""

    answers: tuple[CheckpointAnswer, ...]
    holds_much = True

    def __str__(self) -> str:
        told = ", ".join(f"{a.attempt_id} {type(a).__name__}" for a in self.answers[:3])
        return f"CheckpointAnswered({len(self.answers)}: {told})"


@dataclass(frozen=True, slots=True)
class CheckpointIsStored(_CheckpointEvent):
    """A StoreCheckpoint was carried out.  *path* is the path of the metadata."""

    stored: StoreCheckpoint
    path: str
    holds_much = True

    def __str__(self) -> str:
        return f"CheckpointIsStored({self.stored.metadata.checkpoint_id}, {self.path})"


@dataclass(frozen=True, slots=True)
class CheckpointIsNotStored(_CheckpointEvent):
    """A StoreCheckpoint failed for certain: no JobMaster will ever recover the checkpoint."""

    stored: StoreCheckpoint
    cause: str
    holds_much = True

    def __str__(self) -> str:
        return f"CheckpointIsNotStored({self.stored.metadata.checkpoint_id}, {self.cause})"


@dataclass(frozen=True, slots=True)
class CheckpointTimerOver(_CheckpointEvent):
    """A timer that the CheckpointCoordinator started for *purpose* has fired."""

    purpose: CheckpointTimerPurpose
    number: int
    """Distinguishes the timer from earlier timers, which the coordinator ignores when they fire."""


@dataclass(frozen=True, slots=True)
class SnapshotRequested(_CheckpointEvent):
    """A user requests a savepoint, or a checkpoint if *properties* is None."""

    request_id: int
    properties: CheckpointProperties | None
    directory: str | None = None
    """Target directory of a savepoint; None for a checkpoint."""


CheckpointEvent = (
    CheckpointPrepared
    | CheckpointNotPrepared
    | CoordinatorCheckpointed
    | CoordinatorNotCheckpointed
    | CheckpointAnswered
    | CheckpointIsStored
    | CheckpointIsNotStored
    | CheckpointTimerOver
    | SnapshotRequested
)


@dataclass(frozen=True, slots=True)
class SavepointGiven(JobEvent):
    """Start the job from this savepoint, unless the job has checkpoints of its own (JM-09).  This
    comes before the start.  The job fails if its operators cannot be restored from the savepoint.
    """

    savepoint: CompletedCheckpoint
    holds_much = True

    def __str__(self) -> str:
        return f"SavepointGiven({self.savepoint.path})"


@dataclass(frozen=True, slots=True)
class CheckpointsFailJob(Transition):
    """Fail the whole job because of failed checkpoints.  The restart strategy decides about a
    restart."""

    error: CheckpointError
    text: str


@dataclass(frozen=True, slots=True)
class ReadyToRestore(Transition):
    """Continue with the restore for which ``prepare_restore`` was called, because each earlier
    checkpoint is now complete or has failed for good."""


CheckpointStep = CheckpointAction | StartTimer | CheckpointsFailJob | ReadyToRestore
"""What the CheckpointCoordinator decides: actions of the JobMaster, and changes of the job."""
