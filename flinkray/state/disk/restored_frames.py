"""Restored frames that are not in use yet, in a file on the local disk."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flinkray.state.disk.rocksdb import disk_errors
from flinkray.state.snapshots import RestoredTable


class SpooledFrames(NamedTuple):
    """The position in a :class:`Spool` of restored frames that belong together."""

    offset: int
    size: int


class Spool:
    """A file on the local disk for restored frames that are not in use yet. One thread appends, and
    any thread reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with disk_errors(folder, "written"):
            self._file = os.open(folder / "restored", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)  # captures may still read the file
        self._size = 0

    def add(self, payload: bytes | memoryview) -> SpooledFrames:
        """Append a payload of frames and return its position. Raises StateStorageError."""
        with disk_errors(self._folder, "written"):
            left = memoryview(payload)
            while left:
                left = left[os.write(self._file, left) :]
        added = SpooledFrames(self._size, len(payload))
        self._size += len(payload)
        return added

    def read(self, frames: SpooledFrames) -> bytes:
        """Return the frames at a position. Raises StateStorageError."""
        with disk_errors(self._folder, "read"):
            return os.pread(self._file, frames.size, frames.offset)


class SpooledTable(RestoredTable[SpooledFrames]):
    """A restored table that is not in use yet. Its frames are in a :class:`Spool`."""

    def frames(self, spool: Spool, group: int) -> Iterator[bytes]:
        """Return the frames of a key group, oldest first."""
        return (spool.read(frames) for frames in self.groups.get(group, ()))
