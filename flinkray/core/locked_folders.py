"""Folders on a local disk, each with the lock of the process that it belongs to.

A process that is killed leaves its folders.  Whoever comes next removes those that nobody holds the
lock of.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

_LOCK = "lock"
_BEING_MADE = 60.0
"""Seconds after which a folder without a lock is none that is being made."""


class LockedFolder:
    """A new folder, until :meth:`remove`.

    Args:
        root: below which it is; made if it is not there.
        prefix: of its name.

    Raises:
        OSError: there is no such directory, or it cannot be written to.
    """

    def __init__(self, root: Path, prefix: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
            try:
                self._lock = (self.path / _LOCK).open("wb")
            except FileNotFoundError:
                continue
            if _takes(self._lock) and os.fstat(self._lock.fileno()).st_nlink:
                return
            self._lock.close()  # a sweep was faster, and removes it, or has done so

    def remove(self) -> None:
        """With all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep_locked_folders(root: Path, prefix: str, now: float) -> int:
    """Remove what processes have left there that died; how many folders.  Blocks.

    Args:
        now: seconds since the epoch.
    """
    count = 0
    for folder in root.glob(f"{prefix}*"):
        try:
            count += folder.stat().st_uid == os.getuid() and _remove_if_abandoned(folder, now)
        except OSError:  # somebody else removes it
            continue
    return count


def _remove_if_abandoned(folder: Path, now: float) -> bool:
    """If nobody holds its lock; one without a lock is being made, or was half removed."""
    try:
        lock = (folder / _LOCK).open("rb")
    except FileNotFoundError:
        is_abandoned = now - folder.stat().st_mtime > _BEING_MADE
        if is_abandoned:
            shutil.rmtree(folder, ignore_errors=True)
        return is_abandoned
    with lock:
        is_abandoned = _takes(lock)
        if is_abandoned:  # held meanwhile, so that whoever has just made the folder notices
            shutil.rmtree(folder, ignore_errors=True)
        return is_abandoned


def _takes(lock: BinaryIO) -> bool:
    """Whether the lock is had now: until the file is closed, by this process and its forks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
