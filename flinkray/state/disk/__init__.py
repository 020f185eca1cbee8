"""Keyed state on a local disk, in RocksDB: state that is larger than memory."""

from __future__ import annotations

from flinkray.state.disk.backend import DiskKeyedStateBackend, DiskSettings
from flinkray.state.disk.rocksdb import StateStorageError

__all__ = ["DiskKeyedStateBackend", "DiskSettings", "StateStorageError"]
