"""Combined watermarks: of the channels of an input, of an operator's inputs, and of splits.

Corresponds to Flink's ``WatermarkOutputMultiplexer``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from flinkray.streaming.time.watermarks import WatermarkOutput


@dataclass
class _Channel:
    watermark: int = MIN_TIMESTAMP
    idle: bool = False
    aligned: bool = True
    """Whether the channel counts for the least watermark. A channel that is active again counts
    once its watermark has caught up with the combined one."""

    @property
    def has_ended(self) -> bool:
        return self.watermark == MAX_TIMESTAMP


@dataclass(frozen=True)
class ValveOutput:
    """What has changed for several channels or inputs together by one of their watermarks or
    status: the watermark and the idle status to put out. None in a field: it has not changed."""

    watermark: int | None = None
    idle: bool | None = None

    def tell(self, watermark: Callable[[int], None], status: Callable[[bool], None]) -> None:
        """Call *watermark* with the watermark, and *status* with the idle status, as far as they
        have changed; in an order in which no watermark comes while the stream is idle."""
        if self.idle is False:
            status(False)
        if self.watermark is not None:
            watermark(self.watermark)
        if self.idle:
            status(True)


NOTHING = ValveOutput()


class WatermarkValve:
    """Combines the watermarks of an input's channels: puts out the least watermark of the active
    channels, whenever it advances. A channel that was idle counts again when its watermark is as
    late as that put out (it is *aligned*). A channel ends with the last watermark and does not
    count from then on. If all other channels are idle, the input is idle. The end of the last
    channel is the end of time."""

    def __init__(self, channels: int) -> None:
        self._channels = [_Channel() for _ in range(channels)]
        self._last = MIN_TIMESTAMP
        self._idle = False

    @property
    def current(self) -> int:
        """The watermark that was put out last."""
        return self._last

    def watermark(self, channel: int, timestamp: int) -> ValveOutput:
        """Process a watermark of a channel and return what has changed for the input. A watermark
        that does not advance is ignored. So is a watermark of an idle channel, except the last."""
        state = self._channels[channel]
        is_last = timestamp == MAX_TIMESTAMP
        if (state.idle and not is_last) or timestamp <= state.watermark:
            return NOTHING
        state.watermark = timestamp
        if is_last:
            return self._update()
        if not state.aligned and timestamp >= self._last:
            state.aligned = True
        return ValveOutput(self._advance_to_least())

    def status(self, channel: int, idle: bool) -> ValveOutput:
        """Process the idle status of a channel; ignored if the channel has ended. Returns what has
        changed for the input: a watermark to put out, or the input's idle status."""
        state = self._channels[channel]
        if state.idle == idle or state.has_ended:
            return NOTHING
        state.idle = idle
        state.aligned = not idle and state.watermark >= self._last
        return self._update()

    def _update(self) -> ValveOutput:
        going_on = [channel for channel in self._channels if not channel.has_ended]
        is_idle = bool(going_on) and all(channel.idle for channel in going_on)
        if is_idle:  # independent of the order in which they became idle
            watermark = self._advance_to(max(channel.watermark for channel in going_on))
        elif going_on:
            watermark = self._advance_to_least()
        else:
            watermark = self._advance_to(MAX_TIMESTAMP)
        if is_idle == self._idle:
            return ValveOutput(watermark)
        self._idle = is_idle
        return ValveOutput(watermark, is_idle)

    def _advance_to_least(self) -> int | None:
        aligned = [it.watermark for it in self._channels if it.aligned and not it.has_ended]
        return self._advance_to(min(aligned)) if aligned else None

    def _advance_to(self, timestamp: int) -> int | None:
        if timestamp <= self._last:
            return None
        self._last = timestamp
        return timestamp


class CombinedWatermark:
    """The least watermark of several inputs, without those that are idle or have ended. It never
    goes back. If all are idle, they count as idle together and the watermark stands still, until an
    input is active whose watermark is as late. (A :class:`WatermarkValve` does not wait for that.)
    When all have ended, it is the last watermark."""

    def __init__(self, inputs: int) -> None:
        self._watermarks = [MIN_TIMESTAMP] * inputs
        self._idle = [False] * inputs
        self._combined = MIN_TIMESTAMP
        self._is_idle = False

    def watermark(self, number: int, timestamp: int) -> ValveOutput:
        """Process a watermark of input *number*, which makes the input active. Returns what has
        changed for all inputs together."""
        self._idle[number] = False
        self._watermarks[number] = max(timestamp, self._watermarks[number])
        return self._update()

    def status(self, number: int, idle: bool) -> ValveOutput:
        """Process the idle status of input *number*; *idle* False: it is active. Returns what has
        changed for all inputs together."""
        self._idle[number] = idle
        return self._update()

    def _update(self) -> ValveOutput:
        pairs = zip(self._watermarks, self._idle, strict=True)
        going_on = [pair for pair in pairs if pair[0] != MAX_TIMESTAMP]
        active = [watermark for watermark, is_idle in going_on if not is_idle]
        was_idle, self._is_idle = self._is_idle, bool(going_on) and not active
        status = None if was_idle == self._is_idle else self._is_idle
        combined = min(active, default=MIN_TIMESTAMP if going_on else MAX_TIMESTAMP)
        if combined <= self._combined:
            return ValveOutput(None, status)
        self._combined = combined
        return ValveOutput(combined, status)


class PartialWatermark(WatermarkOutput):
    """The output of one split's watermark generator: stores the latest watermark and the idle
    status, and reports changes."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.watermark = MIN_TIMESTAMP
        self.idle = False
        self._on_change = on_change

    def emit_watermark(self, timestamp: int) -> None:
        if timestamp > self.watermark:
            self.watermark = timestamp
            self.idle = False
            self._on_change()

    def mark_idle(self) -> None:
        if not self.idle:
            self.idle = True
            self._on_change()

    def mark_active(self) -> None:
        if self.idle:
            self.idle = False
            self._on_change()


class WatermarkMultiplexer:
    """Combines the watermarks of the registered splits.
    A split without a watermark holds the combined watermark back, an idle split does not. When all
    splits are idle, the stream is idle. *output* must ignore a watermark that does not advance."""

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._partial: dict[str | None, PartialWatermark] = {}
        self._is_deferred = False

    def register(self, split_id: str | None) -> PartialWatermark:
        """Return the watermark output of a split, which now counts. None stands for all records
        that belong to no split."""
        return self._partial.setdefault(split_id, PartialWatermark(self._changed))

    def release(self, split_id: str | None) -> None:
        """Remove a split, which no longer holds the watermark back."""
        if self._partial.pop(split_id, None) is not None:
            self._changed()

    def deferred(self, update: Callable[[], None]) -> None:
        """Run *update*, in which watermarks of several splits may change. The combined watermark is
        put out once, after *update*."""
        self._is_deferred = True
        try:
            update()
        finally:
            self._is_deferred = False
        self._changed()

    def _changed(self) -> None:
        if self._is_deferred or not self._partial:
            return
        active = [partial.watermark for partial in self._partial.values() if not partial.idle]
        if active:
            self._output.mark_active()
            self._output.emit_watermark(min(active))
        else:
            self._output.mark_idle()
