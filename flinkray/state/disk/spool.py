"""A file next to the engine with restored frames of tables that are not in use yet."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flinkray.state.disk.engine import disk_errors
from flinkray.state.stored_forms import SerializerSnapshot


class SpooledFrames(NamedTuple):
    """Says where in the :class:`Spool` a payload of frames is."""

    offset: int
    size: int


class Spool:
    """A file to which one thread appends, and which any thread reads."""

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


@dataclass
class RestoredTable:
    """A restored table that is not in use yet, or a restored queue of timers."""

    kind: str
    namespaced: bool
    serializers: list[SerializerSnapshot] = field(default_factory=list)
    groups: dict[int, list[SpooledFrames]] = field(default_factory=dict)
    """Positions of frames by key group, oldest first."""

    def frames(self, spool: Spool, group: int) -> Iterator[bytes]:
        """Return the frames of a key group, oldest first."""
        return (spool.read(frames) for frames in self.groups.get(group, ()))
