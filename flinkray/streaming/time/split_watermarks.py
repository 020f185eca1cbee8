"""Combines the watermarks of the splits of a task: the least one counts.

Corresponds to Flink's ``WatermarkOutputMultiplexer``.
"""

from __future__ import annotations

from collections.abc import Callable

from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.streaming.time.watermarks import WatermarkOutput


class PartialWatermark(WatermarkOutput):
    """The watermark output of one split; keeps its latest watermark and its idle status."""

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
    splits are idle, the stream is idle. *output* must ignore a watermark that does not advance.
    """

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._partial: dict[str | None, PartialWatermark] = {}
        self._is_deferred = False

    def register(self, split_id: str | None) -> PartialWatermark:
        """Register a split. None stands for all records that belong to no split."""
        return self._partial.setdefault(split_id, PartialWatermark(self._changed))

    def release(self, split_id: str | None) -> None:
        """Remove a split, which no longer holds the watermark back."""
        if self._partial.pop(split_id, None) is not None:
            self._changed()

    def deferred(self, update: Callable[[], None]) -> None:
        """Run *update*, which may change watermarks of several splits, and combine them only after
        it."""
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
