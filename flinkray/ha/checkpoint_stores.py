"""What must outlive a JobMaster: which checkpoints of a job are complete, and the next one's id.

Only pointers are kept here; what a checkpoint is made of lies in the storage of checkpoints.

A store object is one leader's.  It is for that leader alone from when it has called ``recover`` or
``start``: objects of earlier leaders are refused from then on, so that a JobMaster which has been
replaced removes nothing that its successor may restore from.
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
    """Another leader has taken over the job's checkpoints; nothing was changed."""


@stored("ha.CompletedCheckpointPointer")
@message
class CompletedCheckpointPointer:
    """Where a completed checkpoint lies."""

    job_id: JobID
    checkpoint_id: int
    path: str
    """Of its metadata."""


@stored("ha.CheckpointCount")
@message
class CheckpointCount:
    """The id that the next checkpoint of a job gets."""

    job_id: JobID
    next_id: int


@stored("ha.CheckpointOwner")
@message
class CheckpointOwner:
    """Whose the stores of a job's checkpoints are."""

    job_id: JobID
    owner: str


class CheckpointIDCounter(ABC):
    """Ids of a job's checkpoints: each is given once, and they rise, whoever leads.

    All methods raise StoreError when the storage fails.
    """

    @abstractmethod
    async def start(self) -> None:
        """Take over from earlier leaders.  Raises UnreadableRecordError."""

    @abstractmethod
    async def get(self) -> int:
        """The id that is given next: 1 at first.  Raises UnreadableRecordError."""

    @abstractmethod
    async def get_and_increment(self) -> int:
        """An id; that it was given is durable on return.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
            UnreadableRecordError: the count cannot be read.
        """

    @abstractmethod
    async def set_count(self, next_id: int) -> None:
        """Let the next id be at least *next_id*: that after a checkpoint that is restored.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
            UnreadableRecordError: the count cannot be read.
        """

    @abstractmethod
    async def discard(self) -> None:
        """The job has ended for good: forget the count.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """


@dataclass(frozen=True)
class RecoveredPointers(Recovered[CompletedCheckpointPointer]):
    """By rising id."""

    is_last_unreadable: bool = False
    """Whether that of the highest id cannot be read."""


class CompletedCheckpointStore(ABC):
    """Pointers to the completed checkpoints of a job that are retained.

    All methods raise StoreError when the storage fails.
    """

    @abstractmethod
    async def recover(self) -> RecoveredPointers:
        """Take over from earlier leaders, and what there is, by rising id: the last one is to be
        restored.  Nothing is removed, and pointers that cannot be read stay stored."""

    @abstractmethod
    async def add(self, pointer: CompletedCheckpointPointer) -> None:
        """A checkpoint is complete; durable on return.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """

    @abstractmethod
    async def remove(self, checkpoint_id: int) -> None:
        """A checkpoint is not retained any more.  Its data may be deleted on return, and not
        before.  Removing what is not there is fine.

        Raises:
            CheckpointStoreFencedError: another leader has taken over, and may have recovered it:
                its data stay.
        """

    @abstractmethod
    async def check(self) -> None:
        """Whose data these are: to be called before something is deleted that no pointer leads to.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """

    @abstractmethod
    async def discard(self) -> None:
        """The job has ended for good: forget all pointers.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """
