"""Tags of side outputs (PyFlink's ``pyflink.datastream.output_tag``)."""

from __future__ import annotations

from flinkray.streaming.functions.output_tag import OutputTag

__all__ = ["OutputTag"]
