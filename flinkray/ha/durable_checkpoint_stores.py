"""The stores of a job's checkpoints on a :class:`~flinkray.ha.directory.Directory` of its own.

Who has taken over last is an entry, too, and is looked at before each change.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from flinkray.core.errors import UnreadableRecordError
from flinkray.core.ids import JobID
from flinkray.ha.checkpoint_stores import (
    CheckpointCount,
    CheckpointIDCounter,
    CheckpointOwner,
    CheckpointStoreFencedError,
    CompletedCheckpointPointer,
    CompletedCheckpointStore,
    RecoveredPointers,
)
from flinkray.ha.directory import Directory, LostEntryError
from flinkray.ha.entries import decoded, encode_entry
from flinkray.ha.sequential import Sequential
from flinkray.ha.stores import JobEntry, StoreError

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=JobEntry)

_COUNT = "count"
_POINTER = ".checkpoint"


class _Entries:
    """Entries about one job's checkpoints, and who may change them.  Blocking."""

    def __init__(self, directory: Directory, job_id: JobID, owner_entry: str, owner: str) -> None:
        self.directory = directory
        self.job_id = job_id
        self._owner_entry = owner_entry
        self._owner = owner

    def take_over(self) -> None:
        self.write(self._owner_entry, CheckpointOwner(self.job_id, self._owner))

    def give_up(self) -> None:
        """There is nothing any more that somebody could own."""
        self.delete(self._owner_entry)

    def check_owner(self) -> None:
        """Raises CheckpointStoreFencedError."""
        try:
            found = self.read(self._owner_entry, CheckpointOwner)
        except UnreadableRecordError:
            found = None
        if found is None or found.owner != self._owner:
            raise CheckpointStoreFencedError(
                self.job_id, "another leader has taken over its checkpoints, or nobody has yet"
            )

    def read(self, name: str, record_type: type[RecordT]) -> RecordT | None:
        """Raises UnreadableRecordError."""

        def read() -> bytes | LostEntryError | None:
            try:
                return self.directory.read(name)
            except LostEntryError as error:
                return error

        data = self._do("read", name, read)
        if data is None:
            return None
        return decoded(data, record_type, self.job_id, self.directory.location(name))

    def write(self, name: str, record: object) -> None:
        data = encode_entry(record)
        self._do("write", name, lambda: self.directory.write(name, data))

    def delete(self, name: str) -> None:
        self._do("delete", name, lambda: self.directory.delete(name))

    def names(self) -> list[str]:
        return self._do("list", "", self.directory.names)

    def _do(self, what: str, name: str, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except OSError as error:
            location = self.directory.location(name)
            raise StoreError(f"cannot {what} {location}: {error}") from error


class DurableCheckpointIDCounter(CheckpointIDCounter):
    """The next id, in an entry that is written before an id is given."""

    def __init__(self, directory: Directory, job_id: JobID, owner: str, executor: Executor) -> None:
        self._entries = _Entries(directory, job_id, "count-owner", owner)
        self._sequential = Sequential(executor)

    async def start(self) -> None:
        def start() -> None:
            self._next()
            self._entries.take_over()

        await self._sequential.run(start)

    async def get(self) -> int:
        return await self._sequential.run(self._next)

    async def get_and_increment(self) -> int:
        def increment() -> int:
            self._entries.check_owner()
            given = self._next()
            self._write(given + 1)
            return given

        return await self._sequential.run(increment)

    async def set_count(self, next_id: int) -> None:
        def advance() -> None:
            self._entries.check_owner()
            if next_id > self._next():
                self._write(next_id)

        await self._sequential.run(advance)

    async def discard(self) -> None:
        def discard() -> None:
            self._entries.check_owner()
            self._entries.delete(_COUNT)
            self._entries.give_up()

        await self._sequential.run(discard)

    def _next(self) -> int:
        count = self._entries.read(_COUNT, CheckpointCount)
        return 1 if count is None else count.next_id

    def _write(self, next_id: int) -> None:
        self._entries.write(_COUNT, CheckpointCount(self._entries.job_id, next_id))


class DurableCompletedCheckpointStore(CompletedCheckpointStore):
    """Pointers, one entry each."""

    def __init__(self, directory: Directory, job_id: JobID, owner: str, executor: Executor) -> None:
        self._entries = _Entries(directory, job_id, "owner", owner)
        self._sequential = Sequential(executor)

    async def recover(self) -> RecoveredPointers:
        def recover() -> RecoveredPointers:
            self._entries.take_over()
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
            self._entries.check_owner()
            self._entries.write(_name(pointer.checkpoint_id), pointer)

        await self._sequential.run(add)

    async def remove(self, checkpoint_id: int) -> None:
        def remove() -> None:
            self._entries.check_owner()
            self._entries.delete(_name(checkpoint_id))

        await self._sequential.run(remove)

    async def check(self) -> None:
        await self._sequential.run(self._entries.check_owner)

    async def discard(self) -> None:
        def discard() -> None:
            self._entries.check_owner()
            for checkpoint_id in self._ids():
                self._entries.delete(_name(checkpoint_id))
            self._entries.give_up()

        await self._sequential.run(discard)

    def _read(self, checkpoint_id: int) -> CompletedCheckpointPointer | None:
        name = _name(checkpoint_id)
        pointer = self._entries.read(name, CompletedCheckpointPointer)
        if pointer is not None and pointer.checkpoint_id != checkpoint_id:
            raise UnreadableRecordError(
                self._entries.job_id,
                self._entries.directory.location(name),
                f"it is about checkpoint {pointer.checkpoint_id}",
            )
        return pointer

    def _ids(self) -> list[int]:
        """Rising; entries of other names are left alone."""
        found = [name.removesuffix(_POINTER) for name in self._entries.names()]
        return sorted(int(number) for number in found if number.isdecimal())


def _name(checkpoint_id: int) -> str:
    return f"{checkpoint_id}{_POINTER}"
