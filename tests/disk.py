"""What is on the disk, as far as a program has asked for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Disk:
    """Files and directories as they were when they were last synchronised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._synced: dict[int, int | set[str]] = {}
        fsync = os.fsync

        def note(descriptor: int) -> None:
            status = os.fstat(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self._synced[status.st_ino] = (
                set(os.listdir(path)) if os.path.isdir(path) else status.st_size
            )
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", note)

    def lacks(self, root: Path) -> list[str]:
        """What a cut of the power would take of the files below a directory: those that are not
        whole, and those whose names, or whose directory's, are not there."""
        lost = []
        for path in sorted(root.rglob("*")):
            names = self._synced.get(path.parent.stat().st_ino, set())
            is_named = isinstance(names, set) and path.name in names
            is_whole = path.is_dir() or self._synced.get(path.stat().st_ino) == path.stat().st_size
            if not (is_named and is_whole):
                lost.append(str(path.relative_to(root)))
        return lost
