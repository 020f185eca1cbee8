"""Event time and processing time."""

__all__ = [
    "combined_watermark",
    "time_service",
    "timers",
    "turn",
    "waiting_clock",
    "watermark_alignment",
    "watermark_valve",
    "watermarks",
]
