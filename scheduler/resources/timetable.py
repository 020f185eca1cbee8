"""Points in time at which something is due."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush


class Timetable:
    """At most one deadline per key; every change takes logarithmic time."""

    def __init__(self) -> None:
        self._due: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        """With entries that have been changed or removed since."""
        self._next_number = 0

    def set(self, key: Hashable, due: float) -> None:
        """Replaces an earlier deadline of the key."""
        self._due[key] = due
        self._next_number += 1
        heappush(self._heap, (due, self._next_number, key))
        if len(self._heap) > 64 + 4 * len(self._due):
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapify(self._heap)

    def remove(self, key: Hashable) -> None:
        """Idempotent."""
        self._due.pop(key, None)

    def pop_due(self, now: float) -> list[Hashable]:
        """The keys whose time has come, in the order of time; they have no deadline any more."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heappop(self._heap)
            if self._due.get(key) == when:
                del self._due[key]
                due.append(key)
        return due

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap:
            when, _, key = self._heap[0]
            if self._due.get(key) == when:
                return when
            heappop(self._heap)
        return None
