"""The place where PyFlink has its sequence of numbers."""

from __future__ import annotations

from flinkray.streaming.sources.collection import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
