"""What a backend is restored from, until it is asked for: frames in a file beside the engine."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flinkray.state.disk.engine import storage_errors
from flinkray.state.stored_forms import SerializerSnapshot


class SpooledFrames(NamedTuple):
    """Where they are."""

    offset: int
    size: int


class Spool:
    """A file that is only added to, by one thread, and read by any."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with storage_errors(folder, "written"):
            self._file = os.open(folder / "restored", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)  # captures may read it to the end
        self._size = 0

    def add(self, payload: bytes | memoryview) -> SpooledFrames:
        """Raises StateStorageError."""
        with storage_errors(self._folder, "written"):
            left = memoryview(payload)
            while left:
                left = left[os.write(self._file, left) :]
        added = SpooledFrames(self._size, len(payload))
        self._size += len(payload)
        return added

    def read(self, frames: SpooledFrames) -> bytes:
        """Raises StateStorageError."""
        with storage_errors(self._folder, "read"):
            return os.pread(self._file, frames.size, frames.offset)


@dataclass
class RestoredTable:
    """A table that nobody has asked for yet, or a queue of timers."""

    kind: str
    namespaced: bool
    serializers: list[SerializerSnapshot] = field(default_factory=list)
    groups: dict[int, list[SpooledFrames]] = field(default_factory=dict)
    """Key group -> frames, oldest first."""

    def frames(self, spool: Spool, group: int) -> Iterator[bytes]:
        """Of a key group, oldest first."""
        return (spool.read(frames) for frames in self.groups.get(group, ()))
