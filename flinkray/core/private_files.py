"""Creates files and folders of a cluster on this machine, which other users cannot read.

Their modes do not depend on the umask of the process. The modes are 0600 and 0700, or 0640 and 0750
if the option ``storage.permissions`` opens them to the group. The setting is an environment
variable, so that child processes (JVMs, workers of Spark) inherit it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

OWNER, GROUP = "owner", "group"
_VARIABLE = "FLINKRAY_STORAGE_PERMISSIONS"
_NO_MODES = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EROFS)
"""Errors of file systems without modes, and of files that belong to another user of the group."""


_of_context: ContextVar[str | None] = ContextVar("permissions", default=None)


def permit(who: str) -> None:
    """Set who may read the files that this process creates from now on: ``owner`` or ``group``."""
    os.environ.update(variables(who))


def variables(who: str) -> dict[str, str]:
    """Return environment variables for a new process that let *who* (``owner`` or ``group``) read
    the files which the process creates."""
    return {_VARIABLE: who}


@contextmanager
def permitted(who: str | None) -> Iterator[None]:
    """Inside this context, let *who* (``owner`` or ``group``) read the files that this thread
    creates. With None, the setting of the process applies."""
    before = _of_context.set(who)
    try:
        yield
    finally:
        _of_context.reset(before)


def _is_for_group() -> bool:
    return (_of_context.get() or os.environ.get(_VARIABLE)) == GROUP


def opener(path: str, flags: int) -> int:
    """Open a file with the mode that the cluster's files have, for ``open(..., opener=opener)``. An
    existing file gets this mode, too. Raises OSError: *path* is a symbolic link, or cannot be
    opened."""
    mode = 0o640 if _is_for_group() else 0o600
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        _set_mode(descriptor, mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def create_empty(path: str | os.PathLike[str]) -> None:
    """Create or empty a file with the cluster's mode, for libraries that open files by path."""
    with open(path, "wb", opener=opener):
        """Nothing is written."""


def create_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder in an existing one; the mode of an existing folder stays as it is.
    Raises OSError: the parent does not exist, or a file has that name."""
    mode = 0o750 if _is_for_group() else 0o700
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _set_mode(descriptor, mode)
    finally:
        os.close(descriptor)


def create_folders(path: str | os.PathLike[str]) -> None:
    """Create a folder and its parents, as far as they do not exist."""
    folder = Path(os.path.abspath(path))
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            create_folder(each)


def restrict_folder(path: str | os.PathLike[str]) -> None:
    """Give a folder the mode that folders of the cluster have. Its contents keep their modes, but
    other users cannot reach them. Raises OSError: the folder does not exist."""
    _set_mode_of(path, 0o750 if _is_for_group() else 0o700)


def restrict(path: str | os.PathLike[str]) -> None:
    """Give a folder and all its contents the modes that files of the cluster have. Links are
    skipped."""
    file_mode, folder_mode = (0o640, 0o750) if _is_for_group() else (0o600, 0o700)
    for folder, _, files in os.walk(path):
        _set_mode_of(folder, folder_mode)
        for name in files:
            _set_mode_of(os.path.join(folder, name), file_mode)


def _set_mode_of(path: str | os.PathLike[str], mode: int) -> None:
    if os.path.islink(path):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _set_mode(descriptor, mode)
    finally:
        os.close(descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of an open file or folder; a folder with the setgid bit keeps that bit.
    Does nothing on a file system without modes, or for a file of another user."""
    now = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(now):
        mode |= now & stat.S_ISGID
    if stat.S_IMODE(now) == mode:
        return
    try:
        os.fchmod(descriptor, mode)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise
