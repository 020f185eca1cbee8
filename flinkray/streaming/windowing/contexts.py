"""The contexts that assigners, triggers and window functions get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.state.backend import KeyedStateBackend
from flinkray.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.key_context import KeyContext
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.runtime_context import (
    KeyedStateStore,
    RuntimeContext,
    typed_state,
)
from flinkray.streaming.functions.window_functions import WindowContext
from flinkray.streaming.time.given_times import timer_time
from flinkray.streaming.time.timers import InternalTimerService
from flinkray.streaming.windowing.assigners import WindowAssignerContext
from flinkray.streaming.windowing.triggers import OnMergeContext


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
    It is for the key and window with which :meth:`at` was called last."""

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
    """Gives functions the state of the current key, or of the key and window in *context*.
    *context* None: the state of the current key, which all its windows share."""

    def __init__(self, backend: KeyedStateBackend, context: KeyContext | None) -> None:
        self._backend = backend
        self._context = context

    def get_state(self, state_descriptor: Any) -> Any:
        return typed_state(self._backend, state_descriptor, ValueStateDescriptor, self._context)

    def get_list_state(self, state_descriptor: Any) -> Any:
        return typed_state(self._backend, state_descriptor, ListStateDescriptor, self._context)

    def get_map_state(self, state_descriptor: Any) -> Any:
        return typed_state(self._backend, state_descriptor, MapStateDescriptor, self._context)

    def get_reducing_state(self, state_descriptor: Any) -> Any:
        return typed_state(self._backend, state_descriptor, ReducingStateDescriptor, self._context)

    def get_aggregating_state(self, state_descriptor: Any) -> Any:
        return typed_state(
            self._backend, state_descriptor, AggregatingStateDescriptor, self._context
        )


class FunctionContext(WindowContext[Any]):
    """The context of process window functions, for the key and window of the last :meth:`at`
    call."""

    def __init__(
        self, timers: InternalTimerService, backend: KeyedStateBackend, *, merges: bool
    ) -> None:
        """Make the context of a window operator.
        *merges*: windows can merge. Then ``window_state`` is refused: a merge would lose it."""
        self._timers = timers
        self._namespace = KeyContext()
        self._window: Any = None
        self._window_state = None if merges else _Store(backend, self._namespace)
        self._global_state = _Store(backend, None)

    def at(self, key: Any, window: Any) -> FunctionContext:
        self._window = window
        self._namespace.key = (key, window)
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
