"""Event time and processing time."""

__all__ = [
    "combined_watermarks",
    "given_times",
    "time_service",
    "timers",
    "turn",
    "watermark_alignment",
    "watermarks",
]
