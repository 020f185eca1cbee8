"""Windows: groups of records that are evaluated together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from flinkray.streaming.records.elements import MAX_TIMESTAMP


class Window(Protocol):
    """The interface of all windows. Windows are values: equal windows are the same window. They are
    tuples, because a window is hashed for every record."""

    def max_timestamp(self) -> int:
        """Return the latest timestamp in the window, which is also the timestamp of its results."""


W = TypeVar("W")


class MergeCallback(ABC, Generic[W]):
    """Interface that a window assigner calls when windows merge: ``merge`` gets these windows and
    the window into which they merge."""

    @abstractmethod
    def merge(self, to_be_merged: Iterable[W], merge_result: W) -> None: ...


class TimeWindow(NamedTuple):
    """A window from *start* up to but not including *end*, in milliseconds."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Return the last millisecond before the end."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether the two windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both windows."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the window that contains *timestamp*, of windows of *window_size*
        that are aligned to the epoch plus *offset*."""
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: MergeCallback[TimeWindow]) -> None:
        """Call *callback* for each group of several windows that overlap or touch."""
        for merged, members in merged_groups(windows):
            if len(members) > 1:
                callback.merge(members, merged)

    def __repr__(self) -> str:
        return f"TimeWindow(start={self.start}, end={self.end})"


class CountWindow(NamedTuple):
    """The window of a fixed number of a key's records; *id*: number of the window."""

    id: int

    def max_timestamp(self) -> int:
        """Return the greatest timestamp: the window never ends."""
        return MAX_TIMESTAMP

    def __repr__(self) -> str:
        return f"CountWindow(id={self.id})"


class GlobalWindow(NamedTuple):
    """The only window of global windows, which contains all records of a key."""

    id: int = 0

    @staticmethod
    def get() -> GlobalWindow:
        return GLOBAL_WINDOW

    def max_timestamp(self) -> int:
        """Return the greatest timestamp: the window never ends."""
        return MAX_TIMESTAMP

    def __repr__(self) -> str:
        return "GlobalWindow"


GLOBAL_WINDOW = GlobalWindow()


def merged_groups(windows: Iterable[TimeWindow]) -> list[tuple[TimeWindow, list[TimeWindow]]]:
    """Return (merged window, its members) for each group of windows that overlap or touch.
    A window that overlaps and touches no other is a group of its own."""
    groups: list[tuple[TimeWindow, list[TimeWindow]]] = []
    for window in sorted(windows):
        if groups and groups[-1][0].intersects(window):
            merged, members = groups[-1]
            groups[-1] = (merged.cover(window), [*members, window])
        else:
            groups.append((window, [window]))
    return groups
