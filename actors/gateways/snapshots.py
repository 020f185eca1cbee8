"""Messages about savepoints and checkpoints that a client requests."""

from __future__ import annotations

from enum import Enum

from flinkray.core.ids import TriggerID
from flinkray.core.message import message, register


@register
class SnapshotType(Enum):
    """Kind of a snapshot, which says whether the job continues afterwards."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    """The job continues after the savepoint."""
    SUSPEND_WITH_SAVEPOINT = "stop with savepoint"
    """The job is FINISHED after the savepoint. Window contents and timers are in the savepoint."""
    TERMINATE_WITH_SAVEPOINT = "drain with savepoint"
    """Event time ends before the savepoint: windows and timers fire. The job is FINISHED then."""

    @property
    def stops_the_job(self) -> bool:
        return self in (SnapshotType.SUSPEND_WITH_SAVEPOINT, SnapshotType.TERMINATE_WITH_SAVEPOINT)


@message
class SnapshotRequest:
    """A client's request for a snapshot.
    The trigger id identifies the request: a repeated request has the same id, whichever Dispatcher
    and JobMaster receive it.
    """

    trigger_id: TriggerID
    kind: SnapshotType
    target_directory: str | None = None
    """Directory below which the savepoint gets its own directory.
    None: the configured directory.
    """


@message
class SnapshotTaken:
    """A complete snapshot. If it was to stop the job, the job is FINISHED."""

    path: str
    """Directory of the snapshot."""
    without_uid: tuple[str, ...] = ()
    """Names of operators that have state but no uid set by the author."""
