"""The window operator, record by record: merging of windows, and contexts for user code.

Tumbling and sliding event-time windows with their default trigger use the faster operator of
:mod:`flinkray.streaming.windowing.aligned`, with the same results.

Each window in flight has a *state window*: the first of the windows that were merged into it. The
contents are stored under the state window, so a merge does not move the contents of this window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from flinkray.core.values import IMMUTABLE
from flinkray.kernels.rows import own, own_all
from flinkray.state.backend import KeyedStateBackend
from flinkray.state.descriptors import (
    MapStateDescriptor,
    StateDescriptor,
)
from flinkray.state.key_group_assignment import KeyHash
from flinkray.state.table import KeyContext, MapTable
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.functions.functions import WindowContext
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.runtime_context import (
    KeyedStateStore,
    RuntimeContext,
    typed_state,
)
from flinkray.streaming.operators.operator import OperatorContext, Output
from flinkray.streaming.operators.process import WithTimers
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.time.given_times import timer_time
from flinkray.streaming.time.timers import InternalTimerService
from flinkray.streaming.windowing.assigners import (
    MergingWindowAssigner,
    WindowAssigner,
    WindowAssignerContext,
)
from flinkray.streaming.windowing.contents import PassOn, WindowContents, WindowEvaluation
from flinkray.streaming.windowing.evictors import Evictor
from flinkray.streaming.windowing.triggers import OnMergeContext, Trigger, TriggerResult
from flinkray.streaming.windowing.window import MergeCallback

_IN_FLIGHT: MapStateDescriptor[Any, Any] = MapStateDescriptor("windows-in-flight")


@dataclass
class WindowSpec:
    """Describes a windowed stream: its assigner, trigger, functions and options."""

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


class WindowOperator(WithTimers):
    """Assigns records to windows and evaluates the windows. Results carry the latest timestamp of
    their window and come before the watermark that fires the window."""

    def __init__(self, spec: WindowSpec, keys: Keys) -> None:
        self.spec = spec
        self.keys = keys
        self._opened = False

    @property
    def selectors(self) -> Sequence[Any]:
        return self.keys.functions

    def key_hash(self) -> KeyHash:
        return self.keys.hash_of

    # --- life ---------------------------------------------------------------------------------

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        assert self.keyed_state is not None
        self.backend = self.keyed_state
        self._assigner_context = AssignerContext(self.timers, self.runtime_context())
        self._trigger_context = WindowTriggerContext(self.timers, self.backend, context.metrics)
        self._merging = isinstance(self.spec.assigner, MergingWindowAssigner)
        self.function_context = FunctionContext(self.timers, self.backend, merges=self._merging)
        self._evaluated: tuple[Any, Any] | None = None
        """(key, window) of the window function that is running, for error messages."""
        self.number_late_records_dropped = context.metrics.counter("numLateRecordsDropped")

    def open(self) -> None:
        self.table = self.spec.contents.table(self.backend)
        self._in_flight = self.backend.map_table(_IN_FLIGHT)
        self._event_time = self.spec.assigner.is_event_time()
        function = self.spec.evaluation.function
        if hasattr(function, "open"):
            self._opened = True
            function.open(self.runtime_context())

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self.spec.evaluation.function.close()

    def describe_occasion(self) -> str:
        if self._evaluated is None:
            return ""
        key, window = self._evaluated
        return f"window {window!r} of key {text_of(key)}"

    # --- records ------------------------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        keys = self.keys.of_block(block)
        context = self.key_context
        times = block.timestamps
        late: list[int] = []
        self._add = self.spec.contents.adder(self.table)
        one = self._merge_in if self._merging else self._put_in
        self.results.begin(block.origin)
        for place, (value, context.key, timestamp) in enumerate(
            zip(self.read(block), keys, times if times is not None else repeat(None), strict=False)
        ):
            if one(value, context.key, timestamp):
                late.append(place)
        if late:
            self.put_aside(block, late)
        self.results.flush()

    def put_aside(self, block: Block, late: Sequence[int]) -> None:
        """Put the records of *block* at the indices *late* out to the side output for late records.
        Without this output, only count them."""
        tag = self.spec.late_tag
        if tag is None:
            self.number_late_records_dropped.inc(len(late))
        else:
            self.output.emit_side(tag, block.take(late))

    def _windows_of(self, value: Any, timestamp: int | None) -> Any:
        return self.spec.assigner.assign_windows(
            value, MIN_TIMESTAMP if timestamp is None else timestamp, self._assigner_context
        )

    def _put_in(self, value: Any, key: Any, timestamp: int | None) -> bool:
        """Add a record to its windows. Returns whether the record is late: all its windows were
        removed already. A record that belongs to no window is late if a window that ends at its
        timestamp would have been removed."""
        windows = self._windows_of(value, timestamp)
        in_time = False
        for window in windows:
            if self.is_late(window):
                continue
            in_time = True
            self._add((key, window), value, timestamp)
            self._act(self._on_element(value, key, timestamp, window), key, window, window)
            self._register_cleanup(window)
            if len(windows) > 1 and type(value) not in IMMUTABLE:
                value = own(value)  # each window needs its own copy
        return not in_time and (bool(windows) or self.would_be_late(timestamp))

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
            if len(windows) > 1 and type(value) not in IMMUTABLE:
                value = own(value)
        return not in_time and (bool(windows) or self.would_be_late(timestamp))

    def _windows_in_flight(self, key: Any) -> MergingWindowSet:
        assert isinstance(self.spec.assigner, MergingWindowAssigner)
        return MergingWindowSet(self.spec.assigner, self._in_flight, key)

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

    def _on_element(
        self, value: Any, key: Any, timestamp: int | None, window: Any
    ) -> TriggerResult:
        time = MIN_TIMESTAMP if timestamp is None else timestamp
        return self.spec.trigger.on_element(
            value, time, window, self._trigger_context.at(key, window)
        )

    def _act(
        self, result: TriggerResult, key: Any, window: Any, state_window: Any, ends: bool = False
    ) -> None:
        """Do what a trigger has decided: evaluate the window, remove its contents, both or nothing.
        *state_window*: the window under which the contents are stored. *ends*: the caller removes
        the window next, so evaluating may remove its contents."""
        if result is TriggerResult.CONTINUE:
            return
        if result.is_fire():
            self.evaluate(key, window, state_window, ends or result.is_purge())
        if result.is_purge():
            self.table.remove((key, state_window))

    def evaluate(self, key: Any, window: Any, state_window: Any, ends: bool) -> None:
        """Call the window function if the window has contents, and collect its results.
        *state_window*: the window under which the contents are stored. *ends*: the contents are not
        needed afterwards and may be removed."""
        spec, place = self.spec, (key, state_window)
        self._evaluated = key, window
        if spec.evictor is not None:
            self._evict_and_evaluate(spec.evictor, key, window, place)
        else:
            use = spec.contents.take if ends else spec.contents.read
            elements = use(self.table, place)
            if elements:
                self._collect(key, window, elements)
        self._evaluated = None

    def _collect(self, key: Any, window: Any, elements: Sequence[Any]) -> None:
        context = self.function_context.at(key, window)
        results = self.spec.evaluation.results(self.context.own(key), context, elements)
        self.results.add(results, window.max_timestamp())

    def _evict_and_evaluate(self, evictor: Evictor, key: Any, window: Any, place: Any) -> None:
        kept = list(self.table.get(place))
        if not kept:
            return
        kept = list(evictor.evict_before(kept, window))
        self._collect(key, window, own_all([element.value for element in kept]))
        self.table.put(place, evictor.evict_after(kept, window))

    # --- time ---------------------------------------------------------------------------------

    def is_late(self, window: Any) -> bool:
        """Return whether the watermark has passed the cleanup time of the window: the window was
        removed, and records for it are late."""
        return self._event_time and self.cleanup_time(window) <= self.timers.current_watermark

    def would_be_late(self, timestamp: int | None) -> bool:
        """Return whether a window that ends at *timestamp* would have been removed already."""
        if timestamp is None or not self._event_time:
            return False
        return timestamp + self.spec.allowed_lateness <= self.timers.current_watermark

    def cleanup_time(self, window: Any) -> int:
        """Return the time in milliseconds at which the window is removed.
        This is its last millisecond plus the allowed lateness. Windows of processing time have no
        allowed lateness."""
        end: int = window.max_timestamp()
        if not self._event_time:
            return end
        return min(end + self.spec.allowed_lateness, MAX_TIMESTAMP)

    def _register_cleanup(self, window: Any) -> None:
        cleanup = self.cleanup_time(window)
        if cleanup == MAX_TIMESTAMP:
            return  # never: the window is removed when it is purged
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

    def on_event_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        self._on_timer(timestamp, key, namespace, True)

    def on_processing_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        self._on_timer(timestamp, key, namespace, False)
        self.results.flush()

    def _on_timer(self, timestamp: int, key: Any, window: Any, event_time: bool) -> None:
        state_window = window
        if self._merging:
            state_window = self._in_flight.get(key, window)
            if state_window is None:
                return  # a timer of a window that was merged
        trigger, context = self.spec.trigger, self._trigger_context.at(key, window)
        if event_time:
            result = trigger.on_event_time(timestamp, window, context)
        else:
            result = trigger.on_processing_time(timestamp, window, context)
        ends = event_time == self._event_time and timestamp == self.cleanup_time(window)
        self._act(result, key, window, state_window, ends)
        if ends:
            self._clear(key, window, state_window)

    def _clear(self, key: Any, window: Any, state_window: Any) -> None:
        self.table.remove((key, state_window))
        self.spec.trigger.clear(window, self._trigger_context.at(key, window))
        self.spec.evaluation.clear(self.function_context.at(key, window))
        if self._merging:
            self._windows_in_flight(key).retire(window)


OnMerge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Called with the merged window, the windows that were merged, the state window of the result, and
the other state windows, whose contents have to be added to those of that state window."""


class _Collected(MergeCallback[Any]):
    def __init__(self) -> None:
        self.merges: list[tuple[Any, list[Any]]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.merges.append((merge_result, list(to_be_merged)))


class MergingWindowSet:
    """The windows of one key that were not removed yet, for windows that merge. *table* stores, for
    each key, a map from each window to its state window, under which its contents are stored."""

    def __init__(self, assigner: MergingWindowAssigner, table: MapTable, key: Any) -> None:
        self._assigner = assigner
        self._table = table
        self._key = key

    def state_window(self, window: Any) -> Any:
        """Return the window under which the contents of *window* are stored; None if *window* does
        not exist (any more)."""
        return self._table.get(self._key, window)

    def retire(self, window: Any) -> None:
        """Forget a window, because it has ended."""
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


class AssignerContext(WindowAssignerContext):
    """The context that the window operator gives to window assigners."""

    def __init__(self, timers: InternalTimerService, runtime_context: RuntimeContext) -> None:
        self._timers = timers
        self._runtime_context = runtime_context

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime_context


class WindowTriggerContext(OnMergeContext):
    """The context that the window operator gives to triggers.
    It is about the key and window with which :meth:`at` was called last."""

    def __init__(
        self, timers: InternalTimerService, backend: KeyedStateBackend, metrics: Any
    ) -> None:
        self._timers = timers
        self._backend = backend
        self._metrics = metrics
        self._namespace = KeyContext()
        self._key: Any = None
        self._window: Any = None
        self._merged: Sequence[Any] = ()

    def at(self, key: Any, window: Any, merged: Sequence[Any] = ()) -> WindowTriggerContext:
        self._key, self._window, self._merged = key, window, merged
        self._namespace.key = (key, window)
        return self

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_current_watermark(self) -> int:
        return self._timers.current_watermark

    def get_metric_group(self) -> Any:
        return self._metrics

    def register_processing_time_timer(self, time: int) -> None:
        self._timers.register_processing_time_timer(self._window, timer_time(time))

    def register_event_time_timer(self, time: int) -> None:
        self._timers.register_event_time_timer(self._window, timer_time(time))

    def delete_processing_time_timer(self, time: int) -> None:
        self._timers.delete_processing_time_timer(self._window, timer_time(time))

    def delete_event_time_timer(self, time: int) -> None:
        self._timers.delete_event_time_timer(self._window, timer_time(time))

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return self._backend.state(state_descriptor, self._namespace)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        self._backend.merge_namespaces(state_descriptor, self._key, self._window, self._merged)


class _Store(KeyedStateStore):
    """Gives functions the state of the current key and the window in *context*.
    *context* None: the state of the current key, which all its windows share."""

    def __init__(self, backend: KeyedStateBackend, context: KeyContext | None) -> None:
        self._backend = backend
        self._context = context

    def _state(self, descriptor: StateDescriptor, kind: type[StateDescriptor]) -> Any:
        return typed_state(self._backend, descriptor, kind, self._context)


class FunctionContext(WindowContext[Any]):
    """The context of process window functions. It is about the key and window with which :meth:`at`
    was called last."""

    def __init__(
        self, timers: InternalTimerService, backend: KeyedStateBackend, *, merges: bool
    ) -> None:
        """Make the context of the window functions of an operator. *merges*: whether windows can
        merge. If so, ``window_state`` is refused, because a merge would lose that state."""
        self._timers = timers
        self._namespace = KeyContext()
        self._window: Any = None
        self._window_state = None if merges else _Store(backend, self._namespace)
        self._global_state = _Store(backend, None)

    def at(self, key: Any, window: Any) -> FunctionContext:
        return self.at_place((key, window))

    def at_place(self, place: tuple[Any, Any]) -> FunctionContext:
        """Set key and window, as :meth:`at` does."""
        self._namespace.key = place
        self._window = place[1]
        return self

    def window(self) -> Any:
        return self._window

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        return self._timers.current_watermark

    def window_state(self) -> KeyedStateStore:
        if self._window_state is None:
            raise StreamError(
                "there is no state of windows that merge, such as sessions: keep it per key, with "
                "global_state()"
            )
        return self._window_state

    def global_state(self) -> KeyedStateStore:
        return self._global_state
