"""Which windows of a key were merged, and where their contents are kept.

Contents do not move when windows merge: each window in flight has a *state window*, the first of
those that became it, under which its contents stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flinkray.streaming.windowing.assigners import MergingWindowAssigner
from flinkray.streaming.windowing.window import MergeCallback

OnMerge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Called with the merged window, the windows that were merged, the state window of the result, and
the state windows whose contents go into that one."""


class _Collected(MergeCallback[Any]):
    def __init__(self) -> None:
        self.merges: list[tuple[Any, list[Any]]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.merges.append((merge_result, list(to_be_merged)))


class MergingWindowSet:
    """The windows of one key.

    Args:
        mapping: window -> state window; changed in place, and kept as the key's state.
    """

    def __init__(self, assigner: MergingWindowAssigner, mapping: dict[Any, Any]) -> None:
        self._assigner = assigner
        self.mapping = mapping

    def state_window(self, window: Any) -> Any:
        """Where the contents of *window* are; None if it is not in flight."""
        return self.mapping.get(window)

    def retire(self, window: Any) -> None:
        """The window is done."""
        self.mapping.pop(window, None)

    def add(self, window: Any, on_merge: OnMerge) -> Any:
        """Add a window; the one it became a part of, or itself."""
        mapping = self.mapping
        collected = _Collected()
        self._assigner.merge_windows(dict.fromkeys([*mapping, window]), collected)
        result, merged_new = window, False
        for merge_result, members in collected.merges:
            old = list(members)
            if window in old:
                # It has no contents yet, unless it is in flight already.
                old.remove(window)
                merged_new = True
                result = merge_result
                if window in mapping:
                    old.append(window)
            old = [member for member in old if member in mapping]
            if not old:
                continue
            state_window = mapping[old[0]]
            sources = [mapping.pop(member) for member in old]
            mapping[merge_result] = state_window
            sources.remove(state_window)
            if old != [merge_result]:
                on_merge(merge_result, old, state_window, sources)
        if not merged_new and result == window:
            mapping.setdefault(window, window)
        return result
