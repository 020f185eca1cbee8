"""PyFlink's ``pyflink.datastream.connectors.base``."""

from __future__ import annotations

from flinkray.streaming.sinks.sink import Sink
from flinkray.streaming.sources.source import Source

__all__ = ["Sink", "Source"]
