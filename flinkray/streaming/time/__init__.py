"""Event time and processing time."""

__all__ = [
    "combined_watermark",
    "given_times",
    "split_watermarks",
    "time_service",
    "timers",
    "turn",
    "waiting_clock",
    "watermark_alignment",
    "watermark_valve",
    "watermarks",
]
