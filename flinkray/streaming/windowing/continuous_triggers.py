"""Triggers that fire again and again while a window is open."""

from __future__ import annotations

from typing import Any

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.state.descriptors import ReducingStateDescriptor
from flinkray.streaming.windowing.triggers import (
    OnMergeContext,
    Trigger,
    TriggerContext,
    TriggerResult,
)


class _ContinuousTrigger(Trigger):
    def __init__(self, interval: Time | Duration | int) -> None:
        self.interval = milliseconds(interval)
        if self.interval <= 0:
            raise ValueError(f"an interval must be positive, got {self.interval} ms")
        self._next_fire: ReducingStateDescriptor[int] = ReducingStateDescriptor(
            "trigger-fire-time", min
        )

    def _now(self, ctx: TriggerContext) -> int:
        raise NotImplementedError

    def _register(self, ctx: TriggerContext, time: int) -> None:
        raise NotImplementedError

    def _delete(self, ctx: TriggerContext, time: int) -> None:
        raise NotImplementedError

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

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
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
