"""Chooses the backend of keyed state; no other module makes this choice."""

from __future__ import annotations

from functools import partial

from flinkray.core.config import ReadableConfig
from flinkray.core.job_options import (
    ROCKSDB_DECODED,
    ROCKSDB_LOCALDIR,
    ROCKSDB_MEMORY,
    ROCKSDB_WRITE_BUFFER_RATIO,
    STATE_BACKEND,
)
from flinkray.state.backend import KeyedStateBackendFactory
from flinkray.state.disk import DiskKeyedStateBackend, DiskSettings
from flinkray.state.heap import HeapKeyedStateBackend

DEFAULT: KeyedStateBackendFactory = HeapKeyedStateBackend

IN_MEMORY = {STATE_BACKEND.key: "hashmap"}
"""Options that choose the in-memory backend, for callers that always use that backend."""

STATE_KEYS = frozenset(
    key
    for option in (
        STATE_BACKEND,
        ROCKSDB_LOCALDIR,
        ROCKSDB_MEMORY,
        ROCKSDB_WRITE_BUFFER_RATIO,
        ROCKSDB_DECODED,
    )
    for key in (option.key, *option.aliases)
)
"""Keys of the options that determine the backend."""


def backend_factory(configuration: ReadableConfig) -> KeyedStateBackendFactory:
    """Return the factory for the keyed-state backends that *configuration* chooses."""
    if configuration.get(STATE_BACKEND) == "hashmap":
        return HeapKeyedStateBackend
    directories = configuration.get(ROCKSDB_LOCALDIR)
    settings = DiskSettings(
        tuple(it.strip() for it in directories.split(",") if it.strip()) if directories else (),
        configuration.get(ROCKSDB_MEMORY),
        configuration.get(ROCKSDB_WRITE_BUFFER_RATIO),
        configuration.get(ROCKSDB_DECODED),
    )
    return partial(DiskKeyedStateBackend, settings=settings)
