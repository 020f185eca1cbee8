"""State backends with the names of PyFlink's ``pyflink.datastream.state_backend``."""

from __future__ import annotations

from enum import Enum
from urllib.parse import urlsplit

from flinkray.core.errors import ConfigurationError
from flinkray.core.job_options import ROCKSDB_LOCALDIR, STATE_BACKEND


class StateBackend:
    """Backend that keeps state while a program runs."""

    def options(self) -> dict[str, str] | None:
        """Return the options of a job that choose this backend. None: no options of a job can
        choose it."""
        return None


class HashMapStateBackend(StateBackend):
    """Backend that keeps state in memory, as Python objects; the default of programs."""

    def options(self) -> dict[str, str]:
        return {STATE_BACKEND.key: "hashmap"}

    def __str__(self) -> str:
        return "HashMapStateBackend"


class PredefinedOptions(Enum):
    """Kinds of disks for which RocksDB has predefined settings."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class EmbeddedRocksDBStateBackend(StateBackend):
    """Backend that keeps state in RocksDB on local disks, for state that is larger than memory.

    The paths have an effect. The other settings are checked and stored, but have no effect:
    checkpoints hold only changes, whatever is set here.

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
        """Set folders of the local file system. Without paths: the machine's temporary directory.

        Raises:
            ValueError: a path is relative, or of another file system.
        """
        self._paths = [_local_path(path) for path in paths]

    def get_db_storage_paths(self) -> list[str]:
        """Return the folders that :meth:`set_db_storage_paths` was given, as plain paths."""
        return list(self._paths)

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Return the stored argument of the constructor, which has no effect."""
        return self._incremental

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Set the kind of disk."""
        self._predefined = PredefinedOptions(options)

    def get_predefined_options(self) -> PredefinedOptions:
        """Return the value that :meth:`set_predefined_options` was given."""
        return self._predefined

    def set_options(self, options_factory_class_name: str) -> None:
        """Refuse a factory of options, which is a Java class.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"set_options({options_factory_class_name!r}): there is no JVM that has this class; "
            "leave it out"
        )

    def get_options(self) -> str | None:
        """Return None: there is no factory of options."""
        return None

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        """Set how many threads transfer files of a checkpoint."""
        if number_of_transfering_threads < 1:
            raise ValueError(
                f"a number of threads must be at least 1, got {number_of_transfering_threads}"
            )
        self._transfer_threads = number_of_transfering_threads

    def get_number_of_transfer_threads(self) -> int:
        """Return the value that :meth:`set_number_of_transfer_threads` was given; default 4."""
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
