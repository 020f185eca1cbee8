"""Keyed state on a local disk, in RocksDB: state that is larger than memory."""

from __future__ import annotations

from flinkray.state.disk.backend import DiskKeyedStateBackend
from flinkray.state.disk.engine import StateStorageError
from flinkray.state.disk.settings import DiskSettings

__all__ = ["DiskKeyedStateBackend", "DiskSettings", "StateStorageError"]
