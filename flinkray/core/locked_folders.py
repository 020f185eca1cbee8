"""Creates folders on a local disk, each locked by the process that owns it.

A process that is killed leaves its folders. The next process removes the folders that are not
locked.
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
"""Age in seconds after which a folder without a lock counts as abandoned, not as being created."""


class LockedFolder:
    """Creates a new folder, whose name begins with *prefix*, and holds its lock until
    :meth:`remove`.
    *root* is created if missing. Raises OSError: the directory cannot be created or written to."""

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
            self._lock.close()  # a sweep was faster: it removes the folder, or has removed it

    def remove(self) -> None:
        """Delete the folder with all its contents, and release the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep_locked_folders(root: Path, prefix: str, now: float) -> int:
    """Remove the folders in *root* whose name begins with *prefix* and whose process, of the same
    user, has died. Blocks. Returns the number of removed folders. *now*: seconds since the
    epoch."""
    count = 0
    for folder in root.glob(f"{prefix}*"):
        try:
            count += folder.stat().st_uid == os.getuid() and _remove_if_abandoned(folder, now)
        except OSError:  # somebody else removes it
            continue
    return count


def _remove_if_abandoned(folder: Path, now: float) -> bool:
    """Remove the folder if its process has died, and return whether it was removed.
    The process has died if the lock is free. A folder without a lock file is being created, or was
    half removed; it is removed when it is old enough."""
    try:
        lock = (folder / _LOCK).open("rb")
    except FileNotFoundError:
        is_abandoned = now - folder.stat().st_mtime > _BEING_MADE
        if is_abandoned:
            shutil.rmtree(folder, ignore_errors=True)
        return is_abandoned
    with lock:
        is_abandoned = _takes(lock)
        if is_abandoned:  # under the lock, so that the folder's maker notices
            shutil.rmtree(folder, ignore_errors=True)
        return is_abandoned


def _takes(lock: BinaryIO) -> bool:
    """Try to lock the open file *lock* for this process, and return whether this succeeded. This
    process and its forks hold the lock until the file is closed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
