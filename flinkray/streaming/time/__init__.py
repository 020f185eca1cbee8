"""Event time and processing time."""

__all__ = [
    "time_service",
    "timers",
    "waiting_clock",
    "watermark_alignment",
    "watermark_valve",
    "watermarks",
]
