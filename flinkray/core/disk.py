"""Makes files and names durable, so that they survive a power failure of the machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from flinkray.core.private_files import create_folders


def sync(path: str | os.PathLike[str]) -> None:
    """Make the content of a closed file durable. Use :func:`sync_names` for the file's name.
    Raises OSError: the disk fails, or the file does not exist."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(directory: str | os.PathLike[str]) -> None:
    """Make the names of the entries of a directory durable.
    Raises OSError: the disk fails, or the directory does not exist."""
    try:
        sync(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system does not synchronise directories
            raise


def make_directories(directory: str | os.PathLike[str]) -> None:
    """Create a directory and its parents for files of the cluster, and make their names durable.
    Other users cannot read these directories. Directories that exist already are synchronised as
    well: the process that created them may have died before their names were durable. Raises
    OSError: the disk fails, or one of the paths is a file."""
    create_folders(directory)
    sync_names_to_root([os.path.dirname(os.path.abspath(directory))])


def sync_names_to_root(directories: Iterable[str | os.PathLike[str]]) -> None:
    """Make the names in these directories durable, and the names in all their parents.
    Each directory is synchronised once, parents last. Parents that this process may not read are
    left out: the process has created nothing in them. Raises OSError: the disk fails, or a
    directory does not exist."""
    paths = {Path(os.path.abspath(directory)) for directory in directories}
    parents = {parent for path in paths for parent in path.parents} - paths
    for path in sorted(paths):
        sync_names(path)
    for parent in sorted(parents, reverse=True):
        with suppress(PermissionError):
            sync_names(parent)
