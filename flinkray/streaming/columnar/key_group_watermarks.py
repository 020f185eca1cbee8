"""Watermarks by key group: the time up to which windows have ended.

Usually all key groups of a subtask have the subtask's watermark. After a restore with more or fewer
subtasks, its key groups may come from several subtasks. Their watermarks may differ, because a
barrier had overtaken a watermark on the way to some of them. Then a window that has ended in some
key groups is still open in other key groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.backend import KeyedStateBackend
from flinkray.state.keys import KeyGroupAssigner
from flinkray.streaming.records.elements import MIN_TIMESTAMP

Stored = tuple[int, int, int]
"""(first key group, last key group, watermark of the key groups from first to last)"""


class KeyGroupWatermarks:
    """Keeps the watermark of each of a subtask's key groups.

    Args:
        stored: results of :meth:`stored` of any subtasks, from which the watermarks are restored.
            A key group that is not in them begins with the least time.
    """

    def __init__(self, state: KeyedStateBackend, stored: Iterable[Stored]) -> None:
        self._groups = state.key_groups
        first, last = self._groups
        self._watermarks = np.full(last - first + 1, MIN_TIMESTAMP, np.int64)
        for begin, end, watermark in stored:
            common = self._groups.intersection(KeyGroupRange(begin, end))
            if not common.is_empty:
                self._watermarks[common.first - first : common.last - first + 1] = watermark
        self.earliest: int = int(self._watermarks.min())
        """The earliest watermark of all key groups."""
        self.latest: int = int(self._watermarks.max())
        self._assign = KeyGroupAssigner(state.max_parallelism, state.hash_of)

    def advance(self, watermark: int) -> None:
        """Advance to the subtask's watermark, which must be later than the earliest one."""
        self.earliest = watermark
        if watermark >= self.latest:
            self.latest = watermark
            self._watermarks[:] = watermark
        else:
            np.maximum(self._watermarks, watermark, out=self._watermarks)

    def are_before(
        self, time: int | npt.NDArray[np.int64], keys: Sequence[Any]
    ) -> npt.NDArray[np.bool_]:
        """Return, for each key, whether the watermark of the key's group is before *time*.
        *time*: a single time for all keys, or an array with a time for each key."""
        of_keys = self._watermarks[self._assign.of_all(keys) - self._groups.first]
        before: npt.NDArray[np.bool_] = of_keys < time
        return before

    def stored(self) -> list[Stored]:
        """Return the watermarks to store.
        Neighbouring key groups with equal watermarks share an entry."""
        places = range(self._groups.first, self._groups.last + 1)
        found = []
        by_watermark = zip(self._watermarks.tolist(), places, strict=True)
        for watermark, groups in groupby(by_watermark, key=lambda each: each[0]):
            together = [group for _, group in groups]
            found.append((together[0], together[-1], watermark))
        return found
