"""Implements entries with one owner after another, on storage without conditional writes.

Each owner has an *epoch*: a number that no owner before it had. The directory holds claims of
epochs and the contents of epochs. A new owner

1. writes a claim of an epoch above all existing epochs,
2. reads the contents of the highest epoch that has contents,
3. writes them as the first contents of its own epoch.

Each change writes the whole new contents, in a new file that is written once. *After* the write the
owner lists the claims. If its own claim is still the highest, the change counts: a later owner has
not read yet, and will read the change. Otherwise the change is not reported as done: the later
owner may have read the contents before the change, and from then on only the later owner's contents
are read.

So no check before a write has to hold after the write, and an owner may be paused between any two
steps. The storage must guarantee one thing: a written file exists as a whole for everybody, and
every listing that begins later lists it.

Each content is in a file of its own, ``<entry>-<epoch>-<owner>-<number>``, which is written once.
An :class:`~flinkray.ha.epoch_directory.EpochDirectory` beside the files says which of them count.
So a write of an earlier owner, or a write that the storage carries out very late, replaces nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from flinkray.core.errors import StoredFormatError
from flinkray.core.ids import random_bytes
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.ha.directory import Directory, Entries, LostEntryError, TakenOverError
from flinkray.ha.entries import decode_entry, encode_entry


@stored("ha.EpochEntry")
@message
class EpochEntry:
    """One entry among the :class:`EpochContents` of an epoch: its name and its content."""

    name: str
    data: bytes | None
    """The content. None: the content is in a file of that name, as written by flinkray before
    epochs."""


@stored("ha.EpochContents")
@message
class EpochContents:
    """Holds all entries of an epoch, as one file stores them."""

    entries: tuple[EpochEntry, ...]


@dataclass(frozen=True, order=True, slots=True)
class _File:
    """Names a file of an :class:`EpochDirectory`, which contains a claim (generation 0) or
    contents. Files are ordered by owners, then by the owner's writes."""

    epoch: int
    owner: str
    """A random string. If two owners have chosen the same number, the higher string wins."""
    generation: int

    @property
    def is_claim(self) -> bool:
        return self.generation == 0

    @property
    def claim(self) -> _File:
        """The file with the claim of the epoch to which this file belongs."""
        return _File(self.epoch, self.owner, 0)


class EpochDirectory:
    """The entries of a directory, seen by one owner. Blocking; one call at a time.

    Args:
        directory: holds the files with claims and contents; may also hold other files.
        kind: the end of the names of its files: ``<epoch>-<owner>.<kind>-claim`` and
            ``<epoch>-<owner>-<generation>.<kind>``.
        adopts: returns whether the file of that name in *directory* is an entry that an earlier
            version of flinkray wrote; called only while no epoch has contents.

    All methods raise OSError (storage fails) and StoredFormatError (contents cannot be read).
    """

    def __init__(self, directory: Directory, kind: str, adopts: Callable[[str], bool]) -> None:
        self._directory = directory
        self._kind = kind
        self._adopts = adopts
        of_epoch = r"(\d{10})-([0-9a-f]{8})"
        self._pattern = re.compile(rf"{of_epoch}(?:\.{kind}-claim|-(\d{{10}})\.{kind})")
        self._written: _File | None = None
        """The last file that this owner wrote, or tried to write. None: it owns nothing."""
        self._claim: _File | None = None
        """The claim of a :meth:`take_over` that failed to read; the next call uses it. Or None."""
        self._counts: _File | None = None
        self._entries: dict[str, bytes | None] = {}

    def location(self, name: str = "") -> str:
        """Return the location of an entry as a text for users; with an empty *name*, of all
        entries."""
        counts = None if self._counts is None else self._name(self._counts)
        if counts is None or (name and self._entries.get(name) is None):
            return self._directory.location(name)
        return self._directory.location(counts) + (name and f", {name}")

    # --- owners -----------------------------------------------------------------------------------

    def take_over(self, owner: bytes) -> None:
        """Make the caller the owner of the entries; later changes of earlier owners do not count.

        *owner*, the content of the claim, names the new owner for users. Raises TakenOverError.
        """
        self._written = None
        files = self._files()
        if self._claim is None or self._last_claim(files) != self._claim:
            self._claim, files = self._new_claim(files, owner)
        claim = self._claim
        counts, entries = self._read(files)
        self._claim = None
        self._written, self._counts, self._entries = claim, counts, entries
        self._put(entries)

    def _new_claim(self, files: list[_File], owner: bytes) -> tuple[_File, list[_File]]:
        """Write a claim with an epoch above all others; return (the claim, all files in the
        directory). Raises TakenOverError if another owner writes a higher claim at the same
        time."""
        number = 0
        while True:
            number = 1 + max([number, *(file.epoch for file in files)])
            claim = _File(number, random_bytes(4).hex(), 0)
            self._directory.write(self._name(claim), owner)
            files = self._files()
            last = self._last_claim(files)
            if last == claim:
                return claim, files
            if last is None or last.epoch > number:
                raise self._taken_over()

    def check(self) -> None:
        """Check that this owner is still the last one. Raises TakenOverError if it is not."""
        self._own_files()

    def entries_of_successor(self) -> Mapping[str, bytes | None] | None:
        """Return the entries of the owner that has taken over from this one. None if there is no
        later owner, or if the later owner has written no contents yet: it may still read this
        owner's changes."""
        files = self._files()
        counts, entries = self._read(files)
        last = self._last_claim(files)
        is_succeeded = self._written is not None and last != self._written.claim
        return entries if is_succeeded and counts is not None and counts.claim == last else None

    # --- entries ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Load the current entries without taking over. Does nothing if this owner has taken over,
        because then the entries are known."""
        if self._written is None:
            self._counts, self._entries = self._read(self._files())

    @property
    def epoch(self) -> str | None:
        """The prefix of the names of this owner's files, which no other owner uses. Later owners
        have higher epochs. None: nothing was taken over."""
        return None if self._written is None else self._epoch(self._written)

    @property
    def entries(self) -> Mapping[str, bytes | None]:
        """The content of each entry by name, in the order of the last writes.

        The entries were loaded by :meth:`take_over` or :meth:`look`, and contain this owner's
        changes since. None: the content is in a file of the entry's name, which an earlier version
        of flinkray wrote.
        """
        return self._entries

    def names(self) -> list[str]:
        return list(self._entries)

    def read(self, name: str) -> bytes | None:
        """Return the content of an entry; None: there is no such entry. Also raises
        LostEntryError."""
        data = self._entries.get(name)
        return self._directory.read(name) if data is None and name in self._entries else data

    def write(self, name: str, data: bytes) -> None:
        """Write an entry, or replace it. Raises TakenOverError if the change does not count."""
        others = {known: of_it for known, of_it in self._entries.items() if known != name}
        self._put({**others, name: data})

    def delete(self, name: str) -> None:
        """Delete an entry, if there is one. Raises TakenOverError if the change does not count."""
        if name in self._entries or self._written != self._counts:  # a failed write may be there
            self._put({n: data for n, data in self._entries.items() if n != name})
        else:
            self.check()

    def discard(self) -> None:
        """Delete all entries and claims, because nobody needs them any more. Raises
        TakenOverError."""
        files = self._own_files()
        for name, data in self._entries.items():
            if data is None:
                self._directory.delete(name)
        for file in sorted(files, key=lambda file: (file.is_claim, file)):
            self._directory.delete(self._name(file))  # the own claim is the last one
        self._written = self._counts = None
        self._entries = {}

    # --- files ------------------------------------------------------------------------------------

    @staticmethod
    def _epoch(file: _File) -> str:
        return f"{file.epoch:010}-{file.owner}"

    def _name(self, file: _File) -> str:
        epoch = self._epoch(file)
        if file.is_claim:
            return f"{epoch}.{self._kind}-claim"
        return f"{epoch}-{file.generation:010}.{self._kind}"

    def _files(self) -> list[_File]:
        found = map(self._pattern.fullmatch, self._directory.names())
        return [_File(int(it[1]), it[2], int(it[3] or 0)) for it in found if it is not None]

    @staticmethod
    def _last_claim(files: list[_File]) -> _File | None:
        return max((file for file in files if file.is_claim), default=None)

    def _own_files(self) -> list[_File]:
        """Return all files of the directory. Raises TakenOverError if this owner is not the last
        one."""
        if self._written is None:
            raise self._taken_over()
        files = self._files()
        if self._last_claim(files) != self._written.claim:
            raise self._taken_over()
        return files

    def _read(self, files: list[_File]) -> tuple[_File | None, dict[str, bytes | None]]:
        """Return the file of the contents that count, and the entries in it. Contents without a
        claim are ignored: they were written too late. Raises StoredFormatError."""
        while True:
            claims = {file for file in files if file.is_claim}
            written = (file for file in files if not file.is_claim and file.claim in claims)
            counts = max(written, default=None)
            if counts is None:
                adopted = filter(self._adopts, self._directory.names())
                return None, dict.fromkeys(adopted)
            self._counts = counts
            data = self._directory.read(self._name(counts))
            if data is not None:
                contents = decode_entry(data, EpochContents)
                return counts, {entry.name: entry.data for entry in contents.entries}
            files = self._files()  # the contents were replaced meanwhile

    def _put(self, entries: Mapping[str, bytes | None]) -> None:
        if self._written is None:
            raise self._taken_over()
        written = self._written
        written = _File(written.epoch, written.owner, written.generation + 1)
        self._written = written
        contents = EpochContents(tuple(EpochEntry(*entry) for entry in entries.items()))
        self._directory.write(self._name(written), encode_entry(contents))
        try:
            files = self._own_files()
        except TakenOverError:
            with suppress(OSError):
                if written.claim not in self._files():  # then nobody will read the contents
                    self._directory.delete(self._name(written))
            raise
        before, self._entries, self._counts = self._entries, dict(entries), written
        for file in files:
            if file < written and file != written.claim:
                with suppress(OSError):  # the next change tries again
                    self._directory.delete(self._name(file))
        for name, data in before.items():
            if data is None and (name not in entries or entries[name] is not None):
                with suppress(OSError):  # nobody reads the file any more
                    self._directory.delete(name)

    def _taken_over(self) -> TakenOverError:
        where = self._directory.location()
        return TakenOverError(f"{where} has a later owner, or was not taken over yet")


_CONTENT = re.compile(r".+-(\d{10}-[0-9a-f]{8})-\d{10}")


class FencedDirectory(Entries):
    """The entries of a directory, whose contents are in one file each, seen by one owner. Blocking.

    The first change takes over; before it, the owner sees the entries of the present owner. One
    call at a time.

    Args:
        directory, kind: arguments of :class:`EpochDirectory`, which stores the names of the files.
        adopts: returns whether the file of that name in *directory* is an entry that an earlier
            version of flinkray wrote; called only while no owner has taken over.
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
        """Delete the files of earlier contents, after a change that counts: no entry points to them
        any more."""
        used = {data.decode() for data in self._pointers.entries.values() if data is not None}
        for content in tuple(self._superseded):
            if content not in used:
                with suppress(OSError):  # the next change tries again
                    self._directory.delete(content)
                    del self._superseded[content]

    def _leave_to_successor(self, content: str) -> None:
        """Delete a file of this owner after another owner has taken over, unless an entry of that
        owner uses the file."""
        with suppress(OSError, StoredFormatError):
            entries = self._pointers.entries_of_successor()
            if entries is not None and content.encode() not in entries.values():
                self._directory.delete(content)

    def _lost(self, where: str) -> OSError:
        if self._directory.is_there():
            return LostEntryError(f"{where} is gone, and an entry leads to it")
        return OSError(f"{where} is gone, with its whole directory: is its storage mounted?")
