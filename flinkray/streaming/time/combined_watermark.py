"""The watermark of an operator's inputs together (Flink's IndexedCombinedWatermarkStatus)."""

from __future__ import annotations

from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.streaming.time.watermark_valve import ValveOutput


class CombinedWatermark:
    """The least watermark of the inputs that are not idle.  While all are, time stands still.

    It never goes back.  An input that comes back from idleness holds it where it is until it has
    caught up: unlike a channel of a valve, of which there are many that bring the same, an input is
    a stream that nothing else stands in for.
    """

    def __init__(self, inputs: int) -> None:
        self._watermarks = [MIN_TIMESTAMP] * inputs
        self._idle = [False] * inputs
        self._combined = MIN_TIMESTAMP

    def watermark(self, number: int, timestamp: int) -> ValveOutput:
        """A watermark came on an input, which is active by that."""
        was_idle = all(self._idle)
        self._idle[number] = False
        self._watermarks[number] = max(timestamp, self._watermarks[number])
        return self._update(was_idle)

    def status(self, number: int, idle: bool) -> ValveOutput:
        """An input became idle or active."""
        was_idle = all(self._idle)
        self._idle[number] = idle
        return self._update(was_idle)

    def _update(self, was_idle: bool) -> ValveOutput:
        pairs = zip(self._watermarks, self._idle, strict=True)
        active = [watermark for watermark, is_idle in pairs if not is_idle]
        status = None if was_idle == (not active) else not active
        combined = min(active, default=MIN_TIMESTAMP)
        if combined <= self._combined:
            return ValveOutput(None, status)
        self._combined = combined
        return ValveOutput(combined, status)
