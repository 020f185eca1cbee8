"""PyFlink's ``pyflink.common.watermark_strategy``."""

from __future__ import annotations

from flinkray.streaming.watermarks import TimestampAssigner, WatermarkGenerator, WatermarkStrategy

__all__ = ["TimestampAssigner", "WatermarkGenerator", "WatermarkStrategy"]
