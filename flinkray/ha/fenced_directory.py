"""Implements entries of any size with one owner after another.

Each content is in a file of its own, ``<entry>-<epoch>-<owner>-<number>``, which is written once.
An :class:`~flinkray.ha.epoch_directory.EpochDirectory` beside the files says which of them count.
So a write of an earlier owner, or a write that the storage carries out very late, replaces nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

from flinkray.core.errors import StoredFormatError
from flinkray.ha.directory import Directory, Entries, LostEntryError, TakenOverError
from flinkray.ha.epoch_directory import EpochDirectory

_CONTENT = re.compile(r".+-(\d{10}-[0-9a-f]{8})-\d{10}")


class FencedDirectory(Entries):
    """Reads and changes the entries for one owner. Blocking; one call at a time.

    Before the owner has taken over, it sees the current entries. The first change takes over.

    Args:
        directory, kind: arguments of :class:`EpochDirectory`.
        adopts: returns whether the file of that name in *directory* is one of the entries (of an
            earlier version of flinkray); called only while no owner has taken over.
    """

    def __init__(self, directory: Directory, kind: str, adopts: Callable[[str], bool]) -> None:
        self._directory = directory
        self._pointers = EpochDirectory(directory, kind, adopts)
        self._number = 0
        """The number of the last content that this owner has written, or tried to write."""
        self._superseded: dict[str, None] = {}
        """Names of files with contents of this and earlier owners that may have to be deleted.

        No entry leads to them, or none will if the change that is being written counts.
        """

    def take_over(self, owner: bytes) -> None:
        self._read(lambda: self._pointers.take_over(owner))
        with suppress(OSError):  # the next owner tries again
            epoch = self._pointers.epoch
            for name in self._directory.names():
                content = _CONTENT.fullmatch(name)
                if content is not None and epoch is not None and content[1] < epoch:
                    self._superseded[name] = None
            self._delete_superseded()

    def location(self, name: str = "") -> str:
        pointer = self._pointer(name)
        return self._directory.location(name if pointer is None else pointer)

    def read(self, name: str) -> bytes | None:
        self._look()
        while True:
            pointer = self._pointer(name)
            data = None if pointer is None else self._directory.read(pointer)
            if data is not None or pointer is None:
                return data
            if self._pointers.epoch is not None:
                self._pointers.check()
            self._look()
            if self._pointer(name) == pointer:
                raise self._lost(self._directory.location(pointer))

    def write(self, name: str, data: bytes) -> None:
        self._own()
        before, content = self._pointer(name), self._new_content(name)
        self._superseded[content] = None  # unless the change counts
        self._directory.write(content, data)
        try:
            self._pointers.write(name, content.encode())
        except TakenOverError:
            self._leave_to_successor(content)
            raise
        del self._superseded[content]
        if before is not None and before != name:  # EpochDirectory deletes that file
            self._superseded[before] = None
        self._delete_superseded()

    def delete(self, name: str) -> None:
        self._own()
        before = self._pointer(name)
        self._pointers.delete(name)
        if before is not None and before != name:
            self._superseded[before] = None
        self._delete_superseded()

    def names(self) -> list[str]:
        self._look()
        return self._pointers.names()

    def _pointer(self, name: str) -> str | None:
        """Return the name of the file that holds an entry; None: there is no such entry."""
        entries = self._pointers.entries
        if name not in entries:
            return None
        data = entries[name]
        return name if data is None else data.decode()

    def _new_content(self, name: str) -> str:
        self._number += 1
        return f"{name}-{self._pointers.epoch}-{self._number:010}"

    def _own(self) -> None:
        if self._pointers.epoch is None:
            self.take_over(b"whoever changes something")

    def _look(self) -> None:
        self._read(self._pointers.look)

    def _read(self, operation: Callable[[], None]) -> None:
        try:
            operation()
        except StoredFormatError as error:
            raise OSError(
                f"{self._pointers.location()}, which says what else in "
                f"{self._directory.location()} counts, cannot be read: {error}"
            ) from error

    def _delete_superseded(self) -> None:
        """Delete files to which no entry points; called after a change that counts."""
        used = {data.decode() for data in self._pointers.entries.values() if data is not None}
        for content in tuple(self._superseded):
            if content not in used:
                with suppress(OSError):  # the next change tries again
                    self._directory.delete(content)
                    del self._superseded[content]

    def _leave_to_successor(self, content: str) -> None:
        """Delete a file of this owner, after another owner has taken over.

        The file stays if an entry of the later owner points to it.
        """
        with suppress(OSError, StoredFormatError):
            entries = self._pointers.entries_of_successor()
            if entries is not None and content.encode() not in entries.values():
                self._directory.delete(content)

    def _lost(self, where: str) -> OSError:
        if self._directory.is_there():
            return LostEntryError(f"{where} is gone, and an entry leads to it")
        return OSError(f"{where} is gone, with its whole directory: is its storage mounted?")
