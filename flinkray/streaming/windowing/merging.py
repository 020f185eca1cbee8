"""The windows of a key that were merged, and the windows under which their contents are stored.

Each window in flight has a *state window*: the first of the windows that were merged into it. The
contents are stored under the state window, so a merge does not move the contents of this window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flinkray.state.table import MapTable
from flinkray.streaming.windowing.assigners import MergingWindowAssigner
from flinkray.streaming.windowing.window import MergeCallback

OnMerge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Called with the merged window, the windows that were merged, the state window of the result, and
the other state windows, whose contents have to be added to those of that state window."""


class _Collected(MergeCallback[Any]):
    def __init__(self) -> None:
        self.merges: list[tuple[Any, list[Any]]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.merges.append((merge_result, list(to_be_merged)))


class MergingWindowSet:
    """The windows in flight of one key. *table*: for each key, window -> state window."""

    def __init__(self, assigner: MergingWindowAssigner, table: MapTable, key: Any) -> None:
        self._assigner = assigner
        self._table = table
        self._key = key

    def state_window(self, window: Any) -> Any:
        """Return the state window of *window*; None if *window* is not in flight."""
        return self._table.get(self._key, window)

    def retire(self, window: Any) -> None:
        """Remove a window that has ended."""
        self._table.remove_entry(self._key, window)

    def add(self, window: Any, on_merge: OnMerge) -> Any:
        """Add a window and merge it with others. Returns the merged window that contains it, or the
        window itself if nothing was merged."""
        table, key = self._table, self._key
        in_flight = [known for known, _ in table.items(key)]
        collected = _Collected()
        self._assigner.merge_windows(dict.fromkeys([*in_flight, window]), collected)
        result, merged_new = window, False
        for merge_result, members in collected.merges:
            old = list(members)
            if window in old:
                # The window has no contents yet, unless it was in flight already.
                old.remove(window)
                merged_new = True
                result = merge_result
                if table.contains(key, window):
                    old.append(window)
            old = [member for member in old if table.contains(key, member)]
            if not old:
                continue
            sources = [table.get(key, member) for member in old]
            state_window = sources.pop(0)
            for member in old:
                table.remove_entry(key, member)
            table.put(key, merge_result, state_window)
            if old != [merge_result]:
                on_merge(merge_result, old, state_window, sources)
        if not merged_new and result == window and not table.contains(key, window):
            table.put(key, window, window)
        return result
