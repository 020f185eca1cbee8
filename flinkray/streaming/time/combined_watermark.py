"""The combined watermark of an operator's inputs (Flink's IndexedCombinedWatermarkStatus)."""

from __future__ import annotations

from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from flinkray.streaming.time.watermark_valve import ValveOutput


class CombinedWatermark:
    """The least watermark of the inputs that are neither idle nor ended.

    An input ends with the last watermark. If all inputs that have not ended are idle, the watermark
    stands still and the whole is idle: the end of an input says nothing about the records that an
    idle input will bring. When the last input ends, the combined watermark is the last one.

    The watermark never goes back. If an idle input becomes active again, the combined watermark
    stands still until this input's watermark has caught up. A :class:`WatermarkValve` does not wait
    for such a channel, because its other channels bring the same stream.
    """

    def __init__(self, inputs: int) -> None:
        self._watermarks = [MIN_TIMESTAMP] * inputs
        self._idle = [False] * inputs
        self._combined = MIN_TIMESTAMP
        self._is_idle = False

    def watermark(self, number: int, timestamp: int) -> ValveOutput:
        """Process a watermark of an input, which makes the input active."""
        self._idle[number] = False
        self._watermarks[number] = max(timestamp, self._watermarks[number])
        return self._update()

    def status(self, number: int, idle: bool) -> ValveOutput:
        """Process a change of an input's idle status. False: the input is active."""
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
