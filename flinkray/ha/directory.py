"""Directories of small entries: the ground the stores stand on.

Blocking; the stores call them in an executor.  A write is atomic (a reader sees the old entry or
the new one, whole) and durable on return, as far as the file system can promise it.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

UNFINISHED = ".unfinished"
"""Suffix of entries that are being written; left behind by a crash, they mean nothing."""


class Directory(ABC):
    """Entries by name (letters, digits, '.', '-'); all methods raise OSError when storage fails."""

    @abstractmethod
    def location(self, name: str = "") -> str:
        """Where an entry, or the directory itself, lies: for people."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """None: there is no such entry."""

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


class LocalDirectory(Directory):
    """A directory of this machine (or mounted on it).  Created when first written to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def location(self, name: str = "") -> str:
        return str(self._path / name)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        unfinished = self._path / f"{name}.{os.getpid()}{UNFINISHED}"
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path / name)
        self._sync()

    def delete(self, name: str) -> None:
        if (self._path / name).exists():
            (self._path / name).unlink(missing_ok=True)
            self._sync()

    def names(self) -> list[str]:
        try:
            entries = [
                (entry.stat().st_mtime_ns, entry.name)
                for entry in os.scandir(self._path)
                if entry.is_file() and not entry.name.endswith(UNFINISHED)
            ]
        except FileNotFoundError:
            return []
        return [name for _, name in sorted(entries)]

    def subdirectory(self, name: str) -> LocalDirectory:
        return LocalDirectory(self._path / name)

    def delete_all(self) -> None:
        if self._path.exists():
            shutil.rmtree(self._path)

    def _sync(self) -> None:
        """Make the renaming or removal itself durable."""
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def absolute_location(location: str) -> str:
    """The same for every process of this machine and user: ``~`` and relative paths are resolved
    here; a URI stays as it is."""
    if urlsplit(location).scheme:
        return location
    return str(Path(location).expanduser().absolute())


_schemes: dict[str, Callable[[str], Directory]] = {}


def register_scheme(scheme: str, opener: Callable[[str], Directory]) -> None:
    """Have :func:`open_directory` open the URIs of *scheme* with *opener*, in this process."""
    _schemes[scheme] = opener


def open_directory(location: str) -> Directory:
    """The directory at a path (``~`` is expanded) or URI.

    Raises:
        ValueError: a URI of a scheme that neither pyarrow nor :func:`register_scheme` knows, or
            without a path.
    """
    scheme = urlsplit(location).scheme
    if scheme in _schemes:
        return _schemes[scheme](location)
    if not scheme:
        return LocalDirectory(Path(absolute_location(location)))
    if scheme == "file":
        return LocalDirectory(Path(urlsplit(location).path))
    from flinkray.ha.arrow_directory import ArrowDirectory  # pyarrow takes its time to load

    return ArrowDirectory.from_uri(location)
