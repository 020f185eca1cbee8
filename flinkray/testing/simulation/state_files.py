"""Implements checkpoint storage on a simulated disk."""

from __future__ import annotations

import errno
import os

from flinkray.checkpoint import locations
from flinkray.checkpoint.files import Buffer, InputFile, OutputFile, StateFiles
from flinkray.ha.directory import Directory, FileDirectory
from flinkray.testing.simulation.disk import SimulatedDisk
from flinkray.testing.simulation.step_threads import pause_thread

_LONGEST = 0.01
"""Seconds that an operation takes at most in a thread, while no fault slows it down."""
_PAUSES = 0.3
"""The fraction of operations during which other threads get a turn."""


class SimulatedStateFiles(StateFiles):
    """Checkpoint storage on a simulated disk; call it as blocking work."""

    def __init__(self, disk: SimulatedDisk, writer: str) -> None:
        """Represent the checkpoint storage on *disk*.

        *writer* is part of the names of temporary files; no other process that writes entries at
        the same time may have this name.
        """
        self._disk = disk
        self._writer = writer

    def create(self, location: str) -> OutputFile:
        self._take_time()
        path = _path(location)
        self._make_durable(_folder(path))
        self._disk.write(path, b"")
        return _Output(self._disk, path)

    def _make_durable(self, folder: str) -> None:
        if folder:
            parent = _folder(folder)
            self._make_durable(parent)
            self._disk.make_directory(folder)
            self._disk.sync_directory(parent)

    def _take_time(self) -> None:
        """Let virtual time pass in a thread of a task process, while other threads run."""
        pause_thread(max(_LONGEST, self._disk.slowness), _PAUSES)

    def open(self, location: str) -> InputFile:
        self._take_time()
        data = self._disk.read(_path(location))
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
        return _Input(data)

    def delete(self, location: str) -> None:
        self._take_time()
        path = _path(location)
        self._disk.delete(path)
        self._disk.sync_directory(_folder(path))

    def names(self, location: str) -> list[str]:
        return sorted(self._disk.listed_late(_path(location)))

    def sizes(self, location: str) -> dict[str, int]:
        folder = _path(location)
        contents = {n: self._disk.read(f"{folder}/{n}") for n in self._disk.list(folder)}
        return {name: len(data) for name, data in contents.items() if data is not None}

    def is_directory(self, location: str) -> bool:
        return self._disk.is_directory(_path(location))

    def remove_if_empty(self, location: str) -> None:
        self._disk.remove_directory(_path(location))

    def entries(self, location: str) -> Directory:
        return FileDirectory(self._disk, _path(location), self._writer)


class _Output:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._data = bytearray()

    def write(self, data: Buffer) -> None:
        self._data += data

    def close(self) -> None:
        pause_thread(max(_LONGEST, self._disk.slowness), _PAUSES)
        self._disk.write(self._path, bytes(self._data))
        self._disk.sync(self._path)
        self._disk.sync_directory(_folder(self._path))

    def discard(self) -> None:
        self._disk.delete(self._path)


class _Input:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Do nothing, because no file is open."""


def _path(location: str) -> str:
    return locations.path_of(location).strip("/")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
