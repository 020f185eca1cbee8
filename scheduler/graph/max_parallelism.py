"""Maximum parallelism: the number of key groups of a vertex, fixed for the life of its state."""

from __future__ import annotations

LOWER_BOUND = 1
UPPER_BOUND = 1 << 15

_DEFAULT_LOWER_BOUND = 128


def default_max_parallelism(parallelism: int) -> int:
    """What a vertex gets that configures none: room for half as many subtasks again, as a power
    of two (Flink's KeyGroupRangeAssignment)."""
    wanted = parallelism + parallelism // 2
    power = 1 << (wanted - 1).bit_length()
    return min(max(power, _DEFAULT_LOWER_BOUND), UPPER_BOUND)
