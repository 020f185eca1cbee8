"""Checks a node from a process on this node.

Ray ships these functions to the node as pickled code (cloudpickle "by value"), because flinkray may
not be installed there. So what the shipped functions use comes from Python's standard library only.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flinkray.ha.locations import open_directory


def look_around(storage: str | None, name: str, mark: str | None = None) -> dict[str, Any]:
    """Return versions and resources of the node on which this function runs in a Ray process.
    *storage*: location to which a folder *name* is written for a trial, and in which a folder
    *mark* is looked for; None: no storage is tried."""
    memory = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    said: dict[str, Any] = {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "java": shutil.which("java"),
        "shm_total": None if memory is None else memory.f_frsize * memory.f_blocks,
        "shm_free": None if memory is None else memory.f_frsize * memory.f_bavail,
        "flinkray": None,
        "import_error": None,
        "java_error": None,
        "storage_error": None,
        "sees_mark": None,
    }
    try:
        import flinkray
    except ImportError as error:
        said["import_error"] = str(error)
        return said
    said["flinkray"] = flinkray.__version__
    from flinkray.core.errors import UnsupportedEnvironmentError
    from flinkray.spark.ray_java import check_ray_starts_java

    try:
        check_ray_starts_java()
    except UnsupportedEnvironmentError as error:
        said["java_error"] = str(error)
    if storage is not None:
        from flinkray.client.node_check import sees_mark, try_storage

        said["storage_error"] = try_storage(storage, name)
        if mark is not None:
            said["sees_mark"] = sees_mark(storage, mark)
    return said


def time_there() -> float:
    """Return the node's time, in seconds since the epoch."""
    return time.time()


_MARK = "mark"


def try_storage(location: str, name: str) -> str | None:
    """Write, read and delete files in the new folder *name* at *location*. Return a text about what
    went wrong; None: nothing."""
    try:
        folder = open_directory(location).subdirectory(name)
        try:
            for content in (b"first", b"second"):  # the second content replaces the first
                folder.write("trial", content)
                if (read := folder.read("trial")) != content:
                    return f"{content!r} was written, and {read!r} read"
        finally:
            folder.delete_all()
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def marked(location: str, name: str) -> Iterator[bool]:
    """Context manager: keep a file in folder *name* at *location*, for :func:`sees_mark` on other
    machines, and delete the folder at the end. Yields whether the file could be written."""
    try:
        folder = open_directory(location).subdirectory(name)
        folder.write(_MARK, b"")
    except (OSError, ValueError):
        yield False
        return
    try:
        yield True
    finally:
        folder.delete_all()


def sees_mark(location: str, name: str) -> bool:
    """Return whether this machine sees the file that :func:`marked` wrote on another machine. If
    so, both machines have the same storage at *location*."""
    try:
        return open_directory(location).subdirectory(name).read(_MARK) is not None
    except (OSError, ValueError):
        return False
