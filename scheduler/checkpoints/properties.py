"""What kind of snapshot is taken, and what becomes of it."""

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
    """A checkpoint, a savepoint, or the synchronous savepoint that a job is stopped with."""

    kind: SnapshotKind
    is_forced: bool = False
    """It is taken at once, however many others are being taken."""
    is_synchronous: bool = False
    """Tasks do not go on after it: it ends the job."""
    is_drain: bool = False
    """Event time ends before it, so that all windows and timers fire."""
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
        """Whether tasks commit with it, and the job goes on from it after a failure.  A savepoint
        is its user's, who may remove it at any time; one that ends the job commits, too."""
        return not self.is_savepoint or self.is_synchronous

    @property
    def is_discarded_when_subsumed(self) -> bool:
        return not self.is_savepoint

    def is_discarded_at(self, status: JobStatus) -> bool:
        """Whether it goes with a job that ends so.  Nothing goes with a suspended job: its next
        JobMaster goes on from there."""
        return not self.is_savepoint and status in _DISCARDED_AT[self.retention]


def checkpoint_of(configuration: CheckpointConfiguration) -> CheckpointProperties:
    """A checkpoint of a job that is configured so."""
    return CheckpointProperties(SnapshotKind.CHECKPOINT, retention=configuration.retention)


def savepoint(*, is_forced: bool = True) -> CheckpointProperties:
    """A savepoint that is taken while the job goes on."""
    return CheckpointProperties(SnapshotKind.SAVEPOINT, is_forced)


def synchronous_savepoint(*, is_drain: bool, is_forced: bool = True) -> CheckpointProperties:
    """A savepoint that the job is stopped with."""
    return CheckpointProperties(SnapshotKind.SAVEPOINT, is_forced, True, is_drain)
