"""Files of state, and those of this machine.  Blocking.

A file is written once, under a name of its own, from its beginning to its end, and durable when it
is closed.  It is read in ranges.
"""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from flinkray.ha.directory import Directory, LocalDirectory, LocalFileSystem, files_in

Buffer = bytes | bytearray | memoryview


class OutputFile(Protocol):
    """A file that is being written.  All methods raise OSError."""

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None:
        """Its content and its name are durable on return."""

    def discard(self) -> None:
        """Remove it, as far as the storage lets us; also after a failure."""


class InputFile(Protocol):
    """A file that is read in ranges, from any thread.  All methods raise OSError."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Fewer bytes only where the file ends."""

    def close(self) -> None: ...


class StateFiles(ABC):
    """The files of one storage.  All methods raise OSError."""

    @abstractmethod
    def create(self, location: str) -> OutputFile:
        """A new file; its directory is made if it is not there."""

    @abstractmethod
    def open(self, location: str) -> InputFile: ...

    @abstractmethod
    def delete(self, location: str) -> None:
        """A file; deleting what is not there is fine."""

    @abstractmethod
    def names(self, location: str) -> list[str]:
        """What is in a directory, in order; nothing if there is no such directory."""

    @abstractmethod
    def sizes(self, location: str) -> dict[str, int]:
        """Of the files in a directory, by their names; of none if there is no such directory."""

    @abstractmethod
    def is_directory(self, location: str) -> bool: ...

    @abstractmethod
    def remove_if_empty(self, location: str) -> None:
        """A directory; one that is not empty, or not there, stays as it is."""

    @abstractmethod
    def entries(self, location: str) -> Directory:
        """A directory as one of small entries that are replaced as wholes."""


class _LocalOutput:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "xb")  # noqa: SIM115 - closed by close and discard

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def close(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        LocalFileSystem().sync_directory(posixpath.dirname(self._path))

    def discard(self) -> None:
        with suppress(OSError):  # what was not written yet, to a disk that is full
            self._file.close()
        Path(self._path).unlink(missing_ok=True)


class _LocalInput:
    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0:  # one call reads 2 GiB at most
            part = os.pread(self._descriptor, length, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        os.close(self._descriptor)


class LocalStateFiles(StateFiles):
    """Of this machine, or mounted on it."""

    def create(self, location: str) -> OutputFile:
        _make_durable_directory(posixpath.dirname(location))
        return _LocalOutput(location)

    def open(self, location: str) -> InputFile:
        return _LocalInput(location)

    def delete(self, location: str) -> None:
        Path(location).unlink(missing_ok=True)

    def names(self, location: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(location))
        return []

    def sizes(self, location: str) -> dict[str, int]:
        with suppress(NotADirectoryError):
            return {name: stat.st_size for name, stat in files_in(location)}
        return {}

    def is_directory(self, location: str) -> bool:
        return Path(location).is_dir()

    def remove_if_empty(self, location: str) -> None:
        with suppress(FileNotFoundError):
            if not os.listdir(location):
                with suppress(OSError):  # somebody has put something into it since
                    Path(location).rmdir()

    def entries(self, location: str) -> Directory:
        return LocalDirectory(Path(location))


def _make_durable_directory(path: str) -> None:
    if not Path(path).is_dir():
        parent = posixpath.dirname(path)
        _make_durable_directory(parent)
        Path(path).mkdir(exist_ok=True)
        LocalFileSystem().sync_directory(parent)
