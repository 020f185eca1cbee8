"""Exports the source of a sequence of numbers, like PyFlink's ``connectors.number_seq``."""

from __future__ import annotations

from flinkray.streaming.sources.collection import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
