"""Interfaces for files of state, and the implementation for local files. All calls block.

Each file is written once, from beginning to end, under a new name. A file is durable after it is
closed. Files are read in ranges.
"""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from flinkray.core import disk
from flinkray.core.private_files import opener
from flinkray.ha.directory import Directory, LocalDirectory, files_in

Buffer = bytes | bytearray | memoryview


class OutputFile(Protocol):
    """A file that is being written.  All methods raise OSError."""

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None:
        """Close the file. Its content and its name are durable on return."""

    def discard(self) -> None:
        """Remove the unfinished file if the storage allows it, also after a failed write."""


class InputFile(Protocol):
    """A file that is read in ranges, from any thread. All methods raise OSError."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Return *length* bytes from *offset*; fewer only at the end of the file."""

    def close(self) -> None: ...


class StateFiles(ABC):
    """Creates, opens and deletes the files of one storage. All methods raise OSError."""

    @abstractmethod
    def create(self, location: str) -> OutputFile:
        """Create a new file; its directory is created if missing."""

    @abstractmethod
    def open(self, location: str) -> InputFile: ...

    @abstractmethod
    def delete(self, location: str) -> None:
        """Delete a file; no error if it does not exist."""

    @abstractmethod
    def names(self, location: str) -> list[str]:
        """Return the sorted names of a directory's entries; empty if the directory is missing."""

    @abstractmethod
    def sizes(self, location: str) -> dict[str, int]:
        """Return the size of each file in a directory, by file name.

        Empty if the directory is missing.
        """

    @abstractmethod
    def is_directory(self, location: str) -> bool: ...

    @abstractmethod
    def remove_if_empty(self, location: str) -> None:
        """Remove a directory if it exists and is empty."""

    @abstractmethod
    def entries(self, location: str) -> Directory:
        """Return an interface to a directory's small files, each of which is replaced as a
        whole."""


class _LocalOutput:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "xb", opener=opener)  # noqa: SIM115 - closed by close and discard

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def close(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        disk.sync_names(posixpath.dirname(self._path))

    def discard(self) -> None:
        with suppress(OSError):  # for example, buffered bytes do not fit on a full disk
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
    """State files on this machine's disks or on file systems mounted here."""

    def create(self, location: str) -> OutputFile:
        disk.make_directories(posixpath.dirname(location))
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
                with suppress(OSError):  # somebody has created a file in the directory since
                    Path(location).rmdir()

    def entries(self, location: str) -> Directory:
        return LocalDirectory(Path(location))
