"""What survives that the power of a machine is cut."""

from __future__ import annotations

import errno
import os


def sync(path: str | os.PathLike[str]) -> None:
    """The content of a file that is not being written; its name is with :func:`sync_names`.

    Raises:
        OSError: the disk fails, or there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(directory: str | os.PathLike[str]) -> None:
    """The names of what is in a directory.

    Raises:
        OSError: the disk fails, or there is no such directory.
    """
    try:
        sync(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # directories are not synchronised on that file system
            raise
