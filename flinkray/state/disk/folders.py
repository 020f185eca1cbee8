"""Folders of state on a local disk.

Creating a folder removes the folders below the same directory that killed processes have left.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from flinkray.core.locked_folders import LockedFolder, sweep_locked_folders

_PREFIX = "flinkray-state-"


def new_state_folder(directory: str | None) -> LockedFolder:
    """Create a folder for the state of this process, and remove abandoned ones.

    Args:
        directory: parent directory; None: the temporary directory of the machine.

    Raises:
        OSError: the directory cannot be created or written to.
    """
    root = Path(directory or tempfile.gettempdir())
    sweep_state_folders(root)
    return LockedFolder(root, _PREFIX)


def sweep_state_folders(root: Path) -> int:
    """Remove the folders of processes that have died. Returns the number of folders. Blocks."""
    return sweep_locked_folders(root, _PREFIX, time.time())
