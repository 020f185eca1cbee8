"""Tumbling and sliding event-time windows with their default trigger, the fast way.

No trigger is called: a window fires when the watermark passes its end, and at once for a late
record. The records of a block are combined by window and key before they go into the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.core.values import own, own_all
from flinkray.state.table import MISSING
from flinkray.streaming.errors import no_timestamps
from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.windowing.assigners import _TimeWindows
from flinkray.streaming.windowing.operator import WindowOperator, WindowSpec
from flinkray.streaming.windowing.triggers import EventTimeTrigger
from flinkray.streaming.windowing.window import TimeWindow

_Pane = tuple[TimeWindow, int, dict[Any, Any]]
"""(window, its greatest timestamp, contents from the current block by key)"""


def make_window_operator(spec: WindowSpec, keys: Keys) -> WindowOperator:
    """Return the operator for *spec*: a faster one for tumbling and sliding event-time windows with
    their default trigger, else a :class:`WindowOperator`."""
    if (
        isinstance(spec.assigner, _TimeWindows)
        and spec.assigner.is_aligned
        and spec.assigner.event_time
        and type(spec.trigger) is EventTimeTrigger
        and spec.evictor is None
    ):
        return AlignedWindowOperator(spec, keys)
    return WindowOperator(spec, keys)


class AlignedWindowOperator(WindowOperator):
    """Operator for tumbling and sliding event-time windows with their default trigger."""

    _may_have_fired = False
    """Whether windows in the state may have fired although their end is after the watermark. True
    after a restore with allowed lateness, because the watermark then begins anew."""

    def restore(self, states: Sequence[OperatorState], checkpoint_id: int | None = None) -> None:
        super().restore(states, checkpoint_id)
        self._may_have_fired = self.spec.allowed_lateness > 0

    def open(self) -> None:
        super().open()
        assert isinstance(self.spec.assigner, _TimeWindows)
        self._assigner = self.spec.assigner

    def process_block(self, block: Block) -> None:
        times = block.timestamps
        if times is None:
            raise no_timestamps("windows of event time need")
        keys = self.keys.of_block(block)
        self.results.begin(block.origin)
        contents, table = self.spec.contents, self.table
        add, begin = contents.folder(), self._begin
        self._add = contents.adder(table)
        slide, offset = self._assigner.slide, self._assigner.offset
        values = block.values
        several = self._assigner.size > slide and own_all(values) is not values
        by_start: dict[int, list[_Pane]] = {}
        entries_of: dict[TimeWindow, dict[Any, Any]] = {}
        watermark = self.timers.current_watermark
        late = []
        for place, (value, key, timestamp) in enumerate(
            zip(self.read(block), keys, times, strict=True)
        ):
            start = timestamp - (timestamp - offset) % slide
            panes = by_start.get(start)
            if panes is None:
                panes = [
                    (window, window.end - 1, entries_of.setdefault(window, {}))
                    for window in self._assigner.windows_of(timestamp)
                ]
                # If the size is no multiple of the slide, the windows of a record do not only
                # depend on the start of its pane.
                if self._assigner.size % slide == 0:
                    by_start[start] = panes
            in_time = False
            for window, last, entries in panes:
                if last <= watermark:
                    if not self.is_late(window):
                        in_time = True
                        self._add_late(own(value) if several else value, key, timestamp, window)
                    continue
                in_time = True
                if key in entries:
                    entries[key] = add(value, entries[key])
                else:
                    entries[key] = begin(key, window, value)
                if several:
                    value = own(value)  # each window needs its own copy
            if not in_time and (panes or self.would_be_late(timestamp)):
                late.append(place)
        for window, entries in entries_of.items():
            contents.store(table, window, entries)
        if late:
            self.put_aside(block, late)
        self.results.flush()

    def _begin(self, key: Any, window: TimeWindow, value: Any) -> Any:
        contents, table, place = self.spec.contents, self.table, (key, window)
        entry = contents.go_on(table, place, value)
        is_first = entry is MISSING
        if is_first or self._may_have_fired:
            self._register(key, window)
        if is_first:
            entry = contents.first(value)
        return entry

    def _register(self, key: Any, window: TimeWindow) -> None:
        self.backend.context.key = key
        end = window.end - 1
        self.timers.register_event_time_timer(window, end)
        cleanup = self.cleanup_time(window)
        if cleanup not in (end, MAX_TIMESTAMP):
            self.timers.register_event_time_timer(window, cleanup)

    def _add_late(self, value: Any, key: Any, timestamp: int, window: TimeWindow) -> None:
        self._add((key, window), value, timestamp)
        self.backend.context.key = key
        cleanup = self.cleanup_time(window)
        if cleanup != MAX_TIMESTAMP:
            self.timers.register_event_time_timer(window, cleanup)
        self.evaluate(key, window, window, False)

    def _on_timer(self, timestamp: int, key: Any, window: Any, event_time: bool) -> None:
        ends = timestamp == self.cleanup_time(window)
        if timestamp == window.end - 1:
            self.evaluate(key, window, window, ends)
        if ends:
            self.table.remove((key, window))
            self.spec.evaluation.clear(self.function_context.at(key, window))
