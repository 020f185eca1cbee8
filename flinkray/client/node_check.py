"""What a node says of itself: travels by value, as flinkray may be missing there.

Only what Python itself brings is imported, also in the functions' globals.
"""

import os
import shutil
import sys
import time
from typing import Any


def look_around(storage: str | None, name: str, mark: str | None = None) -> dict[str, Any]:
    """In a process of Ray's on the node.

    Args:
        storage: where to try it, with files of that *name*.
        mark: what was left there for every machine to see.
    """
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
        from flinkray.client.storage_check import sees_mark, try_storage

        said["storage_error"] = try_storage(storage, name)
        if mark is not None:
            said["sees_mark"] = sees_mark(storage, mark)
    return said


def time_there() -> float:
    """Seconds since the epoch."""
    return time.time()
