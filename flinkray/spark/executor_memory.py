"""Splits the memory of a slot into the heap and the overhead of a Spark executor.

The heap is ``spark.executor.memory``; on RayDP the executor's Ray actor also takes it from the
bundle. The overhead (``spark.executor.memoryOverhead``) is what the JVM needs beside its heap, and
the memory of the Python workers. Together they are exactly the memory of the slot's profile.
"""

from __future__ import annotations

import math

from flinkray.core.errors import ConfigurationError
from flinkray.core.resources import ResourceProfile, format_memory_size, parse_memory_size

MIB = 2**20

MINIMUM_HEAP = 512 * MIB
"""Least heap of an executor: Spark refuses less than 450 MiB (1.5 x its reserved 300 MiB)."""


def split_memory(profile: ResourceProfile, overhead: str | None = None) -> tuple[int, int]:
    """Return the bytes of heap and of overhead, whole MiB each, that make up a slot's memory.
    *overhead* None: Spark's own rule (10 %, at least 384 MiB), but at most a quarter of the slot.
    Raises ConfigurationError: no executor fits into the slot."""
    total = profile.memory // MIB * MIB
    if overhead is None:
        beside = min(max(total // 10, 384 * MIB), total // 4) // MIB * MIB
    else:
        beside = _overhead_size(overhead)
    heap = total - beside
    if heap < MINIMUM_HEAP:
        least = MINIMUM_HEAP + beside if overhead is not None else MINIMUM_HEAP * 4 // 3
        raise ConfigurationError(
            f"a slot of {profile} is too small for a Spark executor: its memory must be at least "
            f"{format_memory_size(least // MIB * MIB)} "
            f"({format_memory_size(MINIMUM_HEAP)} of heap, the rest for the JVM and Python workers)"
        )
    return heap, beside


def _overhead_size(text: str) -> int:
    """Return the bytes of ``spark.executor.memoryOverhead``, rounded up to whole MiB. Without a
    unit, *text* is in MiB."""
    try:
        size = parse_memory_size(f"{text}m" if text.strip().isdigit() else text)
    except ValueError as error:
        raise ConfigurationError(f"spark.executor.memoryOverhead is {error}") from None
    return math.ceil(size / MIB) * MIB
