"""Triggers decide when a window is evaluated, and whether its contents are removed then."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic

from typing_extensions import TypeVar

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.state.descriptors import (
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)

T = TypeVar("T", contravariant=True, default=Any)
W = TypeVar("W", contravariant=True, default=Any)


class TriggerResult(Enum):
    """What a trigger has decided: to evaluate the window, remove its contents, both, or neither."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        return self.value[0]

    def is_purge(self) -> bool:
        return self.value[1]


class TriggerContext(ABC):
    """Gives a trigger the time, and the timers and the state of a key and window."""

    @abstractmethod
    def get_current_processing_time(self) -> int: ...

    @abstractmethod
    def get_current_watermark(self) -> int: ...

    @abstractmethod
    def get_metric_group(self) -> Any: ...

    @abstractmethod
    def register_processing_time_timer(self, time: int) -> None: ...

    @abstractmethod
    def register_event_time_timer(self, time: int) -> None: ...

    @abstractmethod
    def delete_processing_time_timer(self, time: int) -> None: ...

    @abstractmethod
    def delete_event_time_timer(self, time: int) -> None: ...

    @abstractmethod
    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """Return state of this key and window."""


class OnMergeContext(TriggerContext):
    """Context of a trigger for a window into which other windows were merged."""

    @abstractmethod
    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Merge the state of the merged windows into the state of this window."""


class _Contexts:
    """Makes PyFlink's names ``Trigger.TriggerContext`` and ``Trigger.OnMergeContext`` available."""

    TriggerContext = TriggerContext
    OnMergeContext = OnMergeContext


class Trigger(_Contexts, ABC, Generic[T, W]):
    """Decides when a window fires. Its state is in the context, for each key and window."""

    @abstractmethod
    def on_element(
        self, element: T, timestamp: int, window: W, ctx: TriggerContext
    ) -> TriggerResult:
        """Called when a record was put into the window. Return what to do with the window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Called when a processing-time timer of this trigger fires. Return what to do with the
        window."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Called when an event-time timer of this trigger fires. Return what to do with the
        window."""

    def can_merge(self) -> bool:
        """Return whether the trigger can be used with windows that merge."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: OnMergeContext) -> None:
        """Called when several windows were merged into *window*: set timers and merge state."""

    @abstractmethod
    def clear(self, window: W, ctx: TriggerContext) -> None:
        """Called when the window is removed: delete its timers and state."""


class _Continuing(Trigger):
    """Base class of triggers that override some methods. The others do nothing and do not fire."""

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        return None

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        return None


class EventTimeTrigger(_Continuing):
    """Fires when the watermark passes the window's end, and at once for late records."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """Create this trigger, which has no settings."""
        return EventTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE


class ProcessingTimeTrigger(_Continuing):
    """Fires when processing time passes the window's end."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        return ProcessingTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class NeverTrigger(_Continuing):
    """A trigger that never fires: the default trigger of global windows."""

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        return TriggerResult.CONTINUE


def _add(left: int, right: int) -> int:
    return left + right


class CountTrigger(_Continuing):
    """Fires whenever *window_size* records have come since the trigger fired last."""

    def __init__(self, window_size: int) -> None:
        if window_size <= 0:
            raise ValueError(f"a count must be positive, got {window_size}")
        self._window_size = window_size
        self._count: ReducingStateDescriptor[int] = ReducingStateDescriptor("trigger-count", _add)

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        """Create a trigger that fires for every *window_size* records."""
        return CountTrigger(window_size)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() >= self._window_size:
            count.clear()
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._count).clear()


class PurgingTrigger(Trigger):
    """Fires as another trigger does, and removes the window's contents each time."""

    def __init__(self, nested_trigger: Trigger) -> None:
        self._nested = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        """Create a trigger that fires as *nested_trigger* does and removes the contents then."""
        return PurgingTrigger(nested_trigger)

    @staticmethod
    def _purging(result: TriggerResult) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        return self._purging(self._nested.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._purging(self._nested.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._purging(self._nested.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self._nested.can_merge()

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        self._nested.on_merge(window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        self._nested.clear(window, ctx)


class DeltaTrigger(_Continuing):
    """Fires when a record differs by more than *threshold* from the record at which the trigger
    fired last. Until the first firing, records are compared with the window's first record."""

    def __init__(self, threshold: float, delta_function: Callable[[Any, Any], float]) -> None:
        self._threshold = threshold
        self._delta = delta_function
        self._last: ValueStateDescriptor[Any] = ValueStateDescriptor("trigger-last-element")

    @staticmethod
    def of(threshold: float, delta_function: Callable[[Any, Any], float]) -> DeltaTrigger:
        return DeltaTrigger(threshold, delta_function)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        last = ctx.get_partitioned_state(self._last)
        if last.value() is None:
            last.update(element)
            return TriggerResult.CONTINUE
        if self._delta(last.value(), element) > self._threshold:
            last.update(element)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._last).clear()


class _ContinuousTrigger(_Continuing):
    def __init__(self, interval: Time | Duration | int) -> None:
        self.interval = milliseconds(interval)
        if self.interval <= 0:
            raise ValueError(f"an interval must be positive, got {self.interval} ms")
        self._next_fire: ReducingStateDescriptor[int] = ReducingStateDescriptor(
            "trigger-fire-time", min
        )

    @abstractmethod
    def _register(self, ctx: TriggerContext, time: int) -> None: ...

    @abstractmethod
    def _delete(self, ctx: TriggerContext, time: int) -> None: ...

    def _register_next(self, start: int, window: Any, ctx: TriggerContext) -> None:
        following = min(start + self.interval, window.max_timestamp())
        ctx.get_partitioned_state(self._next_fire).add(following)
        self._register(ctx, following)

    def _on_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        next_fire = ctx.get_partitioned_state(self._next_fire)
        if next_fire.get() == time:
            next_fire.clear()
            self._register_next(time, window, ctx)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._next_fire)
        following = ctx.get_partitioned_state(self._next_fire).get()
        if following is not None:
            self._register(ctx, following)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        next_fire = ctx.get_partitioned_state(self._next_fire)
        following = next_fire.get()
        if following is not None:
            self._delete(ctx, following)
            next_fire.clear()


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires at each interval of event time, and when the watermark passes the window's end."""

    @staticmethod
    def of(interval: Time | Duration | int) -> ContinuousEventTimeTrigger:
        return ContinuousEventTimeTrigger(interval)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        if ctx.get_partitioned_state(self._next_fire).get() is None:
            self._register_next(timestamp - timestamp % self.interval, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._on_time(time, window, ctx)

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        super().on_merge(window, ctx)
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        super().clear(window, ctx)
        ctx.delete_event_time_timer(window.max_timestamp())

    def _register(self, ctx: TriggerContext, time: int) -> None:
        ctx.register_event_time_timer(time)

    def _delete(self, ctx: TriggerContext, time: int) -> None:
        ctx.delete_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires at each interval of processing time."""

    @staticmethod
    def of(interval: Time | Duration | int) -> ContinuousProcessingTimeTrigger:
        return ContinuousProcessingTimeTrigger(interval)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        if ctx.get_partitioned_state(self._next_fire).get() is None:
            now = ctx.get_current_processing_time()
            self._register_next(now - now % self.interval, window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._on_time(time, window, ctx)

    def _register(self, ctx: TriggerContext, time: int) -> None:
        ctx.register_processing_time_timer(time)

    def _delete(self, ctx: TriggerContext, time: int) -> None:
        ctx.delete_processing_time_timer(time)
