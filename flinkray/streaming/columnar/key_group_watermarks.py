"""Watermarks by key group: up to where windows have ended.

All key groups of a subtask have its own.  After a restore with more or fewer subtasks they may have
come from several, whose watermarks differed, as a barrier had overtaken one on the way to some of
them: windows that have ended in some key groups are open in others.
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
"""The first and the last key group, and the watermark of those and all between them."""


class KeyGroupWatermarks:
    """Of one subtask.  Key groups of which nothing was stored have had none.

    Args:
        stored: of any subtasks.
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
        """Of all of them."""
        self.latest: int = int(self._watermarks.max())
        self._assign = KeyGroupAssigner(state.max_parallelism, state.hash_of)

    def advance(self, watermark: int) -> None:
        """The subtask's is here; later than the earliest."""
        self.earliest = watermark
        if watermark >= self.latest:
            self.latest = watermark
            self._watermarks[:] = watermark
        else:
            np.maximum(self._watermarks, watermark, out=self._watermarks)

    def are_before(
        self, time: int | npt.NDArray[np.int64], keys: Sequence[Any]
    ) -> npt.NDArray[np.bool_]:
        """Of which of these keys the watermark is before that time, or before each its own."""
        of_keys = self._watermarks[self._assign.of_all(keys) - self._groups.first]
        before: npt.NDArray[np.bool_] = of_keys < time
        return before

    def stored(self) -> list[Stored]:
        """To be stored: neighbours of one watermark together."""
        places = range(self._groups.first, self._groups.last + 1)
        found = []
        by_watermark = zip(self._watermarks.tolist(), places, strict=True)
        for watermark, groups in groupby(by_watermark, key=lambda each: each[0]):
            together = [group for _, group in groups]
            found.append((together[0], together[-1], watermark))
        return found
