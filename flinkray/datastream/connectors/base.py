"""Exports the bases of sources and sinks, like PyFlink's ``pyflink.datastream.connectors.base``."""

from __future__ import annotations

from flinkray.streaming.sinks.sink import DeliveryGuarantee, Sink
from flinkray.streaming.sources.source import Source

__all__ = ["DeliveryGuarantee", "Sink", "Source"]
