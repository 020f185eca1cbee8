"""Defines the properties of checkpoints and savepoints: their kind, and when they are discarded."""

from __future__ import annotations

from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.core.message import message
from flinkray.scheduler.graph.checkpoint_configuration import (
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
)
from flinkray.scheduler.shared.states import JobStatus

_DISCARDED_AT = {
    CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION: frozenset(
        {JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED}
    ),
    CheckpointRetentionPolicy.RETAIN_ON_FAILURE: frozenset(
        {JobStatus.FINISHED, JobStatus.CANCELED}
    ),
    CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION: frozenset({JobStatus.FINISHED}),
}


@message
class CheckpointProperties:
    """Properties of a checkpoint, a savepoint, or the synchronous savepoint that stops a job."""

    kind: SnapshotKind
    is_forced: bool = False
    """Whether the snapshot begins at once, even if others are in progress."""
    is_synchronous: bool = False
    """Whether the tasks end after the snapshot, which then ends the job."""
    is_drain: bool = False
    """Whether event time ends before the snapshot, so that all windows and timers fire."""
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION

    def __post_init__(self) -> None:
        if self.is_synchronous and not self.is_savepoint:
            raise ValueError("only a savepoint can be synchronous")
        if self.is_drain and not self.is_synchronous:
            raise ValueError("only a synchronous savepoint can advance to the end of event time")

    @property
    def is_savepoint(self) -> bool:
        return self.kind is SnapshotKind.SAVEPOINT

    @property
    def is_recovered_from(self) -> bool:
        """Whether tasks commit at this snapshot, and the job recovers from it after a failure.
        False for savepoints that do not end the job, because their users may remove them at any
        time."""
        return not self.is_savepoint or self.is_synchronous

    @property
    def is_discarded_when_subsumed(self) -> bool:
        return not self.is_savepoint

    def is_discarded_at(self, status: JobStatus) -> bool:
        """Return whether the snapshot is discarded when the job ends with *status*. A savepoint
        never is. If the job is suspended, nothing is, because the next JobMaster recovers from
        it."""
        return not self.is_savepoint and status in _DISCARDED_AT[self.retention]


def checkpoint_of(configuration: CheckpointConfiguration) -> CheckpointProperties:
    """Return the properties of a checkpoint of a job with this configuration."""
    return CheckpointProperties(SnapshotKind.CHECKPOINT, retention=configuration.retention)


def savepoint(*, is_forced: bool = True) -> CheckpointProperties:
    """Return the properties of a savepoint after which the job keeps running. *is_forced*: it
    begins at once, even if other snapshots are in progress."""
    return CheckpointProperties(SnapshotKind.SAVEPOINT, is_forced)


def synchronous_savepoint(*, is_drain: bool, is_forced: bool = True) -> CheckpointProperties:
    """Return the properties of a savepoint with which the job is stopped. *is_drain*: event time
    ends before it, so that all windows and timers fire. *is_forced*: it begins at once, even if
    other snapshots are in progress."""
    return CheckpointProperties(SnapshotKind.SAVEPOINT, is_forced, True, is_drain)
