"""Watermarks of several splits that one task reads: the stream's is the least of theirs (Flink's
``WatermarkOutputMultiplexer``)."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.streaming.time.watermarks import WatermarkOutput


class PartialWatermark(WatermarkOutput):
    """How far one split is."""

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
    """Combines the watermarks of what is registered.

    A split that has given nothing yet holds all others back; one that is idle holds nobody back.
    When all of them are idle, so is the stream.

    Args:
        output: what lets the combined watermark only advance.
    """

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._partial: dict[str | None, PartialWatermark] = {}
        self._is_deferred = False

    def register(self, split_id: str | None) -> PartialWatermark:
        """One more; None is what belongs to no split."""
        return self._partial.setdefault(split_id, PartialWatermark(self._changed))

    def release(self, split_id: str | None) -> None:
        """It holds nobody back any more."""
        if self._partial.pop(split_id, None) is not None:
            self._changed()

    def deferred(self, update: Callable[[], None]) -> None:
        """Combine once, after several have been told how far they are."""
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
