"""Event time and processing time."""

__all__ = [
    "system_clock",
    "time_service",
    "timers",
    "watermark_alignment",
    "watermark_valve",
    "watermarks",
]
