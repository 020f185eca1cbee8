"""The combined watermark of several channels (Flink's StatusWatermarkValve, as it is
since FLINK-40475, and without FLINK-38477: the end of a channel does not end the stream while
other channels are idle).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP


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
    """What a valve puts out after a call: a watermark, and a change of the idle status.
    None in a field: no watermark, or no change.
    """

    watermark: int | None = None
    idle: bool | None = None

    def tell(self, watermark: Callable[[int], None], status: Callable[[bool], None]) -> None:
        """Pass the watermark and the change of the idle status to the given functions, in the right
        order: no watermark may come while the stream is idle."""
        if self.idle is False:
            status(False)
        if self.watermark is not None:
            watermark(self.watermark)
        if self.idle:
            status(True)


NOTHING = ValveOutput()


class WatermarkValve:
    """Puts out the least watermark of the active and aligned channels, whenever it advances.

    A channel ends with the last watermark and does not count from then on. If all other channels
    are idle, the whole is idle. The end of the last channel is the end of time.
    """

    def __init__(self, channels: int) -> None:
        self._channels = [_Channel() for _ in range(channels)]
        self._last = MIN_TIMESTAMP
        self._idle = False

    @property
    def current(self) -> int:
        """The watermark that was put out last."""
        return self._last

    def watermark(self, channel: int, timestamp: int) -> ValveOutput:
        """Process a watermark of a channel.

        A watermark that does not advance is ignored. So is a watermark of an idle channel, except
        the last.
        """
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
        """Process a change of a channel's idle status. It is ignored after the channel's end."""
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
