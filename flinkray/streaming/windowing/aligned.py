"""Tumbling and sliding event-time windows with their default trigger, the fast way.

No trigger is called: a window fires when the watermark passes its end, and at once for a late
record. Records are combined by window and key before they go into the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from flinkray.kernels.rows import append_panes, fold_panes, own, own_all
from flinkray.state.table import MISSING, ListsInMemory
from flinkray.streaming.errors import no_timestamps
from flinkray.streaming.operators.operator import OperatorState, OperatorStateCapture
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.windowing.assigners import _TimeWindows
from flinkray.streaming.windowing.contents import ListContents
from flinkray.streaming.windowing.operator import WindowOperator, WindowSpec
from flinkray.streaming.windowing.triggers import EventTimeTrigger
from flinkray.streaming.windowing.window import TimeWindow

_MOST_COMBINED = 4096
"""Number of places (key and window) whose combined records are kept after a block."""


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
    """Operator for tumbling and sliding event-time windows with their default trigger.
    Records are combined by window and key in dictionaries, which go into the table before a
    watermark, a capture, or when they are many."""

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
        self.timers.fire_together = self._fire
        self._combined: dict[TimeWindow, dict[Any, Any]] = {}
        """By window and key: contents that are newer than those in the table."""
        self._panes: dict[int, Sequence[Any]] = {}
        """What :func:`fold_panes` or :func:`append_panes` needs, by the start of the pane."""
        self._appends = (
            type(self.spec.contents) is ListContents
            and not self.spec.allowed_lateness
            and self.table.in_memory is not None
        )
        """Whether records go into lists in memory at once."""

    def process_block(self, block: Block) -> None:
        times = block.timestamps
        if times is None:
            raise no_timestamps("windows of event time need")
        keys = self.keys.of_block(block)
        self.results.begin(block.origin)
        contents = self.spec.contents
        self._fold, self._add = contents.folder(), contents.adder(self.table)
        self._late: list[int] = []
        # Each window needs its own copy of a value that can change.
        self._copies = (
            self._assigner.size > self._assigner.slide and own_all(block.values) is not block.values
        )
        records = self.read(block)
        if self._appends:
            append_panes(records, keys, times, self._pane_of, self._add_singly)
        else:
            pane_of, add_singly = self._pane_of, self._add_singly
            fold_panes(records, keys, times, pane_of, add_singly, self._fold, self._begin)
        if sum(map(len, self._combined.values())) > _MOST_COMBINED:
            self._store()
        if self._late:
            self.put_aside(block, self._late)
        self.results.flush()

    def process_watermark(self, timestamp: int) -> None:
        self._store()
        super().process_watermark(timestamp)

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        self._store()
        return super().capture(checkpoint_id, since)

    def _store(self) -> None:
        """Put the combined records into the table."""
        combined, self._combined, self._panes = self._combined, {}, {}
        for window, entries in combined.items():
            self.spec.contents.store(self.table, window, entries)

    def _pane_of(self, timestamp: int) -> tuple[int, int, Sequence[Any] | None]:
        """Return the first time of the pane that contains *timestamp*, the end of the pane, and the
        windows that contain it. None in place of windows: :meth:`_add_singly` takes the record."""
        slide, watermark = self._assigner.slide, self.timers.current_watermark
        start = timestamp - (timestamp - self._assigner.offset) % slide
        panes = self._panes.get(start)
        if panes is None:
            windows = self._assigner.windows_of(timestamp)
            # If the size is no multiple of the slide, the windows of a record do not only depend on
            # the start of its pane.
            if (
                self._copies
                or self._assigner.size % slide
                or any(not watermark < window.end - 1 < MAX_TIMESTAMP for window in windows)
            ):
                return timestamp, timestamp, None
            panes = self._panes[start] = list(map(self._pane, windows))
        elif self._copies:
            return timestamp, timestamp, None
        return max(start, MIN_TIMESTAMP), min(start + slide, MAX_TIMESTAMP), panes

    def _pane(self, window: TimeWindow) -> Any:
        """Return what the kernel needs of one window."""
        if not self._appends:
            return window, self._combined.setdefault(window, {})
        timers = self.timers.event_time_timers_in_memory(window.end - 1)
        lists: ListsInMemory = self.table.in_memory
        return window, lists.entries, timers, lists.changed, lists.first_change

    def _add_singly(self, place: int, value: Any, key: Any, timestamp: int) -> None:
        """Add the record at *place* of the block to its windows, some of which may be late."""
        watermark = self.timers.current_watermark
        in_time = False
        windows = self._assigner.windows_of(timestamp)
        for window in windows:
            if window.end - 1 <= watermark:
                if not self.is_late(window):
                    in_time = True
                    self._add_late(own(value) if self._copies else value, key, timestamp, window)
                continue
            in_time = True
            if self._appends:
                if self._add((key, window), value, timestamp):
                    self._register(key, window)
            else:
                entries = self._combined.setdefault(window, {})
                if key in entries:
                    entries[key] = self._fold(value, entries[key])
                else:
                    entries[key] = self._begin(key, window, value)
            if self._copies:
                value = own(value)
        if not in_time and (windows or self.would_be_late(timestamp)):
            self._late.append(place)

    def _begin(self, key: Any, window: TimeWindow, value: Any) -> Any:
        """Return the contents of a place without combined records, with *value* added."""
        entry = self.spec.contents.go_on(self.table, (key, window), value)
        if entry is MISSING:
            self._register(key, window)
            return self.spec.contents.first(value)
        if self._may_have_fired:
            self._register(key, window)
        return entry

    def _register(self, key: Any, window: TimeWindow) -> None:
        self.key_context.key = key
        end = window.end - 1
        self.timers.register_event_time_timer(window, end)
        if self.spec.allowed_lateness:
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

    def _fire(self, timestamp: int, timers: Sequence[tuple[Any, Any]]) -> None:
        """Evaluate or remove the windows whose timers are at *timestamp*."""
        spec, table, at = self.spec, self.table, self.function_context.at_place
        own_key, evaluate = self.context.own, spec.evaluation.without_context()
        take = table.take if self._appends else partial(spec.contents.take, table)
        previous, end, ends = None, 0, False

        def fire(timer: tuple[Any, Any], _: None) -> Iterable[Any] | None:
            nonlocal previous, end, ends
            key, window = timer
            if window is not previous:
                previous, end = window, window.end - 1
                ends = timestamp == min(end + spec.allowed_lateness, MAX_TIMESTAMP)
            if timestamp == end:
                elements = take(timer) if ends else spec.contents.read(table, timer)
                if elements:
                    self._evaluated = timer
                    if evaluate is not None:
                        return evaluate(own_key(key), window, elements)
                    self.results.add(
                        spec.evaluation.results(own_key(key), at(timer), elements), end
                    )
            elif ends:
                table.remove(timer)
            if ends and evaluate is None:
                spec.evaluation.clear(at(timer))
            return None

        self.results.of_timers(fire, timers, self.key_context, timestamp)
        self._evaluated = None
