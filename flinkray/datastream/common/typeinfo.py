"""PyFlink's ``pyflink.common.typeinfo``."""

from __future__ import annotations

from flinkray.streaming.records.typeinfo import TypeInformation, Types

__all__ = ["TypeInformation", "Types"]
