"""Divides keyed state into key groups, and assigns key groups to subtasks.

The arithmetic is Flink's (KeyGroupRangeAssignment).
"""

from __future__ import annotations

from typing import NamedTuple

UPPER_BOUND_MAX_PARALLELISM = 1 << 15
"""Largest number of key groups of a job."""


def owner_of(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the index of the subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


class KeyGroupRange(NamedTuple):
    """A range of key groups, from ``first`` to ``last`` inclusive."""

    first: int
    last: int

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.first <= key_group <= self.last

    def __str__(self) -> str:
        return f"[{self.first}, {self.last}]"

    @property
    def is_empty(self) -> bool:
        return self.first > self.last

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups in both ranges; :data:`NO_KEY_GROUPS` if there are none."""
        common = KeyGroupRange(max(self.first, other.first), min(self.last, other.last))
        return NO_KEY_GROUPS if common.is_empty else common


NO_KEY_GROUPS = KeyGroupRange(0, -1)


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """Return the key groups of a subtask.
    Raises ValueError: there are more subtasks than key groups, or too many key groups."""
    if not 0 < parallelism <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ValueError(
            f"parallelism {parallelism} and max parallelism {max_parallelism} do not fit: "
            f"1 <= parallelism <= max parallelism <= {UPPER_BOUND_MAX_PARALLELISM}"
        )
    return KeyGroupRange(
        (subtask * max_parallelism + parallelism - 1) // parallelism,
        ((subtask + 1) * max_parallelism - 1) // parallelism,
    )


def default_max_parallelism(parallelism: int) -> int:
    """Return the max parallelism of a vertex that configures none.
    It is 1.5 times the parallelism, rounded up to a power of two, and at least 128."""
    wanted = parallelism + parallelism // 2
    power = 1 << max(wanted - 1, 0).bit_length()
    return min(max(power, 128), UPPER_BOUND_MAX_PARALLELISM)
