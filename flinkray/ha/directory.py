"""Directories of small entries: the ground the stores stand on.

Blocking; the stores call them in an executor.  A write is atomic (a reader sees the old entry or
the new one, whole) and durable on return, as far as the file system can promise it.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from flinkray.core import disk

UNFINISHED = ".unfinished"
"""Suffix of entries that are being written; left behind by a crash, they mean nothing."""


class LostEntryError(OSError):
    """There is such an entry, and its content is gone for good; others can be read."""


class Directory(ABC):
    """Entries by name (letters, digits, '.', '-'); all methods raise OSError when storage fails."""

    @abstractmethod
    def location(self, name: str = "") -> str:
        """Where an entry, or the directory itself, lies: for people."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """None: there is no such entry.  Raises LostEntryError."""

    def read_many(
        self, names: Sequence[str]
    ) -> Iterator[tuple[str, bytes | LostEntryError | None]]:
        """In that order; they are not asked for one after the other where that takes long."""
        for name in names:
            yield name, self._read_or_lost(name)

    def _read_or_lost(self, name: str) -> bytes | LostEntryError | None:
        try:
            return self.read(name)
        except LostEntryError as error:
            return error

    def is_there(self) -> bool:
        """False: nothing was ever written to it, or its storage is not mounted here."""
        return True

    @abstractmethod
    def write(self, name: str, data: bytes) -> None: ...

    @abstractmethod
    def delete(self, name: str) -> None:
        """Deleting what is not there is fine."""

    @abstractmethod
    def names(self) -> list[str]:
        """In the order in which the entries were written last."""

    @abstractmethod
    def subdirectory(self, name: str) -> Directory: ...

    @abstractmethod
    def delete_all(self) -> None:
        """The directory with all that is in it."""


class MemoryDirectory(Directory):
    """Lives as long as the object; for tests and clusters in one process."""

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
    """What a :class:`FileDirectory` asks of the files that it lies in; paths as ``"a/b/c"``.

    One step is one operation of a POSIX file system, and makes nothing durable that it does not
    name.  All methods raise OSError.
    """

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Fine when it is there; FileNotFoundError when its parent is not."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """None: there is no such file."""

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """Names of the files right in a directory, in the order in which they were written last;
        of one that is not there: none."""

    @abstractmethod
    def is_directory(self, path: str) -> bool: ...

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """The whole content of a file; FileNotFoundError when its directory is not there."""

    @abstractmethod
    def sync(self, path: str) -> None:
        """Make the content of a file durable; its name is with :meth:`sync_directory`."""

    @abstractmethod
    def rename(self, path: str, new_path: str) -> None:
        """What is at *new_path* is replaced at once."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Deleting what is not there is fine."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """Make the names in it durable."""

    @abstractmethod
    def delete_tree(self, path: str) -> None:
        """A directory with all that is in it; fine when there is none."""

    @abstractmethod
    def url(self, path: str) -> str:
        """For people."""


class FileDirectory(Directory):
    """A directory of a file system, made when it is first written to.

    A new content is written beside the old one, made durable, and then takes its name.  Who dies or
    loses its power between two of these steps leaves what was there before.  What is read is made
    durable before it is returned: others decide by it.
    """

    def __init__(self, files: FileSystem, path: str, writer: str) -> None:
        """*writer*: of all who write here at the same time, each has another one."""
        self._files = files
        self._path = path
        self._writer = writer
        self._is_made = False
        """Whether it is known to be durable; another process may have died while it made it."""

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
            except FileNotFoundError:  # it was deleted since
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
        """Also what is found as it should be: who wrote or deleted it may have died, or failed,
        before it was durable."""
        with suppress(FileNotFoundError, NotADirectoryError):  # there is no such directory
            self._files.sync_directory(self._path)

    def subdirectory(self, name: str) -> FileDirectory:
        return FileDirectory(self._files, self._of(name), self._writer)

    def delete_all(self) -> None:
        self._files.delete_tree(self._path)

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}" if self._path else name

    def _make(self, path: str) -> None:
        """Durable, with its parents: a directory is when its name in its parent is.  Those that are
        there are not left out: who made them may have died, or failed, before they were durable."""
        if path in ("", "/"):
            return
        parent = path.rpartition("/")[0]
        self._make(parent)
        self._files.make_directory(path)
        with suppress(PermissionError):  # where nobody of ours can have made it
            self._files.sync_directory(parent or "/")


def files_in(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files right in a directory of this machine, with what is known of them; of one that is
    not there: none.  One that goes while they are listed takes no other with it."""
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
    """That of this machine, or what is mounted on it."""

    def make_directory(self, path: str) -> None:
        Path(path).mkdir(exist_ok=True)

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
        Path(path).write_bytes(data)

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
    """A directory of this machine (or mounted on it).  Created when first written to."""

    def __init__(self, path: Path) -> None:
        super().__init__(LocalFileSystem(), str(path), str(os.getpid()))
