"""Defines directories of small entries, on which the stores are built, and implements local ones.

All calls block; the stores call them in an executor. A write is atomic (a reader sees the whole old
entry or the whole new entry) and durable on return, as far as the file system can guarantee.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from flinkray.core import disk
from flinkray.core.private_files import create_folder, opener

UNFINISHED = ".unfinished"
"""The suffix of files that are being written; after a crash such files have no meaning."""


class LostEntryError(OSError):
    """The entry exists, but its content is lost for good; other entries can be read."""


class TakenOverError(OSError):
    """A later owner has taken over the entries, or no owner has yet: the change has no effect."""


class Entries(ABC):
    """Reads and changes small entries, each of which has a name (letters, digits, '.', '-').

    All methods raise OSError when the storage fails.
    """

    def take_over(self, owner: bytes) -> None:
        """Make the caller the owner of the entries: changes by earlier owners fail from now on.
        Does nothing where another mechanism decides who may change entries. *owner* is the name of
        the new owner, for users. Raises TakenOverError: another owner took over later."""
        return

    @abstractmethod
    def location(self, name: str = "") -> str:
        """Return the location of an entry as a text for users; with an empty *name*, of all
        entries."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the content of an entry; None: there is no such entry. Raises LostEntryError."""

    def read_many(
        self, names: Sequence[str]
    ) -> Iterator[tuple[str, bytes | LostEntryError | None]]:
        """Yield (name, content) in the order of *names*. The content is None if there is no entry,
        and the LostEntryError if it is lost. Entries are read in parallel where reading is slow."""
        for name in names:
            yield name, self._read_or_lost(name)

    def _read_or_lost(self, name: str) -> bytes | LostEntryError | None:
        try:
            return self.read(name)
        except LostEntryError as error:
            return error

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write an entry, or replace it. Raises TakenOverError if the caller is not the owner."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an entry, if there is one. Raises TakenOverError if the caller is not the
        owner."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the entries, in the order of their last writes."""


class Directory(Entries):
    """A directory with one file for each entry; the file has the name of the entry."""

    def is_there(self) -> bool:
        """Return whether the directory exists. False: never written to, or not mounted on this
        machine."""
        return True

    @abstractmethod
    def subdirectory(self, name: str) -> Directory: ...

    @abstractmethod
    def delete_all(self) -> None:
        """Delete the directory with all its contents."""


class MemoryDirectory(Directory):
    """A directory in memory, for tests and for clusters in one process. Its contents exist as long
    as the object."""

    def __init__(self, path: str = "memory:") -> None:
        self._path = path
        self._entries: dict[str, bytes] = {}
        self._subdirectories: dict[str, MemoryDirectory] = {}

    def location(self, name: str = "") -> str:
        return f"{self._path}/{name}" if name else self._path

    def read(self, name: str) -> bytes | None:
        return self._entries.get(name)

    def write(self, name: str, data: bytes) -> None:
        self._entries.pop(name, None)
        self._entries[name] = data

    def delete(self, name: str) -> None:
        self._entries.pop(name, None)

    def names(self) -> list[str]:
        return list(self._entries)

    def subdirectory(self, name: str) -> MemoryDirectory:
        return self._subdirectories.setdefault(name, MemoryDirectory(self.location(name)))

    def delete_all(self) -> None:
        self._entries.clear()
        for subdirectory in self._subdirectories.values():
            subdirectory.delete_all()


class FileSystem(ABC):
    """Interface to the file operations that a :class:`FileDirectory` needs.

    Paths have the form ``"a/b/c"``. Each method is one POSIX operation and raises OSError. Changes
    are durable only after the methods ``sync`` and ``sync_directory``.
    """

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Create a directory; no error if it exists. FileNotFoundError: the parent does not
        exist."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None: there is no such file."""

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """Return the names of the files directly in a directory, in the order of their last writes;
        empty if the directory does not exist."""

    @abstractmethod
    def is_directory(self, path: str) -> bool: ...

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write the whole content of a file. FileNotFoundError: the directory does not exist."""

    @abstractmethod
    def sync(self, path: str) -> None:
        """Make the content of a file durable; :meth:`sync_directory` does so for its name."""

    @abstractmethod
    def rename(self, path: str, new_path: str) -> None:
        """Move a file; a file at *new_path* is replaced atomically."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file; no error if there is none."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    @abstractmethod
    def delete_tree(self, path: str) -> None:
        """Delete a directory with all its contents; no error if there is none."""

    @abstractmethod
    def url(self, path: str) -> str:
        """Return the location of *path* as a text for users."""


class FileDirectory(Directory):
    """A directory of a file system, created by the first write.

    New content is written beside the old content, made durable, and then renamed to its final name.
    If the process dies or loses power between these steps, the old content stays. Content is made
    durable before :meth:`read` returns it, because the reader may act on it.
    """

    def __init__(self, files: FileSystem, path: str, writer: str) -> None:
        """Represent the directory *path* of *files*.

        *writer* is part of the names of temporary files. No other process that writes to the
        directory at the same time may have this name.
        """
        self._files = files
        self._path = path
        self._writer = writer
        self._is_made = False
        """Whether the directory is known to be durable.

        Another process may have created it and died before it was durable.
        """

    def location(self, name: str = "") -> str:
        return self._files.url(self._of(name) if name else self._path)

    def read(self, name: str) -> bytes | None:
        data = self._files.read(self._of(name))
        self._make_names_durable()
        return data

    def is_there(self) -> bool:
        return self._files.is_directory(self._path)

    def write(self, name: str, data: bytes) -> None:
        files, unfinished = self._files, self._of(f"{name}.{self._writer}{UNFINISHED}")
        if not self._is_made:
            self._make(self._path)
            self._is_made = True
        try:
            try:
                files.write(unfinished, data)
            except FileNotFoundError:  # the directory was deleted meanwhile
                self._make(self._path)
                files.write(unfinished, data)
            files.sync(unfinished)
            files.rename(unfinished, self._of(name))
        except OSError:
            with suppress(OSError):
                files.delete(unfinished)  # a full storage would become fuller with each attempt
            raise
        files.sync_directory(self._path)

    def delete(self, name: str) -> None:
        self._files.delete(self._of(name))
        self._make_names_durable()

    def names(self) -> list[str]:
        names = [name for name in self._files.list(self._path) if not name.endswith(UNFINISHED)]
        self._make_names_durable()
        return names

    def _make_names_durable(self) -> None:
        """Make the names in the directory durable, although this process has changed nothing:
        another process may have written or deleted an entry and died before the change was
        durable."""
        with suppress(FileNotFoundError, NotADirectoryError):  # there is no such directory
            self._files.sync_directory(self._path)

    def subdirectory(self, name: str) -> FileDirectory:
        return FileDirectory(self._files, self._of(name), self._writer)

    def delete_all(self) -> None:
        self._files.delete_tree(self._path)

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}" if self._path else name

    def _make(self, path: str) -> None:
        """Create a directory and its parents, and make their names durable. This includes existing
        directories, whose creator may have died or failed before they were durable."""
        if path in ("", "/"):
            return
        parent = path.rpartition("/")[0]
        self._make(parent)
        self._files.make_directory(path)
        with suppress(PermissionError):  # no process of ours can have created it there
            self._files.sync_directory(parent or "/")


def files_in(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names and stats of the files directly in a directory of this machine; none if it
    does not exist. A file that disappears while listing is left out."""
    try:
        entries = os.scandir(path)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if entry.is_file():
                with suppress(FileNotFoundError):
                    yield entry.name, entry.stat()


class LocalFileSystem(FileSystem):
    """The file system of this machine, including everything that is mounted on it."""

    def make_directory(self, path: str) -> None:
        create_folder(path)

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str]:
        return [name for _, name in sorted((s.st_mtime_ns, name) for name, s in files_in(path))]

    def is_directory(self, path: str) -> bool:
        return Path(path).is_dir()

    def write(self, path: str, data: bytes) -> None:
        with open(path, "wb", opener=opener) as file:
            file.write(data)

    def sync(self, path: str) -> None:
        disk.sync(path)

    def rename(self, path: str, new_path: str) -> None:
        Path(path).replace(new_path)

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            Path(path).unlink()

    def sync_directory(self, path: str) -> None:
        disk.sync_names(path)

    def delete_tree(self, path: str) -> None:
        if Path(path).exists():
            shutil.rmtree(path)

    def url(self, path: str) -> str:
        return path


class LocalDirectory(FileDirectory):
    """A directory of this machine (or mounted on it), created by the first write."""

    def __init__(self, path: Path) -> None:
        super().__init__(LocalFileSystem(), str(path), str(os.getpid()))
