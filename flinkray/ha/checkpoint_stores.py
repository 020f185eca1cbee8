"""Defines the stores that outlive a JobMaster: completed checkpoints and the next checkpoint id.

Only pointers are stored here; the data of a checkpoint is in the checkpoint storage. A store object
belongs to one leader. From its ``recover`` or ``start`` on, earlier leaders get
CheckpointStoreFencedError and their later changes do not count. A change counts if its method has
returned, and may count if the method raised.

Epochs decide who owns the stores (:mod:`flinkray.ha.epoch_directory`): changes of an earlier leader
do not count, and that leader gets an error before it can report the change to anybody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from flinkray.core.errors import JobError, StoredFormatError, UnreadableRecordError
from flinkray.core.ids import JobID
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.ha.directory import Directory, LostEntryError, TakenOverError
from flinkray.ha.durable_stores import Sequential
from flinkray.ha.entries import decoded, encode_entry
from flinkray.ha.epoch_directory import EpochDirectory
from flinkray.ha.stores import JobEntry, Recovered, StoreError


class CheckpointStoreFencedError(JobError):
    """Another leader has taken over the job's checkpoints, so the change must not be relied on.

    The change may have been written before the takeover. If so, the new leader knows it; if not, no
    later leader will ever see it.
    """


@stored("ha.CompletedCheckpointPointer")
@message
class CompletedCheckpointPointer:
    """Says where the metadata of a completed checkpoint is stored."""

    job_id: JobID
    checkpoint_id: int
    path: str
    """The location of the checkpoint's metadata."""


@stored("ha.CheckpointCount")
@message
class CheckpointCount:
    """Record with the id that the job's next checkpoint gets."""

    job_id: JobID
    next_id: int


@stored("ha.CheckpointOwner")
@message
class CheckpointOwner:
    """Record with the name of the leader that owns a job's checkpoint stores."""

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
    """The pointers that a store has recovered, by rising checkpoint id, and those that it cannot
    read."""

    is_last_unreadable: bool = False
    """Whether the pointer with the highest id cannot be read."""


class CompletedCheckpointStore(ABC):
    """Stores the pointers to the retained completed checkpoints of a job.

    All methods raise StoreError when the storage fails.
    """

    @abstractmethod
    async def recover(self) -> RecoveredPointers:
        """Take over from earlier leaders, and return the stored pointers by rising checkpoint id.
        The job is restored from the last one. Unreadable pointers stay stored."""

    @abstractmethod
    async def add(self, pointer: CompletedCheckpointPointer) -> None:
        """Store the pointer of a completed checkpoint; durable on return.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """

    @abstractmethod
    async def remove(self, checkpoint_id: int) -> None:
        """Remove the pointer of a checkpoint that is not retained any more; no error if there is
        none. The caller may delete the checkpoint's data after this call has returned, but not
        before.

        Raises:
            CheckpointStoreFencedError: another leader has taken over, and may have recovered the
                pointer: the checkpoint's data must stay.
        """

    @abstractmethod
    async def check(self) -> None:
        """Check that no other leader has taken over the job's checkpoints. Call this before
        deleting data that no pointer leads to.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Delete all pointers, because the job has ended in a terminal state.

        Raises:
            CheckpointStoreFencedError: another leader has taken over.
        """


T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=JobEntry)

_COUNT = "count"
_POINTER = ".checkpoint"


class _Entries:
    """The stored records of one job's checkpoints. Only the last owner that took over can change
    them.

    All methods block. A method of an earlier owner raises CheckpointStoreFencedError, except
    :meth:`read`, :meth:`look` and :meth:`names`.
    """

    def __init__(
        self,
        directory: Directory,
        kind: str,
        adopts: Callable[[str], bool],
        job_id: JobID,
        owner: str,
    ) -> None:
        self._directory = EpochDirectory(directory, kind, adopts)
        self.job_id = job_id
        self._owner = owner

    def take_over(self) -> None:
        """Take over the entries from earlier leaders. Raises UnreadableRecordError."""
        owner = encode_entry(CheckpointOwner(self.job_id, self._owner))
        self._do("take over", "", lambda: self._directory.take_over(owner))

    def look(self) -> None:
        """Load the stored entries without taking over; :meth:`read` returns these entries from now
        on. Raises UnreadableRecordError."""
        self._do("read", "", self._directory.look)

    def check_owner(self) -> None:
        self._do("list", "", self._directory.check)

    def read(self, name: str, record_type: type[RecordT]) -> RecordT | None:
        """Return the record in an entry; None if there is no such entry. Raises
        UnreadableRecordError."""

        def read() -> bytes | LostEntryError | None:
            try:
                return self._directory.read(name)
            except LostEntryError as error:
                return error

        data = self._do("read", name, read)
        if data is None:
            return None
        return decoded(data, record_type, self.job_id, self.location(name))

    def write(self, name: str, record: object) -> None:
        data = encode_entry(record)
        self._do("write", name, lambda: self._directory.write(name, data))

    def delete(self, name: str) -> None:
        self._do("delete", name, lambda: self._directory.delete(name))

    def discard(self) -> None:
        self._do("delete", "", self._directory.discard)

    def names(self) -> list[str]:
        return self._directory.names()

    def location(self, name: str) -> str:
        return self._directory.location(name)

    def _do(self, what: str, name: str, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except TakenOverError as error:
            raise CheckpointStoreFencedError(
                self.job_id, "another leader has taken over its checkpoints, or nobody has yet"
            ) from error
        except (LostEntryError, StoredFormatError) as error:
            raise UnreadableRecordError(self.job_id, self.location(name), str(error)) from error
        except OSError as error:
            raise StoreError(f"cannot {what} {self.location(name)}: {error}") from error


class DurableCheckpointIDCounter(CheckpointIDCounter):
    """Stores the next id in an entry; the increased id is written before an id is issued."""

    def __init__(self, directory: Directory, job_id: JobID, owner: str, executor: Executor) -> None:
        def adopts(name: str) -> bool:
            return name == _COUNT

        self._entries = _Entries(directory, _COUNT, adopts, job_id, owner)
        self._sequential = Sequential(executor)

    async def start(self) -> None:
        def start() -> None:
            self._entries.take_over()
            self._next()

        await self._sequential.run(start)

    async def get(self) -> int:
        def get() -> int:
            self._entries.look()
            return self._next()

        return await self._sequential.run(get)

    async def get_and_increment(self) -> int:
        def increment() -> int:
            given = self._next()
            self._write(given + 1)
            return given

        return await self._sequential.run(increment)

    async def set_count(self, next_id: int) -> None:
        def advance() -> None:
            if next_id > self._next():
                self._write(next_id)
            else:
                self._entries.check_owner()

        await self._sequential.run(advance)

    async def discard(self) -> None:
        await self._sequential.run(self._entries.discard)

    def _next(self) -> int:
        count = self._entries.read(_COUNT, CheckpointCount)
        return 1 if count is None else count.next_id

    def _write(self, next_id: int) -> None:
        self._entries.write(_COUNT, CheckpointCount(self._entries.job_id, next_id))


class DurableCompletedCheckpointStore(CompletedCheckpointStore):
    """Stores each pointer to a completed checkpoint in an entry of its own."""

    def __init__(self, directory: Directory, job_id: JobID, owner: str, executor: Executor) -> None:
        def adopts(name: str) -> bool:
            return name.endswith(_POINTER)

        self._entries = _Entries(directory, "checkpoint", adopts, job_id, owner)
        self._sequential = Sequential(executor)

    async def recover(self) -> RecoveredPointers:
        def recover() -> RecoveredPointers:
            try:
                self._entries.take_over()
            except UnreadableRecordError as error:
                return RecoveredPointers((), (error,), is_last_unreadable=True)
            pointers, unreadable, is_last_unreadable = [], [], False
            for checkpoint_id in self._ids():
                try:
                    pointer = self._read(checkpoint_id)
                except UnreadableRecordError as error:
                    unreadable.append(error)
                    is_last_unreadable = True
                else:
                    if pointer is not None:
                        pointers.append(pointer)
                        is_last_unreadable = False
            return RecoveredPointers(tuple(pointers), tuple(unreadable), is_last_unreadable)

        return await self._sequential.run(recover)

    async def add(self, pointer: CompletedCheckpointPointer) -> None:
        def add() -> None:
            self._entries.write(_name(pointer.checkpoint_id), pointer)

        await self._sequential.run(add)

    async def remove(self, checkpoint_id: int) -> None:
        await self._sequential.run(lambda: self._entries.delete(_name(checkpoint_id)))

    async def check(self) -> None:
        await self._sequential.run(self._entries.check_owner)

    async def discard(self) -> None:
        await self._sequential.run(self._entries.discard)

    def _read(self, checkpoint_id: int) -> CompletedCheckpointPointer | None:
        name = _name(checkpoint_id)
        pointer = self._entries.read(name, CompletedCheckpointPointer)
        if pointer is not None and pointer.checkpoint_id != checkpoint_id:
            raise UnreadableRecordError(
                self._entries.job_id,
                self._entries.location(name),
                f"it is about checkpoint {pointer.checkpoint_id}",
            )
        return pointer

    def _ids(self) -> list[int]:
        """Return the checkpoint ids in rising order; entries with other names are ignored."""
        found = [name.removesuffix(_POINTER) for name in self._entries.names()]
        return sorted(int(number) for number in found if number.isdecimal())


def _name(checkpoint_id: int) -> str:
    return f"{checkpoint_id}{_POINTER}"
