"""State backends, as programs name them (PyFlink's ``pyflink.datastream.state_backend``)."""

from __future__ import annotations

from enum import Enum
from urllib.parse import urlsplit

from flinkray.core.errors import ConfigurationError
from flinkray.core.job_options import ROCKSDB_LOCALDIR, STATE_BACKEND


class StateBackend:
    """Where state is kept while a program runs."""

    def options(self) -> dict[str, str] | None:
        """The same as options of the job; None: there are none that say it."""
        return None


class HashMapStateBackend(StateBackend):
    """In memory, as objects: what programs have that say nothing."""

    def options(self) -> dict[str, str]:
        return {STATE_BACKEND.key: "hashmap"}

    def __str__(self) -> str:
        return "HashMapStateBackend"


class PredefinedOptions(Enum):
    """Settings of RocksDB for kinds of disks."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class EmbeddedRocksDBStateBackend(StateBackend):
    """In RocksDB on local disks: for state that is larger than memory.

    The paths have an effect; the other settings are checked and kept.  Checkpoints hold what has
    changed in any case.

    >>> backend = EmbeddedRocksDBStateBackend(True)
    >>> backend.set_db_storage_paths("file:///data/a/", "/data/b")
    >>> backend.get_db_storage_paths(), backend.is_incremental_checkpoints_enabled()
    (['/data/a', '/data/b'], True)
    """

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        self._incremental = bool(enable_incremental_checkpointing)
        self._paths: list[str] = []
        self._predefined = PredefinedOptions.DEFAULT
        self._transfer_threads = 4

    def options(self) -> dict[str, str]:
        paths = {ROCKSDB_LOCALDIR.key: ",".join(self._paths)} if self._paths else {}
        return {STATE_BACKEND.key: "rocksdb", **paths}

    def set_db_storage_paths(self, *paths: str) -> None:
        """Folders of the local file system; none: the machine's temporary one.

        Raises:
            ValueError: a path is relative, or of another file system.
        """
        self._paths = [_local_path(path) for path in paths]

    def get_db_storage_paths(self) -> list[str]:
        """What :meth:`set_db_storage_paths` was given, as plain paths."""
        return list(self._paths)

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Whether a checkpoint is to hold what has changed since the one before."""
        return self._incremental

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """For the kind of disk."""
        self._predefined = PredefinedOptions(options)

    def get_predefined_options(self) -> PredefinedOptions:
        """What :meth:`set_predefined_options` was given."""
        return self._predefined

    def set_options(self, options_factory_class_name: str) -> None:
        """
        Raises:
            ConfigurationError: always; the factory is a class of Java.
        """
        raise ConfigurationError(
            f"set_options({options_factory_class_name!r}): there is no JVM that has this class; "
            "leave it out"
        )

    def get_options(self) -> str | None:
        """Always None."""
        return None

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        """How many threads move files of a checkpoint."""
        if number_of_transfering_threads < 1:
            raise ValueError(
                f"a number of threads must be at least 1, got {number_of_transfering_threads}"
            )
        self._transfer_threads = number_of_transfering_threads

    def get_number_of_transfer_threads(self) -> int:
        """What :meth:`set_number_of_transfer_threads` was given; 4 by default."""
        return self._transfer_threads

    def __str__(self) -> str:
        return "EmbeddedRocksDBStateBackend"


def _local_path(path: str) -> str:
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        raise ValueError(f"{path} is of another file system; give a path of the local one")
    if not parts.path.startswith("/"):
        raise ValueError(f"{path} is relative; give an absolute path")
    return parts.path.rstrip("/") or "/"
