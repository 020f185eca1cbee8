"""Files of state, locally and wherever pyarrow has a file system for.  Blocking.

A file is written once, under a name of its own, from its beginning to its end, and durable when it
is closed.  It is read in ranges.
"""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import pyarrow.fs

from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import (
    CheckpointStorageError,
    UnusableLocationError,
    storage_errors,
)
from flinkray.ha.arrow_directory import ArrowDirectory, arrow_file_system, is_object_store
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


class _ArrowOutput:
    def __init__(self, file_system: pyarrow.fs.FileSystem, path: str) -> None:
        self._file_system = file_system
        self._path = path
        self._file = file_system.open_output_stream(path)

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(FileNotFoundError):
            self._file_system.delete_file(self._path)


class _ArrowInput:
    def __init__(self, file_system: pyarrow.fs.FileSystem, path: str) -> None:
        self._file = file_system.open_input_file(path)
        self.size: int = self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        if length <= 0 or offset >= self.size:
            return b""
        data: bytes = self._file.read_at(min(length, self.size - offset), offset)
        return data

    def close(self) -> None:
        self._file.close()


class ArrowStateFiles(StateFiles):
    """Of any file system that pyarrow knows.

    Args:
        path: what pyarrow calls *location*; other locations of the storage are found from there.
    """

    def __init__(self, file_system: pyarrow.fs.FileSystem, path: str, location: str) -> None:
        self._file_system = file_system
        self._path = path
        self._location = location

    @classmethod
    def of(cls, location: str) -> ArrowStateFiles:
        """The storage that a location is in.

        Raises:
            UnusableLocationError: pyarrow does not know the scheme, or cannot read the URI.
            CheckpointStorageError: the storage, or what it needs, is not there at present.
        """
        try:
            file_system, path = arrow_file_system(location)
        except (ValueError, NotImplementedError, OSError) as error:
            text = str(error)
            if "@" in location:  # pyarrow tells the whole of it
                text = "it cannot be read; write / as %2F in keys and secrets"
            may_help = isinstance(error, OSError)
            kind = CheckpointStorageError if may_help else UnusableLocationError
            raise kind(location, f"pyarrow has no file system for it: {text}") from error
        return cls(file_system, path, location)

    def create(self, location: str) -> OutputFile:
        path = self._of(location)
        if not is_object_store(self._file_system):
            self._file_system.create_dir(posixpath.dirname(path), recursive=True)
        return _ArrowOutput(self._file_system, path)

    def open(self, location: str) -> InputFile:
        return _ArrowInput(self._file_system, self._of(location))

    def delete(self, location: str) -> None:
        with suppress(FileNotFoundError):
            self._file_system.delete_file(self._of(location))

    def names(self, location: str) -> list[str]:
        if not self.is_directory(location):
            return []
        selector = pyarrow.fs.FileSelector(self._of(location), allow_not_found=True)
        return sorted(info.base_name for info in self._file_system.get_file_info(selector))

    def sizes(self, location: str) -> dict[str, int]:
        if not self.is_directory(location):
            return {}
        selector = pyarrow.fs.FileSelector(self._of(location), allow_not_found=True)
        found = self._file_system.get_file_info(selector)
        return {each.base_name: each.size for each in found if each.is_file}

    def is_directory(self, location: str) -> bool:
        info = self._file_system.get_file_info(self._of(location))
        return bool(info.type == pyarrow.fs.FileType.Directory)

    def remove_if_empty(self, location: str) -> None:
        with suppress(FileNotFoundError):
            if self.is_directory(location) and not self.names(location):
                self._file_system.delete_dir(self._of(location))

    def entries(self, location: str) -> Directory:
        return ArrowDirectory(self._file_system, self._of(location), location)

    def _of(self, location: str) -> str:
        way = posixpath.relpath(*map(_path_in_storage, (location, self._location)))
        return posixpath.normpath(posixpath.join(self._path, way))


def _path_in_storage(location: str) -> str:
    """Of a URI, as pyarrow calls it."""
    return unquote(locations.path_of(location))


_LOCAL = LocalStateFiles()
_known: dict[tuple[str, str, str], StateFiles] = {}
_schemes: dict[str, Callable[[str], StateFiles]] = {}


def register_state_files(scheme: str, opener: Callable[[str], StateFiles]) -> None:
    """Have the storage of URIs of *scheme* opened by *opener* each time, in this process."""
    _schemes[scheme] = opener


def files_at(location: str) -> StateFiles:
    """The storage of a location, opened once in this process.  Raises CheckpointStorageError."""
    if locations.is_local(location):
        return _LOCAL
    storage = locations.storage_of(location)
    if storage[0] in _schemes:
        return _schemes[storage[0]](location)
    if storage not in _known:
        _known[storage] = ArrowStateFiles.of(location)
    return _known[storage]


@contextmanager
def opened(location: str) -> Iterator[InputFile]:
    """Raises CheckpointStorageError."""
    with storage_errors(location, "read"):
        file = files_at(location).open(location)
    try:
        yield file
    finally:
        file.close()
