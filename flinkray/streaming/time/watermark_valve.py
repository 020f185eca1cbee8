"""The watermark of several channels together (Flink's StatusWatermarkValve, as it is
since FLINK-40475)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flinkray.streaming.records.elements import MIN_TIMESTAMP


@dataclass
class _Channel:
    watermark: int = MIN_TIMESTAMP
    idle: bool = False
    aligned: bool = True
    """Takes part in the least watermark; a channel that returns from idleness must catch up with
    what was put out meanwhile first."""


@dataclass(frozen=True)
class ValveOutput:
    """What follows from one input: a watermark, and a change of status."""

    watermark: int | None = None
    idle: bool | None = None

    def tell(self, watermark: Callable[[int], None], status: Callable[[bool], None]) -> None:
        """Say so, in the order in which whoever follows takes account of both: what is idle has no
        watermarks."""
        if self.idle is False:
            status(False)
        if self.watermark is not None:
            watermark(self.watermark)
        if self.idle:
            status(True)


NOTHING = ValveOutput()


class WatermarkValve:
    """Puts out the least watermark of the active and aligned channels, whenever it advances."""

    def __init__(self, channels: int) -> None:
        self._channels = [_Channel() for _ in range(channels)]
        self._last = MIN_TIMESTAMP
        self._idle = False

    @property
    def current(self) -> int:
        """The last watermark put out."""
        return self._last

    def watermark(self, channel: int, timestamp: int) -> ValveOutput:
        """A watermark came; ignored if the channel is idle or the watermark does not advance."""
        state = self._channels[channel]
        if state.idle or timestamp <= state.watermark:
            return NOTHING
        state.watermark = timestamp
        if not state.aligned and timestamp >= self._last:
            state.aligned = True
        return ValveOutput(self._advance_to_least())

    def status(self, channel: int, idle: bool) -> ValveOutput:
        """A channel became idle or active."""
        state = self._channels[channel]
        if state.idle == idle:
            return NOTHING
        state.idle = idle
        state.aligned = not idle and state.watermark >= self._last
        all_idle = all(other.idle for other in self._channels)
        if all_idle:  # what comes out does not depend on who was idle first
            watermark = self._advance_to(max(c.watermark for c in self._channels))
        else:
            watermark = self._advance_to_least()
        if all_idle == self._idle:
            return ValveOutput(watermark)
        self._idle = all_idle
        return ValveOutput(watermark, all_idle)

    def _advance_to_least(self) -> int | None:
        aligned = [channel.watermark for channel in self._channels if channel.aligned]
        return self._advance_to(min(aligned)) if aligned else None

    def _advance_to(self, timestamp: int) -> int | None:
        if timestamp <= self._last:
            return None
        self._last = timestamp
        return timestamp
