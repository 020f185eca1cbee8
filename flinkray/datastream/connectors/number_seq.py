"""PyFlink's ``connectors.number_seq``: the source of a sequence of numbers."""

from __future__ import annotations

from flinkray.streaming.sources.collection import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
