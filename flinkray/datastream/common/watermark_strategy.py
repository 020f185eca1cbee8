"""Exports WatermarkStrategy under the module name of PyFlink's
``pyflink.common.watermark_strategy``.
"""

from __future__ import annotations

from flinkray.streaming.time.watermarks import (
    TimestampAssigner,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)

__all__ = ["TimestampAssigner", "WatermarkGenerator", "WatermarkOutput", "WatermarkStrategy"]
