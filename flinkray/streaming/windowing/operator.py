"""The window operator: any assigner, trigger and evictor, record at a time.

Tumbling and sliding windows of event time with their own trigger take the shorter way of
:mod:`flinkray.streaming.windowing.aligned`, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from flinkray.state.descriptors import MapStateDescriptor
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.operator import OperatorState, StreamOperator
from flinkray.streaming.operators.process import TimerResults
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.time.timers import InternalTimerService
from flinkray.streaming.windowing.assigners import MergingWindowAssigner, WindowAssigner
from flinkray.streaming.windowing.contents import PassOn, WindowContents, WindowEvaluation
from flinkray.streaming.windowing.contexts import (
    AssignerContext,
    FunctionContext,
    WindowTriggerContext,
)
from flinkray.streaming.windowing.evictors import Evictor
from flinkray.streaming.windowing.merging import MergingWindowSet
from flinkray.streaming.windowing.triggers import Trigger, TriggerResult

_IN_FLIGHT: MapStateDescriptor[Any, Any] = MapStateDescriptor("windows-in-flight")


@dataclass
class WindowSpec:
    """What was asked for on a windowed stream."""

    assigner: WindowAssigner
    trigger: Trigger
    contents: WindowContents
    evaluation: WindowEvaluation = field(default_factory=PassOn)
    evictor: Evictor | None = None
    allowed_lateness: int = 0
    late_tag: OutputTag[Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.assigner, MergingWindowAssigner) and not self.trigger.can_merge():
            raise StreamError(
                f"{type(self.trigger).__name__} cannot be used with windows that merge "
                f"({type(self.assigner).__name__})"
            )


class WindowOperator(StreamOperator):
    """Results carry the latest timestamp of their window and come before the watermark that
    fired them."""

    def __init__(self, spec: WindowSpec, keys: Keys) -> None:
        self.spec = spec
        self.keys = keys

    # --- life ---------------------------------------------------------------------------------

    def setup(self, context: Any, output: Any) -> None:
        super().setup(context, output)
        assert self.keyed_state is not None
        self.backend = self.keyed_state
        self.timers = InternalTimerService(
            context.time_service,
            self.backend.context,
            self._on_event_time,
            self._on_processing_time,
        )
        self._assigner_context = AssignerContext(self.timers, self.runtime_context())
        self._trigger_context = WindowTriggerContext(self.timers, self.backend, context.metrics)
        self.function_context = FunctionContext(self.timers, self.backend)
        self.results = TimerResults()
        self.number_late_records_dropped = context.metrics.counter("numLateRecordsDropped")

    def open(self) -> None:
        self.table = self.backend.namespaced_entries(self.spec.contents.descriptor)
        self._in_flight: dict[Any, dict[Any, Any]] = self.backend.entries(_IN_FLIGHT)
        self._merging = isinstance(self.spec.assigner, MergingWindowAssigner)
        self._event_time = self.spec.assigner.is_event_time()
        function = self.spec.evaluation.function
        if hasattr(function, "open"):
            function.open(self.runtime_context())

    def close(self) -> None:
        function = self.spec.evaluation.function
        if hasattr(function, "close"):
            function.close()

    def snapshot(self, checkpoint_id: int) -> OperatorState:
        state = super().snapshot(checkpoint_id)
        return OperatorState(
            state.keyed, state.operator, self.timers.snapshot(self.context.max_parallelism)
        )

    def restore(self, states: Sequence[OperatorState]) -> None:
        super().restore(states)
        for state in states:
            if state.timers is not None:
                self.timers.restore(dict(state.timers), self.backend.key_groups)

    # --- records ------------------------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        keys = self.keys.of_block(block)
        records = iter(block.values)
        context = self.backend.context
        times = block.timestamps
        late: list[int] = []
        one = self._merge_in if self._merging else self._put_in
        for place, (value, context.key, timestamp) in enumerate(
            zip(records, keys, times if times is not None else repeat(None), strict=False)
        ):
            if one(value, context.key, timestamp):
                late.append(place)
        if late:
            self.put_aside(block, late)
        self.flush()

    def put_aside(self, block: Block, late: Sequence[int]) -> None:
        """Late records go to their side output, or are counted."""
        tag = self.spec.late_tag
        if tag is None:
            self.number_late_records_dropped.inc(len(late))
            return
        values = [block.values[place] for place in late]
        times = block.timestamps
        timestamps = None if times is None else [times[place] for place in late]
        self.output.emit_side(tag, Block(values, timestamps, None, block.origin))

    def _windows_of(self, value: Any, timestamp: int | None) -> Any:
        return self.spec.assigner.assign_windows(
            value, MIN_TIMESTAMP if timestamp is None else timestamp, self._assigner_context
        )

    def _put_in(self, value: Any, key: Any, timestamp: int | None) -> bool:
        """Put a record into its windows; True if it came too late for all of them."""
        windows = self._windows_of(value, timestamp)
        in_time = False
        for window in windows:
            if self.is_late(window):
                continue
            in_time = True
            self._add((key, window), value, timestamp)
            self._act(self._on_element(value, key, timestamp, window), key, window, window)
            self._register_cleanup(window)
        return bool(windows) and not in_time

    def _merge_in(self, value: Any, key: Any, timestamp: int | None) -> bool:
        windows = self._windows_of(value, timestamp)
        in_time = False
        merging = self._windows_in_flight(key)
        for window in windows:
            actual = merging.add(
                window,
                lambda result, merged, target, sources: self._on_merge(
                    key, result, merged, target, sources
                ),
            )
            if self.is_late(actual):
                merging.retire(actual)
                continue
            in_time = True
            state_window = merging.state_window(actual)
            self._add((key, state_window), value, timestamp)
            self._act(self._on_element(value, key, timestamp, actual), key, actual, state_window)
            self._register_cleanup(actual)
        if not merging.mapping:
            self._in_flight.pop(key, None)
        return bool(windows) and not in_time

    def _windows_in_flight(self, key: Any) -> MergingWindowSet:
        assert isinstance(self.spec.assigner, MergingWindowAssigner)
        mapping = self._in_flight.setdefault(key, {})
        return MergingWindowSet(self.spec.assigner, mapping)

    def _on_merge(
        self, key: Any, result: Any, merged: list[Any], target: Any, sources: list[Any]
    ) -> None:
        now = self.timers.current_processing_time()
        ended = self.is_late(result) if self._event_time else result.max_timestamp() <= now
        if ended:
            raise StreamError(
                f"the merged window {result} has ended already: merging must not make a window "
                "end earlier"
            )
        self.spec.trigger.on_merge(result, self._trigger_context.at(key, result, merged))
        for window in merged:
            if window != result:
                self.spec.trigger.clear(window, self._trigger_context.at(key, window))
                self._delete_cleanup(window)
        self.backend.merge_namespaces(self.spec.contents.descriptor, key, target, sources)

    def _add(self, place: tuple[Any, Any], value: Any, timestamp: int | None) -> None:
        entry = self.table.get(place, NOTHING)
        contents = self.spec.contents
        self.table[place] = (
            contents.first(value, timestamp)
            if entry is NOTHING
            else contents.add(entry, value, timestamp)
        )

    def _on_element(
        self, value: Any, key: Any, timestamp: int | None, window: Any
    ) -> TriggerResult:
        time = MIN_TIMESTAMP if timestamp is None else timestamp
        return self.spec.trigger.on_element(
            value, time, window, self._trigger_context.at(key, window)
        )

    def _act(self, result: TriggerResult, key: Any, window: Any, state_window: Any) -> None:
        if result is TriggerResult.CONTINUE:
            return
        if result.is_fire():
            self.evaluate(key, window, state_window)
        if result.is_purge():
            self.table.pop((key, state_window), None)

    def evaluate(self, key: Any, window: Any, state_window: Any) -> None:
        """Collect the results of a window, if it has contents."""
        entry = self.table.get((key, state_window), NOTHING)
        if entry is NOTHING:
            return
        spec = self.spec
        if spec.evictor is not None:
            entry = spec.evictor.evict_before(list(entry), window)
        elements = spec.contents.elements(entry)
        results = spec.evaluation.results(key, self.function_context.at(key, window), elements)
        self.results.add(results, window.max_timestamp())
        if spec.evictor is not None:
            remaining = spec.evictor.evict_after(list(entry), window)
            if remaining:
                self.table[key, state_window] = remaining
            else:
                self.table.pop((key, state_window), None)

    # --- time ---------------------------------------------------------------------------------

    def is_late(self, window: Any) -> bool:
        """Whether the window was cleaned up already."""
        return self._event_time and self.cleanup_time(window) <= self.timers.current_watermark

    def cleanup_time(self, window: Any) -> int:
        """When a window goes; windows of processing time have no lateness."""
        end: int = window.max_timestamp()
        if not self._event_time:
            return end
        return min(end + self.spec.allowed_lateness, MAX_TIMESTAMP)

    def _register_cleanup(self, window: Any) -> None:
        cleanup = self.cleanup_time(window)
        if cleanup == MAX_TIMESTAMP:
            return  # never: the window goes when it is purged
        if self._event_time:
            self.timers.register_event_time_timer(window, cleanup)
        else:
            self.timers.register_processing_time_timer(window, cleanup)

    def _delete_cleanup(self, window: Any) -> None:
        cleanup = self.cleanup_time(window)
        if self._event_time:
            self.timers.delete_event_time_timer(window, cleanup)
        else:
            self.timers.delete_processing_time_timer(window, cleanup)

    def _on_event_time(self, timestamp: int, key: Any, window: Any) -> None:
        self._on_timer(timestamp, key, window, True)

    def _on_processing_time(self, timestamp: int, key: Any, window: Any) -> None:
        self._on_timer(timestamp, key, window, False)
        self.flush()

    def _on_timer(self, timestamp: int, key: Any, window: Any, event_time: bool) -> None:
        state_window = window
        if self._merging:
            in_flight = self._in_flight.get(key, {})
            if window not in in_flight:
                return  # a timer of a window that was merged into another
            state_window = in_flight[window]
        trigger, context = self.spec.trigger, self._trigger_context.at(key, window)
        if event_time:
            result = trigger.on_event_time(timestamp, window, context)
        else:
            result = trigger.on_processing_time(timestamp, window, context)
        self._act(result, key, window, state_window)
        if event_time == self._event_time and timestamp == self.cleanup_time(window):
            self._clear(key, window, state_window)

    def _clear(self, key: Any, window: Any, state_window: Any) -> None:
        self.table.pop((key, state_window), None)
        self.spec.trigger.clear(window, self._trigger_context.at(key, window))
        self.spec.evaluation.clear(self.function_context.at(key, window))
        if self._merging:
            merging = self._windows_in_flight(key)
            merging.retire(window)
            if not merging.mapping:
                del self._in_flight[key]

    def flush(self) -> None:
        """Put out the results that were collected."""
        values, times = self.results.take()
        self.output.emit_results(values, times)

    def process_watermark(self, timestamp: int) -> None:
        self.timers.advance_watermark(timestamp)
        self.flush()
        self.output.emit_watermark(timestamp)


class _Nothing:
    __slots__ = ()


NOTHING: Any = _Nothing()
