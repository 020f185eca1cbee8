"""Folders of state on a local disk.

Whoever makes the next one below the same directory removes those that processes have left which
were killed.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from flinkray.core.locked_folders import LockedFolder, sweep_locked_folders

_PREFIX = "flinkray-state-"


def new_state_folder(directory: str | None) -> LockedFolder:
    """A folder of this process.

    Args:
        directory: below which it is; None: the temporary one of the machine.

    Raises:
        OSError: there is no such directory, or it cannot be written to.
    """
    root = Path(directory or tempfile.gettempdir())
    sweep_state_folders(root)
    return LockedFolder(root, _PREFIX)


def sweep_state_folders(root: Path) -> int:
    """Remove what processes have left there that died; how many folders.  Blocks."""
    return sweep_locked_folders(root, _PREFIX, time.time())
