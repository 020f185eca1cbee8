"""PyFlink's ``pyflink.common.time``."""

from __future__ import annotations

from flinkray.core.durations import Duration, Time

__all__ = ["Duration", "Time"]
