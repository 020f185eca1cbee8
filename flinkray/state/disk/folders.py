"""Folders of state on a local disk, each with the lock of the process that it belongs to.

A process that is killed leaves its folders.  Whoever makes the next one below the same directory
removes those that nobody holds the lock of.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

_PREFIX = "flinkray-state-"
_LOCK = "lock"
_BEING_MADE = 60.0
"""Seconds after which a folder without a lock is none that is being made."""


class StateFolder:
    """A new folder, until :meth:`remove`.

    Args:
        directory: below which it is; None: the temporary one of the machine.

    Raises:
        OSError: there is no such directory, or it cannot be written to.
    """

    def __init__(self, directory: str | None) -> None:
        root = Path(directory or tempfile.gettempdir())
        root.mkdir(parents=True, exist_ok=True)
        sweep_state_folders(root)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            try:
                self._lock = (self.path / _LOCK).open("wb")
            except FileNotFoundError:
                continue
            if _takes(self._lock) and os.fstat(self._lock.fileno()).st_nlink:
                return
            self._lock.close()  # a sweep was faster, and removes it

    def remove(self) -> None:
        """With all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep_state_folders(root: Path) -> int:
    """Remove what processes have left there that died; how many folders.  Blocks."""
    count = 0
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            count += folder.stat().st_uid == os.getuid() and _remove_if_abandoned(folder)
        except OSError:  # somebody else removes it
            continue
    return count


def _remove_if_abandoned(folder: Path) -> bool:
    try:
        lock = (folder / _LOCK).open("rb")
    except FileNotFoundError:
        is_abandoned = time.time() - folder.stat().st_mtime > _BEING_MADE
        if is_abandoned:
            shutil.rmtree(folder, ignore_errors=True)
        return is_abandoned
    with lock:
        is_abandoned = _takes(lock)
        if is_abandoned:  # held meanwhile, so that whoever has just made the folder notices
            shutil.rmtree(folder, ignore_errors=True)
        return is_abandoned


def _takes(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
