"""Tumbling and sliding windows of event time under their default trigger, the short way.

No trigger is asked: a window fires when the watermark passes its end, and for late records at
once.  That leaves a division, two look-ups and the aggregation for each record and window.
"""

from __future__ import annotations

from typing import Any

from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.windowing.assigners import _TimeWindows
from flinkray.streaming.windowing.operator import NOTHING, WindowOperator, WindowSpec
from flinkray.streaming.windowing.triggers import EventTimeTrigger
from flinkray.streaming.windowing.window import TimeWindow


def make_window_operator(spec: WindowSpec, keys: Keys) -> WindowOperator:
    """The fastest operator that does what *spec* says."""
    if (
        isinstance(spec.assigner, _TimeWindows)
        and spec.assigner.event_time
        and type(spec.trigger) is EventTimeTrigger
        and spec.evictor is None
    ):
        return AlignedWindowOperator(spec, keys)
    return WindowOperator(spec, keys)


class AlignedWindowOperator(WindowOperator):
    """See the module."""

    def open(self) -> None:
        super().open()
        assert isinstance(self.spec.assigner, _TimeWindows)
        self._assigner = self.spec.assigner
        self._by_start: dict[int, list[TimeWindow]] = {}

    def process_block(self, block: Block) -> None:
        times = block.timestamps
        if times is None:
            raise StreamError(
                "the records have no timestamps, which windows of event time need: call "
                "assign_timestamps_and_watermarks before window"
            )
        keys = self.keys.of_block(block)
        records = iter(block.values)
        table, contents = self.table, self.spec.contents
        add, first, get = contents.add, contents.first, self.table.get
        slide, offset = self._assigner.slide, self._assigner.offset
        by_start = self._by_start
        watermark = self.timers.current_watermark
        late = []
        for place, (value, key, timestamp) in enumerate(zip(records, keys, times, strict=True)):
            start = timestamp - (timestamp - offset) % slide
            windows = by_start.get(start)
            if windows is None:
                # What sliding windows of a size that is no multiple of the slide a record belongs
                # to depends on more than the start of its pane.
                windows = self._assigner.windows_of(timestamp)
                if self._assigner.size % slide == 0:
                    by_start[start] = windows
            in_time = False
            for window in windows:
                if window.end - 1 <= watermark:
                    if not self.is_late(window):
                        in_time = True
                        self._add_late(value, key, timestamp, window)
                    continue
                in_time = True
                entry = get((key, window), NOTHING)
                if entry is NOTHING:
                    table[key, window] = first(value, timestamp)
                    self._register(key, window)
                else:
                    table[key, window] = add(entry, value, timestamp)
            if windows and not in_time:
                late.append(place)
        if late:
            self.put_aside(block, late)
        self.flush()

    def _register(self, key: Any, window: TimeWindow) -> None:
        self.backend.context.key = key
        end = window.end - 1
        self.timers.register_event_time_timer(window, end)
        cleanup = self.cleanup_time(window)
        if cleanup not in (end, MAX_TIMESTAMP):
            self.timers.register_event_time_timer(window, cleanup)

    def _add_late(self, value: Any, key: Any, timestamp: int, window: TimeWindow) -> None:
        """The window has fired already and is kept for late records."""
        self._add((key, window), value, timestamp)
        self.backend.context.key = key
        cleanup = self.cleanup_time(window)
        if cleanup != MAX_TIMESTAMP:
            self.timers.register_event_time_timer(window, cleanup)
        self.evaluate(key, window, window)

    def _on_timer(self, timestamp: int, key: Any, window: Any, event_time: bool) -> None:
        if timestamp == window.end - 1:
            self.evaluate(key, window, window)
        if timestamp == self.cleanup_time(window):
            self.table.pop((key, window), None)
            self.spec.evaluation.clear(self.function_context.at(key, window))

    def process_watermark(self, timestamp: int) -> None:
        self._by_start.clear()
        super().process_watermark(timestamp)
