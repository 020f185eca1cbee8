"""What is said of savepoints and checkpoints that somebody asks for."""

from __future__ import annotations

from enum import Enum

from flinkray.core.ids import TriggerID
from flinkray.core.message import message, register


@register
class SnapshotType(Enum):
    """What is to be taken, and what becomes of the job."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    """The job goes on."""
    SUSPEND_WITH_SAVEPOINT = "stop with savepoint"
    """The job is FINISHED after it; what is in windows, and timers, are in the savepoint."""
    TERMINATE_WITH_SAVEPOINT = "drain with savepoint"
    """Event time ends before it, so that windows and timers fire."""

    @property
    def stops_the_job(self) -> bool:
        return self in (SnapshotType.SUSPEND_WITH_SAVEPOINT, SnapshotType.TERMINATE_WITH_SAVEPOINT)


@message
class SnapshotRequest:
    """Of one client.  Asked again, it is the same request, whichever Dispatcher and whichever
    JobMaster it comes to."""

    trigger_id: TriggerID
    kind: SnapshotType
    target_directory: str | None = None
    """Below which the savepoint gets a directory; None: where the configuration says."""


@message
class SnapshotTaken:
    """It is complete; if the job was to be stopped, it is FINISHED."""

    path: str
    """Its directory."""
    without_uid: tuple[str, ...] = ()
    """Names of operators with state whose author has set no uid."""
