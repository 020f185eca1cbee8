"""Key groups: into how many parts keyed state is divided, and which subtask has which of them.

The arithmetic is Flink's (KeyGroupRangeAssignment); which group a key is in says
:mod:`flinkray.state.keys`.
"""

from __future__ import annotations

from typing import NamedTuple

UPPER_BOUND_MAX_PARALLELISM = 1 << 15
"""Most key groups a job can have."""


def owner_of(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """The subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


class KeyGroupRange(NamedTuple):
    """Key groups ``first`` to ``last``, both included."""

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
        """The key groups of both; :data:`NO_KEY_GROUPS` if there are none."""
        common = KeyGroupRange(max(self.first, other.first), min(self.last, other.last))
        return NO_KEY_GROUPS if common.is_empty else common


NO_KEY_GROUPS = KeyGroupRange(0, -1)


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """The key groups of a subtask.

    Raises:
        ValueError: more subtasks than key groups, or more key groups than there may be.
    """
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
    """What a vertex gets that configures none: room for half as many subtasks again, as a power
    of two."""
    wanted = parallelism + parallelism // 2
    power = 1 << max(wanted - 1, 0).bit_length()
    return min(max(power, 128), UPPER_BOUND_MAX_PARALLELISM)
