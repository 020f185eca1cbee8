"""Runs the tests of a module on every keyed backend: ``pytestmark = on_every_backend``."""

from __future__ import annotations

import os
from typing import Any

import pytest

from flinkray.state import HeapKeyedStateBackend, KeyedStateBackend
from flinkray.state.disk import DiskKeyedStateBackend, DiskSettings

_MEMORY = "/dev/shm"

SMALL = DiskSettings(
    directories=(_MEMORY,) if os.access(_MEMORY, os.W_OK) else (),
    memory_bytes=1 << 20,
    cache_bytes=20_000,
    timers_in_memory=2,
)
"""So little room that nearly everything is on the disk (which is none where that is possible: what
a test waits for there is the creation of files)."""

_chosen = "heap"


def make_backend(*args: Any, kind: str | None = None, **options: Any) -> KeyedStateBackend:
    """A backend of the kind that the test is about."""
    if (kind or _chosen) == "disk":
        return DiskKeyedStateBackend(*args, **{**options, "settings": SMALL})
    return HeapKeyedStateBackend(*args, **options)


def choose(kind: str) -> None:
    """What :func:`make_backend` makes from now on."""
    global _chosen
    _chosen = kind


def small_disk_backend(
    max_parallelism: int, key_groups: Any, now: Any, schedule: Any, hash_of: Any
) -> KeyedStateBackend:
    """What makes backends of operators."""
    return DiskKeyedStateBackend(max_parallelism, key_groups, now, schedule, hash_of, SMALL)


on_every_backend = pytest.mark.usefixtures("backend_kind")
