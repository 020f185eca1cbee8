"""Defines the stores that outlive a JobMaster: completed checkpoints and the next checkpoint id.

Only pointers are stored here; the data of a checkpoint is in the checkpoint storage. A store object
belongs to one leader. From its ``recover`` or ``start`` on, earlier leaders get
CheckpointStoreFencedError and their later changes do not count. A change counts if its method has
returned, and may count if the method raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from flinkray.core.errors import JobError
from flinkray.core.ids import JobID
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.ha.stores import Recovered


class CheckpointStoreFencedError(JobError):
    """Another leader has taken over the job's checkpoints.

    Either the new leader has found the change that raised this error, or no leader will find it.
    """


@stored("ha.CompletedCheckpointPointer")
@message
class CompletedCheckpointPointer:
    """A pointer to a completed checkpoint."""

    job_id: JobID
    checkpoint_id: int
    path: str
    """The location of the checkpoint's metadata."""


@stored("ha.CheckpointCount")
@message
class CheckpointCount:
    """The stored id of the next checkpoint of a job."""

    job_id: JobID
    next_id: int


@stored("ha.CheckpointOwner")
@message
class CheckpointOwner:
    """The stored name of the owner of a job's checkpoint stores."""

    job_id: JobID
    owner: str


class CheckpointIDCounter(ABC):
    """Issues the ids of a job's checkpoints: each id once, in rising order, even across leaders.

    All methods raise StoreError when the storage fails.
    """

    @abstractmethod
    async def start(self) -> None:
        """Take the counter over from earlier leaders. Raises UnreadableRecordError."""

    @abstractmethod
    async def get(self) -> int:
        """Return the next id without issuing it; 1 at first. Raises UnreadableRecordError."""

    @abstractmethod
    async def get_and_increment(self) -> int:
        """Issue a new id. On return, it is durable that the id was issued.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
            UnreadableRecordError: the count cannot be read.
        """

    @abstractmethod
    async def set_count(self, next_id: int) -> None:
        """Make the next id at least *next_id*, so that it is above the id of a restored checkpoint.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
            UnreadableRecordError: the count cannot be read.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Delete the counter, because the job has ended in a terminal state.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """


@dataclass(frozen=True)
class RecoveredPointers(Recovered[CompletedCheckpointPointer]):
    """Holds the pointers that a store has recovered, ordered by rising checkpoint id."""

    is_last_unreadable: bool = False
    """Whether the pointer with the highest id cannot be read."""


class CompletedCheckpointStore(ABC):
    """Stores the pointers to the retained completed checkpoints of a job.

    All methods raise StoreError when the storage fails.
    """

    @abstractmethod
    async def recover(self) -> RecoveredPointers:
        """Take over from earlier leaders and return the stored pointers by rising id.

        The last checkpoint is the one to restore. Unreadable pointers are not removed.
        """

    @abstractmethod
    async def add(self, pointer: CompletedCheckpointPointer) -> None:
        """Store the pointer of a completed checkpoint; durable on return.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """

    @abstractmethod
    async def remove(self, checkpoint_id: int) -> None:
        """Remove the pointer of a checkpoint that is not retained any more.

        The checkpoint's data may be deleted on return, but not before. No error if there is no
        pointer.

        Raises:
            CheckpointStoreFencedError: another leader has taken over, and may have recovered the
                pointer: the checkpoint's data must stay.
        """

    @abstractmethod
    async def check(self) -> None:
        """Check that no other leader has taken over the job's checkpoints.

        Call this before deleting data that no pointer leads to.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Delete all pointers, because the job has ended in a terminal state.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """
